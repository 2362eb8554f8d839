"""How a result shows itself: one card, as HTML in a notebook and through rich in a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Group

SHOWN_ROWS = 10


@dataclass(frozen=True, kw_only=True)
class Card:
    """A title, a table of text (`rows` under `columns`) and notes below it."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    notes: Sequence[str] = ()


class Shown:
    """A result that shows itself as its `card`."""

    def card(self) -> Card:
        """What a reader should see of this result first."""
        raise NotImplementedError

    def _repr_html_(self) -> str:
        card = self.card()

        def line(kind: str, cells: Sequence[str]) -> str:
            found = [
                f'<{kind} style="text-align:{side};padding:0 .5em">{escape(cell)}</{kind}>'
                for side, cell in zip(["left"] + ["right"] * len(cells), cells, strict=False)
            ]
            return f"<tr>{''.join(found)}</tr>"

        body = "".join(line("td", row) for row in card.rows)
        notes = "".join(f"<div><small>{escape(note)}</small></div>" for note in card.notes)
        return (
            f"<div><strong>{escape(card.title)}</strong>"
            f"<table><thead>{line('th', card.columns)}</thead><tbody>{body}</tbody></table>"
            f"{notes}</div>"
        )

    def __rich__(self) -> Group:
        from rich import box
        from rich.console import Group
        from rich.table import Table
        from rich.text import Text

        card = self.card()
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
        for i, name in enumerate(card.columns):
            table.add_column(Text(name), justify="right" if i else "left")
        for row in card.rows:
            table.add_row(*map(Text, row))  # names may hold what rich takes for markup
        notes = [Text(note, style="dim") for note in card.notes]
        return Group(Text(card.title, style="bold"), table, *notes)


def short(value: float) -> str:
    """A number as a card shows it, four digits."""
    return f"{value:.4g}"


def thinned(count: int) -> list[int]:
    """Which of `count` rows to show: all, or `SHOWN_ROWS` of them with the first and the last."""
    if count <= SHOWN_ROWS:
        return list(range(count))
    return [round(i * (count - 1) / (SHOWN_ROWS - 1)) for i in range(SHOWN_ROWS)]
