"""Parts of pages: figures in words, badges, tables, searches and pages of long lists.

Rule of the module: a list is cut before it is rendered, and the page says how many there are.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Final, Generic, Literal, TypeAlias, TypeVar
from urllib.parse import quote, urlencode

import msgspec

from streamlog.console.log_sight import LagSeries
from streamlog.console.markup import (
    Markup,
    Node,
    a,
    button,
    code,
    div,
    field,
    figcaption,
    figure,
    form,
    joined,
    label,
    nav,
    option,
    p,
    select,
    span,
    table,
    tbody,
    td,
    th,
    thead,
    tr,
)

ROOT: Final = "/console"
"""The path that all pages are below."""
ROWS: Final = 50
"""The rows of one page of a list."""
QUERY_MAX: Final = 200
"""The characters of a search that count."""
TERA: Final = 1_000.0
Tone: TypeAlias = Literal["good", "warn", "bad", "calm", "info"]
T = TypeVar("T")


def address(*parts: str, **query: str | int | None) -> str:
    """Return the path of a page below the console's; parameters that are None are left out."""
    # Unset parameters would make two addresses of one page.
    given = {name: value for name, value in query.items() if value is not None}
    path = "/".join([ROOT, *(quote(each, safe="") for each in parts or ("",))])
    return f"{path}?{urlencode(given)}" if given else path


# ---- figures in words ----


def number(value: float | None) -> str:
    """Return a number with its thousands apart; a dash if it is not known."""
    if value is None:
        return "—"
    return f"{value:,.0f}" if isinstance(value, int) or abs(value) >= 100 else f"{value:.3g}"  # noqa: PLR2004 - three digits either way


def short_number(value: float | None) -> str:
    """Return a number in thousands, millions or more, with three digits."""
    if value is None:
        return "—"
    for unit in ("", "k", "M", "G"):
        if abs(value) < TERA:
            return f"{value:.3g}{unit}"
        value /= TERA
    return f"{value:,.0f}T"


def rate(value: float | None) -> str:
    """Return a rate of records."""
    return "—" if value is None else f"{short_number(value)}/s"


def age(ms: float | None) -> str:
    """Return a time span in its two largest units."""
    if ms is None:
        return "—"
    if math.isinf(ms):
        return "never"
    if ms < 1_000:  # noqa: PLR2004 - a second
        return f"{ms:.0f} ms"
    seconds = ms / 1_000
    if seconds < 60:  # noqa: PLR2004 - a minute
        return f"{seconds:.1f} s"
    for unit_s, unit, part_s, part in (
        (86_400, "d", 3_600, "h"),
        (3_600, "h", 60, "min"),
        (60, "min", 1, "s"),
    ):
        if seconds >= unit_s:
            whole, rest = divmod(int(seconds), unit_s)
            more = rest // part_s
            return f"{whole} {unit} {more} {part}" if more else f"{whole} {unit}"
    return f"{seconds:.0f} s"


def moment(ms: int) -> str:
    """Return a time as ISO 8601 in UTC, to the millisecond; the number if no calendar has it."""
    try:
        found = datetime.fromtimestamp(ms / 1_000, UTC)
    except (ValueError, OverflowError, OSError):
        return f"{ms} ms"
    return found.strftime("%Y-%m-%d %H:%M:%S.") + f"{ms % 1_000:03d}"


# ---- small things ----


def badge(text: str, tone: Tone) -> Markup:
    """Return a word with a colour that repeats, and never replaces, its meaning."""
    return span(class_=f"badge {tone}")[text]


def tile(name: str, value: Node, hint: Node = None, tone: Tone = "calm") -> Markup:
    """Return a figure in large type."""
    return div(class_=f"tile {tone}")[
        div(class_="tile-name")[name],
        div(class_="tile-value")[value],
        None if hint is None else div(class_="tile-hint")[hint],
    ]


def tiles(*shown: Node) -> Markup:
    """Return figures beside each other."""
    return div(class_="tiles")[shown]


READS_ONLY: Final = "You may read, but not make changes: an operator can do this."


