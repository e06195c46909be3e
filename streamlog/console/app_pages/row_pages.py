"""The tables of an app: a list, and one table with its rows: by key, by prefix, by time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from streamlog.console.markup import (
    Markup,
    a,
    button,
    details,
    div,
    field,
    form,
    h1,
    joined,
    label,
    p,
    pre,
    span,
    summary,
)
from streamlog.console.pages.page_layout import View
from streamlog.console.pages.page_parts import (
    QUERY_MAX,
    Heading,
    address,
    age,
    badge,
    cut,
    heading_row,
    nothing,
    notice,
    number,
    pager,
    rows_of,
)
from streamlog.errors import quantity

ROWS_MAX: Final = 100
"""Rows of one page; a prefix or a time finds others."""


class TableLook(msgspec.Struct, frozen=True, kw_only=True):
    """A table as it is declared."""

    name: str
    partitions: int
    is_windowed: bool
    is_writable: bool


class TableRow(msgspec.Struct, frozen=True, kw_only=True):
    """A row as text."""

    key: str
    value: str
    age_ms: int | None = None
    """The age of a row that a standby has answered with."""


def tables(found: Sequence[TableLook], query: Mapping[str, str]) -> View:
    """Return the list of tables."""
    shown = cut(found, query.get("page", ""))
    columns = [
        Heading("Table"),
        Heading("Partitions", is_number=True),
        Heading("Keys"),
        Heading("Rows come from"),
    ]
    content = joined(
        heading_row(h1["Tables"]),
        rows_of(
            columns,
            [
                (
                    a(class_="name", href=address("tables", each.name))[each.name],
                    number(each.partitions),
                    badge("windowed", "info") if each.is_windowed else badge("plain", "calm"),
                    "a topic, and PUT /tables" if each.is_writable else "a computation",
                )
                for each in shown.rows
            ],
            name="Tables",
        )
        if shown.rows
        else nothing("This app keeps no table.", "Give a table or an aggregation a name="),
        pager(shown, lambda page: address("tables", page=page), "tables"),
    )
    return View(title="Tables", content=content)


def table(
    look: TableLook,
    query: Mapping[str, str],
    found: Sequence[TableRow],
    *,
    more: bool = False,
    error: str = "",
) -> View:
    """Return rows of a table.

    Args:
        look: the table.
        query: what was asked for, shown in the form as it is.
        found: the rows.
        more: whether there are others, which are not shown.
        error: why there are none.
    """
    said = f"The first {len(found)} rows." if more else f"{quantity(len(found), 'row')}."
    content = joined(
        div(class_="crumb")[a(href=address("tables"))["Tables"]],
        heading_row(h1[look.name]),
        _fields(look, query),
        notice("bad", error) if error else None,
        div(class_="records")[map(_row, found)] if found else None,
        p(class_="hint after")[said] if found else None,
        nothing("No row fits.", "Rows are those that their tasks have committed.")
        if not found and not error
        else None,
    )
    return View(title=look.name, content=content, is_live=False)


def _fields(look: TableLook, query: Mapping[str, str]) -> Markup:
    # A key of a window has its start and end as well: by a time, its rows are found without them.
    how = "at" if look.is_windowed else "key"
    title, hint = (
        ("Windows at a time", "2026-01-31T12:00:00Z")
        if look.is_windowed
        else ("Key", "exactly this key")
    )
    return form(class_="fields", method="get", action=address("tables", look.name),
                aria_label="Which rows")[
        label[span[title], field(name=how, value=query.get(how, ""), size=24, maxlength=QUERY_MAX,
                                 placeholder=hint, autocomplete="off", spellcheck="false")],
        label[span["Prefix of the key"],
              field(name="prefix", value=query.get("prefix", ""), size=16, maxlength=QUERY_MAX,
                    placeholder="any", autocomplete="off", spellcheck="false")],
        button(type="submit", class_="main")["Show"],
    ]  # fmt: skip


def _row(row: TableRow) -> Markup:
    old = None if row.age_ms is None else badge(f"{age(row.age_ms)} old", "warn")
    return details(class_="record pair")[
        summary[
            span(class_="mono", title="Key")[_line(row.key)],
            span(class_="mono", title="Value")[_line(row.value)],
        ],
        div(class_="record-body")[old, pre[row.key], pre[row.value]],
    ]


def _line(text: str) -> str:
    return " ".join(text[:480].split())[:240]
