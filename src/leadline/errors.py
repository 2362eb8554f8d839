"""The exception classes. Each message is one line: what was wrong, where, what would be right."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class LeadlineError(Exception):
    """Base of every error that leadline raises on purpose. The command line prints it on one
    line and exits with code 2.
    """


class SpecError(LeadlineError):
    """A description of a task, model, recipe or evaluation has an impossible value."""


class SolverError(LeadlineError):
    """No solver answers this specification, or the one chosen cannot reach its tolerance."""


class TableError(LeadlineError):
    """A table of runs cannot be read, or lacks what was asked of it."""


class FitError(LeadlineError):
    """A law cannot be fitted to these rows, or a fit cannot be used as asked."""


class PlanError(LeadlineError):
    """A plan cannot be made from this law and budget."""


class StoreError(LeadlineError):
    """A store of runs cannot be opened, read or written."""


class LeadlineWarning(UserWarning):
    """A question that is answered as asked, though not what was meant, most likely."""


def nearest(name: str, known: Iterable[str]) -> str:
    """`" (did you mean 'x'?)"` for the closest known name, or an empty string."""
    close = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
    return f" (did you mean {close[0]!r}?)" if close else ""
