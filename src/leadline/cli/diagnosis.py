"""The command on the layers of any network."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, cast

import typer

from leadline.cli.options import Json, Level, Seed, emit
from leadline.errors import LeadlineError


def diagnose(
    file: Annotated[
        Path,
        typer.Argument(help="npz file: predictions (layer, sample), targets (sample) [, groups]."),
    ],
    kind: Annotated[
        str,
        typer.Option(help="alone: each layer's own answer; running: the read-out after each."),
    ] = "alone",
    draws: Annotated[int, typer.Option(min=2, help="Bootstrap draws for the intervals.")] = 1000,
    level: Level = 0.95,
    seed: Seed = 0,
    as_json: Json = False,
) -> None:
    """What the layers of a network share, and what it loses without each of them."""
    from dataclasses import asdict

    from leadline.diagnosis import Kind
    from leadline.diagnosis import diagnose as diagnosis_of

    arrays = _read(file)
    found = diagnosis_of(
        arrays["predictions"],
        arrays["targets"],
        kind=cast(Kind, kind),  # checked there
        groups=arrays.get("groups"),
        draws=draws,
        level=level,
        seed=seed,
    )
    if as_json:
        emit(
            {
                "record": "diagnosis",
                "layers": found.decomposition.depth,
                "samples": found.samples,
                "units": found.units,
                "intervals": {name: asdict(i) for name, i in found.intervals.items()},
                "cost": [asdict(i) for i in found.cost],
                "errors": found.errors.tolist(),
            }
        )
        return
    card = found.card()
    typer.echo(card.title)
    for name, estimate, interval in card.rows:
        typer.echo(f"  {name:<27} {estimate:>10}  {interval}")
    for note in card.notes:
        typer.echo(note)


def _read(file: Path) -> dict[str, Any]:
    """The arrays of an npz file; nothing in it is executed."""
    import zipfile

    import numpy as np

    try:
        stored: Any = np.load(file, allow_pickle=False)
        if isinstance(stored, np.ndarray):
            raise ValueError("one array without a name")
        with stored:
            arrays = {name: stored[name] for name in stored.files}
    except OSError as error:
        raise LeadlineError(f"{file}: cannot read it ({error.strerror or error})") from None
    except (ValueError, zipfile.BadZipFile, EOFError) as error:
        raise LeadlineError(
            f"{file}: not an npz file of plain arrays ({type(error).__name__}); expected one with "
            "predictions and targets"
        ) from None
    for name in ("predictions", "targets"):
        if name not in arrays:
            raise LeadlineError(
                f"{file}: no array {name!r}; it has {', '.join(arrays) or 'none'}, expected "
                "predictions, targets and perhaps groups"
            )
        if arrays[name].dtype.kind not in "biuf":
            raise LeadlineError(f"{file}: {name} holds {arrays[name].dtype}, expected numbers")
    return arrays
