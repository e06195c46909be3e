"""The histories of an app: a list, and one job with its plan, its progress and its comparisons.

They are started, compared and handed over on the command line, which the pages name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from streamlog.console.markup import (
    Markup,
    Node,
    a,
    details,
    div,
    h1,
    h2,
    joined,
    p,
    pre,
    span,
    summary,
)
from streamlog.console.pages.page_layout import View
from streamlog.console.pages.page_parts import (
    Heading,
    Listing,
    Tone,
    address,
    age,
    badge,
    command_line,
    cut,
    heading_row,
    meter,
    moment,
    nothing,
    notice,
    number,
    pager,
    rows_of,
    tile,
    tiles,
)
from streamlog.snapshots.job_notes import ComparisonNote, JobNote

SILENT_MS: Final = 60_000
"""A job that has noted nothing for this long is shown as silent."""
OUTPUTS: Final[Mapping[str, str]] = {
    "discard": "discarded", "stage": "staged", "publish": "published",
}  # fmt: skip


class HandOverRow(msgspec.Struct, frozen=True):
    """A hand-over of a job's snapshot."""

    app_id: str
    """The app, or the version of it, that continues from the snapshot."""
    at_ms: int


class JobLook(msgspec.Struct, frozen=True):
    """A job with what came of it."""

    note: JobNote
    now_ms: int
    hand_overs: tuple[HandOverRow, ...] = ()
    comparisons: tuple[ComparisonNote, ...] = ()

    @property
    def is_silent(self) -> bool:
        """Whether a job that has not ended notes nothing more."""
        return self.note.state == "running" and self.now_ms - self.note.at_ms > SILENT_MS

    @property
    def share(self) -> float:
        """The share of the log that was read."""
        # What compaction or a cut leaves out is never read: a job that is done has read all.
        if self.note.state == "done":
            return 1.0
        return min(1.0, self.note.read / self.note.total) if self.note.total else 0.0

    @property
    def state(self) -> tuple[str, Tone]:
        """Its state in words."""
        if self.is_silent:
            return f"no news for {age(self.now_ms - self.note.at_ms)}", "warn"
        tones: dict[str, Tone] = {"running": "info", "done": "good", "failed": "bad"}
        return self.note.state, tones[self.note.state]


def histories(found: Sequence[JobLook], query: Mapping[str, str], where: str) -> View:
    """Return the list, the newest job first; `where` is the directory of the snapshots."""
    listing: Listing[JobLook] = Listing(
        noun="jobs",
        path=("history",),
        columns=[
            Heading("Job"), Heading("State"), Heading("Began (UTC)"), Heading("Engine"),
            Heading("Read"), Heading("Rows"), Heading("Handed over to"),
        ],
        row=_row,
        text=lambda each: each.note.id,
        empty=(
            "No history of this app has run yet.",
            "Run one: streamlog -A MODULE backfill --outputs stage",
        ),
    )  # fmt: skip
    content = joined(
        heading_row(h1["Histories"]),
        p(class_="hint")[f"Jobs whose snapshots are in {where}."],
        listing.shown(found, query),
    )
    return View(title="Histories", content=content)


def _row(job: JobLook) -> tuple[Node, ...]:
    note = job.note
    return (
        a(class_="name", href=address("history", note.id))[note.id],
        badge(*job.state),
        span(class_="nowrap")[moment(note.began_ms)[:19]],
        note.engine,
        _read(job.share),
        OUTPUTS.get(note.outputs, note.outputs),
        ", ".join(each.app_id for each in job.hand_overs) or "—",
    )


def _read(share: float) -> Node:
    return span(class_="nowrap")[f"{share:.0%}", meter(share, f"{share:.0%} read")]


def history(job: JobLook | None, name: str, query: Mapping[str, str]) -> View:
    """Return the page of one job; None: there is no note of it."""
    crumb = div(class_="crumb")[a(href=address("history"))["Histories"]]
    if job is None:
        missing = nothing("There is no history of this name.", "Its notes may have been removed.")
        content = joined(crumb, heading_row(h1[name]), missing)
        return View(title=name, content=content, status=404)
    note, (state, tone) = job.note, job.state
    took_ms = note.at_ms - note.began_ms
    content = joined(
        crumb,
        heading_row(h1[name]),
        notice("bad", note.error) if note.error else None,
        notice("warn", "The job has noted nothing for a while: its process may have ended.")
        if job.is_silent
        else None,
        tiles(
            tile("State", state.capitalize(), f"after {age(took_ms)}", tone),
            tile("Read", f"{job.share:.0%}",
                 f"{number(note.read)} records of {number(note.total)} offsets"),
            tile("Rows", number(sum(note.rows.values())) if note.state == "done" else "—",
                 OUTPUTS.get(note.outputs)),
            tile("Dropped", number(note.dropped) if note.state == "done" else "—", "records"),
        ),
        _next(job),
        _partitions(note, query),
        _rows(note),
        _comparisons(job.comparisons),
        _hand_overs(job.hand_overs),
        h2["Plan"],
        pre(class_="code", tabindex=0, aria_label="The plan")[note.plan],
    )  # fmt: skip
    return View(title=name, content=content)


def _next(job: JobLook) -> Node:
    """Return the commands that make something of a job."""
    note = job.note
    if note.state != "done" or note.outputs == "publish":
        return None
    topic = next(iter(sorted(note.rows)), "TOPIC")
    compare = f"streamlog -A MODULE compare {note.id} {topic}"
    return joined(
        command_line(compare) if note.outputs == "stage" else None,
        command_line(f"streamlog -A MODULE hand-over {note.id}"),
    )


def _partitions(note: JobNote, query: Mapping[str, str]) -> Node:
    if not note.partitions:
        return None
    shown = cut(note.partitions, query.get("page", ""))
    # A compacted log has fewer records than offsets: what was read of a job that is done is all.
    rows = [
        (
            a(class_="name", href=address("topics", each.topic, "partitions"))[
                f"{each.topic}-{each.partition}"
            ],
            number(each.read),
            number(each.total),
            _read(min(1.0, each.read / each.total) if each.total else 1.0),
        )
        for each in shown.rows
    ]
    columns = [
        Heading("Partition"), Heading("Records", is_number=True),
        Heading("Offsets", is_number=True), Heading("Read"),
    ]  # fmt: skip
    return joined(
        h2["Progress"],
        rows_of(columns, rows, name="Progress"),
        pager(shown, lambda page: address("history", note.id, page=page), "partitions"),
    )


def _rows(note: JobNote) -> Node:
    if not note.rows:
        return None
    columns = [Heading("Topic"), Heading("Rows", is_number=True)]
    found = [(topic, number(count)) for topic, count in sorted(note.rows.items())[:500]]
    return joined(h2["Rows, by topic"], rows_of(columns, found, name="Rows"))


def _comparisons(found: Sequence[ComparisonNote]) -> Node:
    if not found:
        return None
    return joined(h2["Compared with the log"], map(_comparison, found))


def _comparison(each: ComparisonNote) -> Markup:
    said = badge("equal", "good") if each.is_equal else badge("different", "bad")
    return details[
        summary[said, f" {each.topic}, {moment(each.at_ms)[:19]} UTC"],
        pre(class_="code", tabindex=0, aria_label=f"Comparison of {each.topic}")[each.report],
    ]


def _hand_overs(found: Sequence[HandOverRow]) -> Node:
    if not found:
        return None
    columns = [Heading("To"), Heading("Time (UTC)")]
    rows = [(each.app_id, moment(each.at_ms)[:19]) for each in found]
    return joined(h2["Hand-overs"], rows_of(columns, rows, name="Hand-overs"))
