"""A sweep from a Python file, and changes to it from the command line."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import re
import sys
import traceback
from collections.abc import Iterable
from pathlib import Path

from leadline.errors import SpecError, nearest
from leadline.spec import Sweep, replace


def load_sweep(target: str) -> Sweep:
    """The sweep that the function `target`, written FILE.py:function, returns.

    **Raises:** `SpecError` if there is no such file or function (with the nearest name), if it
    raises (with the line), or if it returns something else than a `Sweep`.
    """
    name, colon, function = target.rpartition(":")
    path = Path(name)
    if not (colon and function and path.suffix == ".py"):
        raise SpecError(f"sweep: got {target!r}, expected FILE.py:function")
    if not path.is_file():
        raise SpecError(f"sweep: there is no file {name}")
    plan = importlib.util.spec_from_file_location(f"leadline_sweep_{path.stem}", path)
    assert plan is not None
    assert plan.loader is not None
    module = importlib.util.module_from_spec(plan)
    sys.modules[plan.name] = module  # dataclasses in the file look their module up
    sys.path.insert(0, str(path.parent))
    try:
        plan.loader.exec_module(module)
        made = getattr(module, function, None)
        if not callable(made):
            known = [n for n, v in vars(module).items() if callable(v) and n[0] != "_"]
            raise SpecError(f"sweep: {name} has no function {function!r}{nearest(function, known)}")
        sweep = made()
    except Exception as error:
        if isinstance(error, SpecError) and error.args[0].startswith("sweep: "):
            raise
        raise SpecError(f"sweep: {target} raised {_where(error, path)}") from error
    finally:
        sys.path.remove(str(path.parent))
    if not isinstance(sweep, Sweep):
        kind = type(sweep).__name__
        raise SpecError(f"sweep: {target} returned {kind}, expected a leadline.spec.Sweep")
    return sweep


def _where(error: Exception, path: Path) -> str:
    """The error on one line, with its line in the user's file."""
    if isinstance(error, SyntaxError):
        lines = [error.lineno]
    else:
        frames = traceback.extract_tb(error.__traceback__)
        lines = [f.lineno for f in frames if Path(f.filename).resolve() == path.resolve()]
    line = f" (line {lines[-1]})" if lines else ""
    return " ".join(f"{type(error).__name__}: {error}".split()) + line


def override(sweep: Sweep, settings: Iterable[str]) -> Sweep:
    """`sweep` with settings such as "recipe.rate=0.01" applied to each of its runs.

    Values are JSON; "inf" is infinity, and what is not JSON is a string.

    **Raises:** `SpecError` for an unknown path, with the nearest, or an impossible value.
    """
    runs = sweep.runs
    for setting in settings:
        path, equals, text = setting.partition("=")
        if not equals:
            raise SpecError(f"set: got {setting!r}, expected PATH=VALUE, for one recipe.rate=0.01")
        value = _value(text.strip())
        runs = tuple(replace(spec, path.strip(), value) for spec in runs)
    return dataclasses.replace(sweep, runs=runs)


def _value(text: str) -> object:
    if text in ("inf", "-inf"):
        return float(text)
    try:
        return json.loads(text)
    except ValueError:
        return text


def parse_shard(text: str) -> tuple[int, int]:
    """The shard "i/n" as (i, n), i counted from 0.

    **Raises:** `SpecError` if it is not written so, or i is not below n.
    """
    match = re.fullmatch(r"(\d+)/(\d+)", text.strip())
    if match is None or int(match[1]) >= int(match[2]):
        raise SpecError(f"shard: got {text!r}, expected i/n with 0 <= i < n")
    return int(match[1]), int(match[2])
