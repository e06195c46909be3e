"""Late and dead records: what nodes have dropped, and dead letters to read, mend and send again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from streamlog.console.app_pages.app_sight import AppSight
from streamlog.console.markup import (
    Markup,
    Node,
    a,
    button,
    code,
    dd,
    div,
    dl,
    dt,
    field,
    form,
    h1,
    h2,
    joined,
    label,
    p,
    pre,
    span,
    textarea,
)
from streamlog.console.pages.page_layout import View
from streamlog.console.pages.page_parts import (
    Heading,
    address,
    badge,
    cut,
    heading_row,
    moment,
    nothing,
    notice,
    number,
    pager,
    rows_of,
    search,
    tile,
    tiles,
)
from streamlog.console.shown_records import ShownBytes, ShownRecord
from streamlog.errors import UsageError, quantity

LETTERS_MAX: Final = 500
"""Letters that a page reads, and that one click sends."""
TEXT_MAX: Final = 64 * 1024
"""Characters of a value that a form can change."""
READS_ONLY: Final = "Only operators may send letters again."
FILTER_HINT: Final = 'Filter, such as headers.node == "price"'


class LetterTopic(msgspec.Struct, frozen=True, kw_only=True):
    """A topic of dead letters."""

    name: str
    offsets: int | None
    """How many it holds; None: the topic does not exist yet."""
    left: int | None
    """The letters that were not sent again."""
    is_exact: bool = True
    """Whether these were counted; otherwise they are as many at most."""

    @property
    def waiting(self) -> str:
        """The letters that were not sent again, in words."""
        return f"{'' if self.is_exact else 'up to '}{number(self.left)}"


class Letter(msgspec.Struct, frozen=True, kw_only=True):
    """A dead letter as text."""

    record: ShownRecord
    topic: str
    """The topic that the record comes from."""
    partition: int
    """-1: its topic never took it."""
    offset: int
    node: str
    exception: str
    message: str
    attempts: str
    trace: str = ""
    """Where the error arose; empty if that is not known."""
    is_internal: bool = False
    """Whether only the app may write such a record."""
    is_sent: bool = False
    """Whether it was sent again."""

    @property
    def position(self) -> str:
        """Its partition and offset among the letters."""
        return f"{self.record.partition}:{self.record.offset}"


def late_and_dead(
    sight: AppSight, drops: Mapping[tuple[str, str], int], found: Sequence[LetterTopic]
) -> View:
    """Return the first page: what nodes have dropped, and the topics of dead letters.

    Args:
        sight: the worker.
        drops: node and reason to the number of records.
        found: the topics.
    """
    # Late is not dropped: a node may send late records to a topic of their own.
    late = {node: each.late for node, each in sight.nodes.items() if each.late}
    content = joined(
        heading_row(h1["Late and dead records"]),
        tiles(
            tile("Late", number(sum(late.values())), "records, wherever they went",
                 "warn" if late else "calm"),
            tile("Dropped", number(sum(drops.values())), "records, since this worker began",
                 "warn" if drops else "calm"),
            tile("Dead letters", _left(found), "not sent again",
                 "warn" if any(each.left for each in found) else "calm"),
        ),
        h2["Dropped, by node and reason"],
        rows_of(
            [Heading("Node"), Heading("Reason"), Heading("Records", is_number=True)],
            [
                (a(class_="name", href=address("topology", "nodes", node))[node], reason,
                 number(count))
                for (node, reason), count in sorted(drops.items(), key=lambda pair: -pair[1])[:200]
            ],
            name="Dropped records",
        )
        if drops
        else nothing("No record was dropped by this worker."),
        _late(late) if late else None,
        h2["Dead-letter topics"],
        rows_of(
            [Heading("Topic"), Heading("Offsets", is_number=True),
             Heading("Not sent again", is_number=True)],
            [
                (a(class_="name", href=address("letters", each.name))[each.name],
                 number(each.offsets), each.waiting)
                for each in found[:200]
            ],
            name="Dead-letter topics",
        )
        if found
        else nothing(
            "No node of this app writes dead letters.",
            "Declare it where a record may fail: on_error=on_error.dlq()",
        ),
    )  # fmt: skip
    return View(title="Late and dead records", content=content)


def _left(found: Sequence[LetterTopic]) -> str:
    about = "" if all(each.is_exact for each in found) else "up to "
    return f"{about}{number(sum(each.left or 0 for each in found))}"


def _late(late: Mapping[str, int]) -> Markup:
    rows = [
        (a(class_="name", href=address("topology", "nodes", node))[node], number(count))
        for node, count in sorted(late.items(), key=lambda pair: -pair[1])[:200]
    ]
    columns = [Heading("Node"), Heading("Late records", is_number=True)]
    return joined(h2["Late, by node"], rows_of(columns, rows, name="Late records"))


def letters(
    topic: str,
    found: Sequence[Letter],
    query: Mapping[str, str],
    token: str | None,
    *,
    more: bool = False,
    error: str = "",
    done: str = "",
) -> View:
    """Return the letters of a topic that fit a filter.

    Args:
        topic: the topic of the letters.
        found: those that fit, oldest first.
        query: the parameters of the address.
        token: for the form that sends them; None if the user may only read.
        more: whether the topic has further letters, which were not read.
        error: why a filter or a change was refused.
        done: what was sent.
    """
    shown = cut(found, query.get("page", ""))
    words, with_sent = query.get("q", ""), query.get("sent") == "1"
    kept = {"q": words or None, "sent": "1" if with_sent else None}
    check = label(class_="check")[
        field(type="checkbox", name="sent", value="1", checked=with_sent), "Those sent again, too"
    ]
    content = joined(
        _crumb(),
        heading_row(h1[topic]),
        notice("bad", error) if error else None,
        notice("good", done) if done else None,
        search(address("letters", topic), words, FILTER_HINT, {}, check),
        p(class_="hint")[
            "A filter is a condition as on the page of messages; headers.node, headers.error,"
            " headers.message and headers.topic are those of the letter."
        ],
        notice("info", f"The first {LETTERS_MAX} letters are read; sent ones leave room for more.")
        if more
        else None,
        rows_of(_HEADINGS, [_row(topic, each) for each in shown.rows], name="Dead letters")
        if shown.rows
        else nothing("No letter fits."),
        pager(shown, lambda page: address("letters", topic, **kept, page=page), "letters"),
        _send_all(topic, found, token),
    )
    return View(title=f"Letters of {topic}", content=content, is_live=False)


_HEADINGS: Final = (
    Heading("Letter"), Heading("Time (UTC)"), Heading("Comes from"), Heading("Node"),
    Heading("Error"), Heading("Key"), Heading("State"),
)  # fmt: skip


def _row(topic: str, letter: Letter) -> tuple[Node, ...]:
    where = address("letters", topic, str(letter.record.partition), str(letter.record.offset))
    return (
        a(class_="name", href=where)[letter.position],
        span(class_="nowrap")[moment(letter.record.timestamp_ms)[:19]],
        f"{letter.topic}-{letter.partition}:{letter.offset}",
        letter.node,
        [code[letter.exception], f" {letter.message[:120]}"],
        code[letter.record.key.summary[:60]],
        _state(letter),
    )


def _state(letter: Letter) -> Markup:
    if letter.is_sent:
        return badge("sent again", "good")
    return badge("internal", "calm") if letter.is_internal else badge("waits", "warn")


def _send_all(topic: str, found: Sequence[Letter], token: str | None) -> Node:
    # What was sent is done, and what is internal is the app's alone.
    can_go = [each for each in found if not each.is_sent and not each.is_internal]
    if not can_go:
        return None
    if token is None:
        return p(class_="hint after")[READS_ONLY]
    # The letters themselves, and not the filter: what is sent is what was looked at.
    chosen = [(each.record.partition, each.record.offset) for each in can_go]
    return joined(
        h2["Send them again"],
        p(class_="hint")[
            "Each record goes to the partition that it came from, once, in one transaction."
        ],
        form(class_="fields", method="post", action=address("letters", topic, "send"),
             aria_label="Send them again")[
            field(type="hidden", name="token", value=token),
            field(type="hidden", name="letters", value=msgspec.json.encode(chosen).decode()),
            button(type="submit", class_="main")[f"Send {quantity(len(can_go), 'letter')} again"],
        ],
    )  # fmt: skip


def letter_page(
    topic: str, letter: Letter | None, value: str | None, token: str | None, *, error: str = ""
) -> View:
    """Return one letter, with a form that sends it again.

    Args:
        topic: the topic of the letters.
        letter: the letter; None: there is none at this offset.
        value: its value as a form can change it; None: it is no text, or too large.
        token: for the form; None if the user may only read.
        error: why it was not sent.
    """
    if letter is None:
        content = joined(_crumb(topic), heading_row(h1[topic]), nothing("No such letter."))
        return View(title=topic, content=content, is_live=False, status=404)
    link = address("topics", letter.topic, "messages", partition=letter.partition,
                   begin="offset", at=letter.offset, open=1)  # fmt: skip
    came = f"{letter.topic}-{letter.partition}:{letter.offset}"
    content = joined(
        _crumb(topic),
        heading_row(h1[f"Letter {letter.position}"], _state(letter)),
        notice("bad", error) if error else None,
        dl(class_="facts")[
            dt["Comes from"],
            dd[a(href=link)[came] if letter.partition >= 0 else f"{letter.topic} refused it"],
            dt["Node"], dd[letter.node],
            dt["Error"], dd[code[letter.exception], f" {letter.message}"],
            dt["Attempts"], dd[letter.attempts],
            dt["Time"], dd[f"{moment(letter.record.timestamp_ms)} UTC"],
        ],
        [h2["Stack trace"], pre(class_="code", tabindex=0, aria_label="Stack trace")[
            letter.trace[:TEXT_MAX]
        ]]
        if letter.trace
        else None,
        h2["Key"], _bytes(letter.record.key),
        h2["Value"], _bytes(letter.record.value),
        h2["Headers"],
        rows_of(
            [Heading("Header"), Heading("Value")],
            [
                (code[name], code[shown.text or shown.summary])
                for name, shown in letter.record.headers
                # It has a part of the page of its own.
                if not name.endswith(".stacktrace")
            ],
            name="Headers",
        ),
        _send_one(topic, letter, value, token),
    )  # fmt: skip
    return View(title=f"Letter {letter.position}", content=content, is_live=False)


def _bytes(shown: ShownBytes) -> Markup:
    cut_ = p(class_="hint")["The rest is left out."] if shown.is_cut else None
    return div(class_="record-body")[pre[shown.text or shown.summary], cut_]


def _send_one(topic: str, letter: Letter, value: str | None, token: str | None) -> Node:
    if letter.is_sent:
        return None
    if letter.is_internal:
        return p(class_="hint after")[
            "Only the app may write this record, which comes from inside of it: correct the app,"
            " and send the source records again."
        ]
    if token is None:
        return p(class_="hint after")[READS_ONLY]
    edit: Node = p(class_="hint")["Its value is no text, or too large to be changed here."]
    if value is not None:
        edit = label(class_="whole")[
            span["Value"],
            # Browsers drop a first line break.
            textarea(name="value", rows=10, maxlength=TEXT_MAX, class_="mono", spellcheck="false")[
                f"\n{value}"
            ],
        ]
    return joined(
        h2["Send it again"],
        form(class_="fields tall", method="post", action=address("letters", topic, "send"),
             aria_label="Send it again")[
            field(type="hidden", name="token", value=token),
            field(type="hidden", name="letters", value=_one(letter)),
            edit,
            button(type="submit", class_="main")["Send again"],
        ],
    )  # fmt: skip


def _one(letter: Letter) -> str:
    return msgspec.json.encode([(letter.record.partition, letter.record.offset)]).decode()


def _crumb(topic: str = "") -> Markup:
    return div(class_="crumb")[
        a(href=address("letters"))["Late and dead"],
        [" / ", a(href=address("letters", topic))[topic]] if topic else None,
    ]


def chosen_of(text: str) -> list[tuple[int, int]]:
    """Return the partitions and offsets that a form carries.

    Raises:
        UsageError: the text is none that a page of this console made.
    """
    try:
        # Strictly by its types: the text was in a browser, and may be anything by now.
        rows = msgspec.json.decode(text, type=list[tuple[int, int]])
    except msgspec.MsgspecError as error:
        raise UsageError("the form names no letters: open the page again") from error
    fit = all(0 <= part < 2**31 and 0 <= offset < 2**63 for part, offset in rows)
    if not rows or len(rows) > LETTERS_MAX or not fit:
        raise UsageError("the form names letters that no page shows: open the page again")
    return rows
