"""The messages of a topic: newest, oldest, from an offset or a time, by key, filtered, or live.

Rule of the module: what a record holds is text on the page, whatever it looks like.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal, TypeAlias, cast, get_args

import msgspec

from streamlog.console.markup import (
    Markup,
    Node,
    a,
    button,
    dd,
    details,
    div,
    dl,
    dt,
    em,
    field,
    form,
    h3,
    joined,
    label,
    pre,
    section,
    span,
    summary,
)
from streamlog.console.pages.page_layout import View
from streamlog.console.pages.page_parts import (
    QUERY_MAX,
    address,
    badge,
    choice,
    moment,
    nothing,
    notice,
    number,
)
from streamlog.console.pages.topic_pages import topic_tabs
from streamlog.console.record_filter import EXAMPLE, TEXT_MAX, RecordFilter
from streamlog.console.shown_records import FORMS, Form, ShownBytes, ShownRecord
from streamlog.durations import when_ms
from streamlog.errors import ConfigError, UsageError

Begin: TypeAlias = Literal["newest", "oldest", "offset", "time"]
BEGINS: Final[Mapping[str, str]] = {
    "newest": "Newest",
    "oldest": "Oldest",
    "offset": "From an offset",
    "time": "From a time",
}
_FORM_NAMES: Final[Mapping[str, str]] = {
    "auto": "Automatic", "json": "JSON", "text": "Text", "hex": "Hex",
}  # fmt: skip
OFFSET_DIGITS_MAX: Final = 18
PARTITION_DIGITS_MAX: Final = 9


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """What an operator asks for."""

    partition: int | None = None
    """None: all of them."""
    begin: Begin = "newest"
    offset: int = 0
    time_ms: int = 0
    key: str = ""
    condition: str = ""
    form: Form = "auto"
    is_live: bool = False
    at: str = ""
    """The offset or the time, as it was typed."""


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """What was found."""

    records: tuple[ShownRecord, ...]
    """In the order in which they are shown."""
    scanned: int = 0
    stopped: str = ""
    """Why the search ended before the end of the log; empty if it did not."""
    following: tuple[int, int] | None = None
    """The partition and the offset at which a search of one partition continues."""


def asked_of(query: Mapping[str, str]) -> Asked:
    """Return what the parameters of an address ask for.

    Raises:
        UsageError: an offset, a time, a partition or the filter is malformed.
    """
    # Everything comes from the address, so that a page can be sent to a colleague.
    begin, at = query.get("begin", "newest"), query.get("at", "").strip()[:QUERY_MAX]
    if begin not in get_args(Begin):
        raise UsageError(f"begin is one of {', '.join(get_args(Begin))}, not {begin[:40]!r}")
    shown_as = query.get("as", "auto")
    if shown_as not in FORMS:
        raise UsageError(f"as is one of {', '.join(FORMS)}, not {shown_as[:40]!r}")
    condition = query.get("q", "")
    # Parsed here already, so that a mistake in it is shown beside the form.
    RecordFilter(condition)
    partition = query.get("partition", "").strip()
    return Asked(
        partition=_whole(partition, "partition", PARTITION_DIGITS_MAX) if partition else None,
        begin=cast("Begin", begin),
        offset=_whole(at, "offset", OFFSET_DIGITS_MAX) if begin == "offset" else 0,
        time_ms=time_of(at) if begin == "time" else 0,
        key=query.get("key", ""),
        condition=condition,
        form=shown_as,
        is_live=query.get("live") == "1",
        at=at,
    )


def _whole(text: str, what: str, digits: int) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) <= digits):
        raise UsageError(f"the {what} is a whole number from 0 on, not {text[:40]!r}")
    return int(text)


def time_of(text: str) -> int:
    """Return the time that a form names, in milliseconds since 1970.

    Raises:
        UsageError: the text is no time.
    """
    if text.isascii() and text.isdecimal() and len(text) <= OFFSET_DIGITS_MAX:
        return int(text)
    # Without a zone, a time is in UTC, as all times on these pages are.
    for attempt in (text, f"{text}Z", f"{text}T00:00:00Z"):
        try:
            found_ms = when_ms(attempt)
        except ConfigError:
            continue
        # In Kafka's protocol, -1 stands for the end of the log, and -2 for its beginning.
        if found_ms >= 0:
            return found_ms
    raise UsageError(
        f"the time is like 2026-01-31T12:00:00, in UTC without a zone, or in milliseconds since"
        f" 1970, not {text[:40]!r}"
    )


def messages(topic: str, query: Mapping[str, str], found: Found | None, *, error: str = "") -> View:
    """Return the page.

    Args:
        topic: the topic.
        query: the parameters of the address, shown in the form as they are.
        found: the records; None if there was an error, or nothing came yet.
        error: what was wrong with the question, or why the log does not answer.
    """
    is_live = query.get("live") == "1"
    body: list[Node] = []
    if error:
        body.append(notice("bad", error))
    if found is not None:
        body.append(_result(topic, query, found, is_live=is_live))
    content = joined(topic_tabs(topic, "messages"), _form(topic, query), *body)
    return View(title=f"Messages of {topic}", content=content, is_live=is_live)


def _form(topic: str, query: Mapping[str, str]) -> Markup:
    here = address("topics", topic, "messages")
    begin = query.get("begin", "newest")
    live = query.get("live") == "1"
    return form(class_="fields", method="get", action=here, aria_label="Which messages")[
        choice("begin", "Begin", BEGINS, begin),
        label[span["Offset or time"],
              field(name="at", value=query.get("at", ""), size=20, maxlength=QUERY_MAX,
                    placeholder="2026-01-31T12:00:00", autocomplete="off")],
        label[span["Partition"],
              field(name="partition", value=query.get("partition", ""), size=6, inputmode="numeric",
                    placeholder="all", autocomplete="off")],
        label[span["Key"],
              field(name="key", value=query.get("key", ""), size=14, maxlength=TEXT_MAX,
                    placeholder="any", autocomplete="off")],
        choice("as", "Show as", _FORM_NAMES, query.get("as", "auto")),
        label(class_="wide")[
            span["Filter"],
            field(name="q", value=query.get("q", ""), maxlength=TEXT_MAX, placeholder=EXAMPLE,
                  class_="mono", autocomplete="off", spellcheck="false"),
        ],
        button(type="submit", class_="main")["Show"],
        button(type="submit", name="live", value="1", aria_pressed="true" if live else "false")[
            "Follow live"
        ],
    ]  # fmt: skip


def _result(topic: str, query: Mapping[str, str], found: Found, *, is_live: bool) -> Markup:
    if not found.records:
        waiting = "Waiting for the next record." if is_live else "No record matches."
        return joined(nothing(waiting, _scanned(found)))
    more = None
    if found.following is not None and not is_live:
        # From a fixed offset: "newest" would be another page by the time it is opened.
        partition, offset = found.following
        kept = {
            name: value for name, value in query.items() if name in {"key", "q", "as"} and value
        }
        more = a(
            class_="button",
            href=address("topics", topic, "messages", **kept, partition=partition,
                         begin="offset", at=offset),
        )["Next →"]  # fmt: skip
    return joined(
        div(class_="records")[
            # The link of a record leads to a page that begins with it, opened.
            (
                _record(topic, each, is_open=query.get("open") == "1" and at == 0)
                for at, each in enumerate(found.records)
            )
        ],
        div(class_="pager")[span(class_="hint")[_scanned(found)], more],
    )


def _scanned(found: Found) -> str:
    said = f"{len(found.records):,} shown, {found.scanned:,} read"
    return f"{said}; {found.stopped}" if found.stopped else said


def _record(topic: str, record: ShownRecord, *, is_open: bool) -> Markup:
    # Partition and offset are the only name that a record has.
    where = f"{record.partition}:{record.offset}"
    # The id lets an update find the record again, so that an open one stays open.
    return details(class_="record", id=f"r-{record.partition}-{record.offset}",
                   open=is_open)[
        summary[
            span(class_="at mono")[where],
            span(class_="at")[moment(record.timestamp_ms)],
            span(class_="mono", title="Key")[_short(record.key)],
            span(class_="mono", title="Value")[_short(record.value)],
        ],
        div(class_="record-body")[
            dl(class_="facts")[
                dt["Partition, offset"],
                dd[a(href=address("topics", topic, "messages", partition=record.partition,
                                  begin="offset", at=record.offset, open=1))[where]],
                dt["Time"],
                dd[f"{moment(record.timestamp_ms)} UTC"],
                dt["Read by"],
                dd[a(href=address("topics", topic, "groups", partition=record.partition,
                                  offset=record.offset))["Groups that have read it, or not yet"]],
            ],
            _part("Key", record.key),
            _part("Value", record.value),
            _headers(record),
        ],
    ]  # fmt: skip


def _short(shown: ShownBytes) -> Node:
    if shown.kind in {"null", "empty"}:
        return em(class_="empty-value")[shown.summary]
    return shown.summary


def _part(name: str, shown: ShownBytes) -> Markup:
    if shown.kind in {"null", "empty"}:
        return section[h3[name], em(class_="empty-value")[shown.summary]]
    return section[
        h3[
            name,
            " ",
            badge(shown.kind, "calm"),
            f" {number(shown.size)} bytes",
            _schema(shown),
        ],
        pre[shown.text],
        span(class_="hint")["The rest is left out; streamlog consume prints all of it."]
        if shown.is_cut
        else None,
    ]


def _schema(shown: ShownBytes) -> Node:
    if shown.schema_id is None:
        return None
    # An id that no registry knows is likely chance: any bytes may begin like a frame.
    name = f"schema {shown.schema_id}"
    if not shown.is_decoded:
        return [" ", badge(f"{name}, not read", "calm")]
    return [" ", a(class_="badge info", href=address("schemas", id=shown.schema_id))[name]]


def _headers(record: ShownRecord) -> Node:
    if not record.headers:
        return None
    return section[
        h3["Headers"],
        dl(class_="facts")[
            ([dt(class_="mono")[name], dd(class_="mono")[_short(shown)]]
             for name, shown in record.headers)
        ],
        span(class_="hint")[f"{record.more_headers} more headers"] if record.more_headers else None,
    ]  # fmt: skip
