"""The tables as Markdown, and the part of `docs/compatibility.md` that they are."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from conformance.program import FAIL, NOT_SERVED, Outcome

DOCUMENT = Path(__file__).parent.parent / "docs" / "compatibility.md"
BEGINS, ENDS = "<!-- {} begins -->\n", "<!-- {} ends -->\n"


@dataclass(frozen=True, slots=True)
class Column:
    """One client."""

    client: str
    version: str
    cells: Mapping[str, Outcome]


@dataclass(frozen=True, slots=True)
class Table:
    """One cluster."""

    cluster: str
    columns: Sequence[Column]


def table(found: Table) -> str:
    """Features down, clients across; what is not a pass is explained below."""
    names = list(dict.fromkeys(name for column in found.columns for name in column.cells))
    heads = [f"{column.client} {column.version}".strip() for column in found.columns]
    lines = [f"| | {' | '.join(heads)} |", "|---" * (len(heads) + 1) + "|"]
    for name in names:
        cells = [column.cells.get(name) for column in found.columns]
        shown = ["not tried" if cell is None else cell.result for cell in cells]
        lines.append(f"| {name} | {' | '.join(shown)} |")
    notes = _notes(found)
    return "\n".join([*lines, *(["", *notes] if notes else [])]) + "\n"


def _notes(found: Table) -> list[str]:
    notes = [
        f"- {column.client}, {cell.feature}: {cell.detail}"
        for column in found.columns
        for cell in column.cells.values()
        if cell.result == FAIL
    ]
    unserved: dict[tuple[str, str], list[str]] = {}
    for column in found.columns:
        for cell in column.cells.values():
            if cell.result == NOT_SERVED:
                unserved.setdefault((cell.feature, cell.detail), []).append(column.client)
    for (name, detail), clients in unserved.items():
        whom = "" if len(clients) == len(found.columns) else f" to {', '.join(clients)}"
        notes.append(f"- {name} is not served{whom}: {detail}")
    return notes


def write(tables: Sequence[Table]) -> Path:
    """Put the tables where the document has the old ones."""
    for found in tables:
        put(found.cluster, table(found))
    return DOCUMENT


def put(name: str, text: str) -> None:
    """Replace what stands between the two marks of this name."""
    begins, ends = BEGINS.format(name), ENDS.format(name)
    old = DOCUMENT.read_text()
    pattern = re.compile(f"{re.escape(begins)}.*?{re.escape(ends)}", re.DOTALL)
    new, count = pattern.subn(lambda _: f"{begins}{text}{ends}", old)
    if count != 1:
        raise LookupError(f"{DOCUMENT} has no place for {name}: {begins.strip()}")
    DOCUMENT.write_text(new)