def command_line(command: str) -> Markup:
    """Return a command with a button that copies it."""
    return div(class_="command")[
        code[command],
        button(type="button", class_="copy", data_copy=command, aria_label="Copy the command")[
            "Copy"
        ],
    ]


def nothing(text: str, hint: Node = None) -> Markup:
    """Return what stands where a list has no row."""
    return div(class_="nothing")[p[text], None if hint is None else p(class_="hint")[hint]]


def notice(tone: Tone, *content: Node) -> Markup:
    """Return a sentence that one must not miss."""
    return div(class_=f"notice {tone}", role="alert" if tone == "bad" else "status")[content]


def meter(share: float, text: str, tone: Tone = "info") -> Markup:
    """Return a bar for a share from 0 to 1. Its width is one of 21 classes: no style is inline."""
    # Twenty steps are as fine as a bar of this width can show.
    step = max(0, min(20, round(share * 20)))
    return span(class_=f"meter {tone} w{step}", role="img", aria_label=text)[span]


# ---- charts ----


def lag_charts(series: LagSeries) -> Markup:
    """Return a lag over time, in time and in records."""
    if len(series.times_s) < 2:  # noqa: PLR2004 - a line has two ends
        return p(class_="hint")["The lag over time appears here within a minute."]
    return div(class_="charts")[
        _chart("Lag in time", series.times_s, series.ages_ms, "ms"),
        _chart("Records behind", series.times_s, series.records, "records"),
    ]


def _chart(
    title: str, times_s: Sequence[float], values: Sequence[float | None], unit: str
) -> Markup:
    series = json.dumps({"data": [times_s, values], "series": [title], "unit": unit})
    return figure(class_="chart")[
        figcaption[title], div(data_chart=series, role="img", aria_label=f"{title}, over time")
    ]


# ---- tables ----


class Heading(msgspec.Struct, frozen=True):
    """A column of a table."""

    title: str
    is_number: bool = False
    sort: str = ""
    """The word by which it is sorted; empty: it is not."""


def rows_of(
    columns: Sequence[Heading],
    rows: Iterable[Sequence[Node]],
    *,
    name: str,
    sorting: tuple[Order, Callable[[str], str]] | None = None,
) -> Markup:
    """Return a table.

    Args:
        columns: its columns.
        rows: a cell for each column.
        name: what it lists, for those who don't see it.
        sorting: how it is sorted, and what returns the address of the page sorted by a word.
    """

    def heading(column: Heading) -> Markup:
        kind = "number" if column.is_number else None
        if not column.sort or sorting is None:
            return th(scope="col", class_=kind)[column.title]
        order, link = sorting
        # Sorted on the server, so that all pages are in one order and not each on its own.
        is_by = order.by == column.sort
        # A second click turns the order around.
        word = f"-{column.sort}" if is_by and not order.is_down else column.sort
        sorted_as = ("descending" if order.is_down else "ascending") if is_by else None
        mark = (" ↓" if order.is_down else " ↑") if is_by else ""
        return th(scope="col", class_=kind, aria_sort=sorted_as)[
            a(href=link(word))[f"{column.title}{mark}"]
        ]

    def line(cells: Sequence[Node]) -> Markup:
        return tr[
            (
                td(class_="number" if column.is_number else None, data_title=column.title)[cell]
                for column, cell in zip(columns, cells, strict=True)
            )
        ]

    return div(class_="scroll", tabindex=0, role="region", aria_label=name)[
        table[thead[tr[map(heading, columns)]], tbody[map(line, rows)]]
    ]


class Order(msgspec.Struct, frozen=True):
    """How a list is sorted."""

    by: str
    is_down: bool = False

    @classmethod
    def of(cls, text: str, known: Iterable[str], default: str) -> Order:
        """Return the order that a word such as `name` or `-lag` means."""
        word = text if text.removeprefix("-") in {*known} else default
        return cls(word.removeprefix("-"), word.startswith("-"))

    @property
    def word(self) -> str:
        """The word for it."""
        return f"-{self.by}" if self.is_down else self.by


