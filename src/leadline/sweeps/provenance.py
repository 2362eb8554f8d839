"""Which commit of leadline made a number."""

from __future__ import annotations

import subprocess
from functools import cache
from pathlib import Path


@cache
def commit() -> str | None:
    """The commit of the working tree that leadline runs from, marked "-dirty" if it was changed;
    None if leadline is installed or git is absent.
    """
    here = Path(__file__)

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(here.parent), *arguments]
        done = subprocess.run(  # noqa: S603, the arguments are fixed
            command, check=True, capture_output=True, text=True, timeout=10
        )
        return done.stdout.strip()

    try:
        git("ls-files", "--error-unmatch", here.name)  # not a repository around an installed copy
        return git("describe", "--always", "--dirty", "--abbrev=40", "--exclude=*")
    except (OSError, subprocess.SubprocessError):
        return None