class ListPage(msgspec.Struct, Generic[T], frozen=True):
    """One page of a list."""

    rows: tuple[T, ...]
    page: int
    """Its number, from 1 on."""
    pages: int
    total: int
    """The rows of all pages."""


def cut(rows: Sequence[T], page: str, size: int = ROWS) -> ListPage[T]:
    """Return a page of a list; a number that it lacks becomes the nearest."""
    pages = max(1, -(-len(rows) // size))
    # Digits of other scripts are decimal as well, and a long number costs time.
    asked = int(page) if page.isascii() and page.isdecimal() and len(page) < 10 else 1  # noqa: PLR2004 - ten digits are no page
    # A list that has become shorter still has a last page for those on a later one.
    at = max(1, min(asked, pages))
    return ListPage(tuple(rows[(at - 1) * size : at * size]), at, pages, len(rows))


def pager(shown: ListPage[T], link: Callable[[int], str], what: str) -> Node:
    """Return the way to the other pages of a list, and how many rows there are; None if none."""
    if not shown.total:
        return None
    begin = (shown.page - 1) * ROWS + 1
    said = span(class_="hint")[
        f"{begin:,} to {begin + len(shown.rows) - 1:,} of {shown.total:,} {what}"
        if shown.pages > 1
        else f"{shown.total:,} {what if shown.total != 1 else what.removesuffix('s')}"
    ]

    def step(text: str, page: int) -> Markup:
        if not 1 <= page <= shown.pages:
            return span(class_="button off", aria_hidden="true")[text]
        return a(class_="button", href=link(page))[text]

    # A single page has no neighbours, and so is no place to navigate.
    if shown.pages == 1:
        return div(class_="pager")[said]
    return nav(class_="pager", aria_label="Pages of the list")[
        said, step("← Previous", shown.page - 1), step("Next →", shown.page + 1)
    ]


def search(
    action: str, value: str, hint: str, kept: Mapping[str, str], more: Node = None
) -> Markup:
    """Return a search field; `kept` are parameters that stay as they are."""
    return form(class_="search", method="get", action=action, role="search")[
        (field(type="hidden", name=name, value=given) for name, given in kept.items()),
        field(type="search", name="q", value=value, placeholder=hint, aria_label=hint,
              maxlength=QUERY_MAX),
        more,
        button(type="submit")["Search"],
    ]  # fmt: skip


class Listing(msgspec.Struct, Generic[T], frozen=True, kw_only=True):
    """A list with a search, for lists that are read whole."""

    noun: str
    """What it lists, in the plural."""
    path: tuple[str, ...]
    """The parts of its page's address."""
    columns: Sequence[Heading]
    row: Callable[[T], Sequence[Node]]
    text: Callable[[T], str]
    """What a search looks into."""
    empty: tuple[str, str]
    """That there is none, and how one comes to be."""

    def shown(self, found: Sequence[T], query: Mapping[str, str]) -> Markup:
        """Return one page of those that contain the words of a search."""
        if not found:
            return nothing(*self.empty)
        words = query.get("q", "")
        matching = [each for each in found if words.casefold() in self.text(each).casefold()]
        page = cut(matching, query.get("page", ""))
        return joined(
            search(address(*self.path), words, f"Search {self.noun}", {}),
            # Not `capitalize`, which makes "Acls" of ACLs.
            rows_of(
                self.columns, map(self.row, page.rows), name=self.noun[0].upper() + self.noun[1:]
            )
            if page.rows
            else nothing("Nothing contains this."),
            pager(page, lambda at: address(*self.path, q=words or None, page=at), self.noun),
        )


def choice(name: str, title: str, options: Mapping[str, str], chosen: str) -> Markup:
    """Return a menu with its name; `options` has values with their texts."""
    return label(class_="choice")[
        span[title],
        select(name=name)[
            (option(value=value, selected=value == chosen)[text] for value, text in options.items())
        ],
    ]


def heading_row(title: Node, *more: Node) -> Markup:
    """Return the first line of a page."""
    return div(class_="title-row")[title, div(class_="title-more")[more] if more else None]


def lines_of(*content: Node) -> Markup:
    """Return nodes one after another."""
    return joined(*content)
