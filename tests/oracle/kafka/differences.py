"""Where streamlog means something else than Kafka Streams, and the paragraph that says so.

Differences explain a case only if the two agree once these are taken away, out of the rows or by
leaving out inputs: another fault in the same case is not covered by them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Final, NamedTuple

from tests.golden.compare import Case, Row, differing
from tests.golden.runners import run_on_driver
from tests.oracle.kafka.runner import KafkaStreams

Rows = Sequence[Row]


def as_they_are(rows: Rows) -> Rows:
    """No change."""
    return rows


def as_it_is(case: Case) -> Case:
    """No change."""
    return case


class Difference(NamedTuple):
    """A difference that stands."""

    page: str
    """The page of the documentation that owns it, the heading, and what it says."""
    kinds: tuple[str, ...]
    """How the kinds of operators begin that have it."""
    in_rows: Callable[[Rows], Rows] = as_they_are
    """Takes it out of the rows of both."""
    in_case: Callable[[Case], Case] = as_it_is
    """Changes the inputs so that it can't be seen any more."""


@dataclass(frozen=True)
class Trial:
    """A case that both have run."""

    kind: str
    case: Case
    ours: Rows
    theirs: Rows
    streams: KafkaStreams

    def agrees(self, differences: Sequence[Difference]) -> bool:
        """Whether both write the same once some differences are taken away."""
        ours, theirs, case = self.ours, self.theirs, self.case
        for each in differences:
            case = each.in_case(case)
        if case is not self.case:
            ours, theirs = run_on_driver(case), self.streams.rows(case)
        for each in differences:
            ours, theirs = each.in_rows(ours), each.in_rows(theirs)
        return differing(self.case["expect"]["min_order"], theirs, ours) is None


def explanation(trial: Trial) -> str | None:
    """The stated differences that a case falls under, as few as possible."""
    own = [each for each in DIFFERENCES if trial.kind.startswith(each.kinds)]
    sets = (chosen for size in range(1, len(own) + 1) for chosen in combinations(own, size))
    found = next((chosen for chosen in sets if trial.agrees(chosen)), None)
    return None if found is None else " + ".join(each.page for each in found)


def without_absent_tombstones(rows: Rows) -> list[Row]:
    """Rows without deletions of what was not there."""
    present: set[object] = set()
    kept = []
    for row in rows:
        if row.value is not None:
            present.add(row.place)
        elif row.place not in present:
            continue
        else:
            present.discard(row.place)
        kept.append(row)
    return kept


def last_of_each_input(rows: Rows) -> list[Row]:
    """Of each place the last row that follows from an input."""
    last = {(row.place, row.after): at for at, row in enumerate(rows)}
    return [row for at, row in enumerate(rows) if last[row.place, row.after] == at]


def without_repeats(rows: Rows) -> list[Row]:
    """Rows without those that one input repeats."""
    last: dict[object, Row] = {}
    kept = []
    for row in rows:
        if last.get(row.place) != row:
            kept.append(row)
        last[row.place] = row
    return kept


def timeless(rows: Rows) -> list[Row]:
    """Rows without their timestamps."""
    return [replace(row, ts=None) for row in rows]


def without_unchanged(rows: Rows) -> list[Row]:
    """Rows without those that leave a value as it was."""
    last: dict[object, object] = {}
    kept = []
    for row in rows:
        if row.place not in last or last[row.place] != row.value:
            kept.append(row)
        last[row.place] = row.value
    return kept


def in_order(case: Case) -> Case:
    """A case without inputs that are earlier than one before them, of whichever topic."""
    latest, kept = -1, []
    for fed in case["inputs"]:
        if fed["ts"] >= latest:
            kept.append(fed)
        latest = max(latest, fed["ts"])
    return {**case, "inputs": kept}


def complete(case: Case) -> Case:
    """A case without inputs that lack a key or a value."""
    kept = [fed for fed in case["inputs"] if None not in (fed["key"], fed["value"])]
    return {**case, "inputs": kept}


def without_absent_deletions(case: Case) -> Case:
    """A case without inputs that delete what is not there."""
    present: set[tuple[str, object]] = set()
    kept = []
    for fed in case["inputs"]:
        place = fed["topic"], fed["key"]
        if fed["value"] is not None or place in present:
            kept.append(fed)
        (present.discard if fed["value"] is None else present.add)(place)
    return {**case, "inputs": kept}


def without_deletions_of_both_sides(case: Case) -> Case:
    """A case without the deletions of the table that comes to the last join along two paths."""
    kept = [fed for fed in case["inputs"] if fed["topic"] != "t" or fed["value"] is not None]
    return {**case, "inputs": kept}


def at_times_of_their_own(case: Case) -> Case:
    """A case without inputs that have key and time of one before them."""
    first = {(fed["topic"], fed["key"], fed["ts"]): fed for fed in reversed(case["inputs"])}
    return {**case, "inputs": [fed for fed in case["inputs"] if fed in first.values()]}


def without_self_merges(case: Case) -> Case:
    """A case in which no stream is merged with itself."""
    same: dict[str, str] = {}
    nodes = []
    for node in case["topology"]:
        of = node.get("of", [])
        parents = [same.get(each, each) for each in ([of] if isinstance(of, str) else of)]
        if node["op"] == "merge" and len({*parents}) == 1:
            same[node["id"]] = parents[0]
        else:
            renamed = parents[0] if isinstance(of, str) else parents
            nodes.append({**node, "of": renamed} if of else node)
    return {**case, "topology": nodes}


END: Final = {"key": "the end", "value": "x", "ts": 1_000_000}


def ended(case: Case) -> Case:
    """A case that goes on until every grace is over."""
    ends = [{"topic": topic, **END} for topic in ("left", "right")]
    return {**case, "inputs": [*case["inputs"], *ends]}


def untimely(rows: Rows) -> list[Row]:
    """Rows by key, whichever input each one follows, without those of the end itself."""
    plain = [replace(row, after=None) for row in rows if row.key != END["key"]]
    return sorted(plain, key=lambda row: (row.place, row.ts or 0, str(row.value)))


STREAMS: Final = ("stream with stream",)

DIFFERENCES: Final[tuple[Difference, ...]] = (
    Difference(
        "docs/tables.md, Deletions: no deletion of a row that was not there",
        ("table", "versioned table", "foreign key join", "suppress"),
        in_rows=without_absent_tombstones,
    ),
    Difference(
        "docs/tables.md, Deletions: to delete what is not there is no change",
        ("table join", "table meeting", "versioned table", "suppress"),
        in_case=without_absent_deletions,
    ),
    Difference(
        "docs/tables.md, Joins by key: one row for what a record changes on both sides",
        ("table meeting",),
        in_rows=last_of_each_input,
    ),
    Difference(
        "docs/tables.md, Joins by key: a deletion on both sides deletes the row",
        ("table meeting",),
        in_case=without_deletions_of_both_sides,
    ),
    Difference(
        "docs/joins.md, A stream and a table: a deletion is a version",
        ("versioned table",),
        in_case=at_times_of_their_own,
    ),
    Difference(
        "docs/tables.md, Joins by a foreign key: the later timestamp of both rows",
        ("foreign key join",),
        in_rows=timeless,
    ),
    Difference(
        "docs/tables.md, Joins by a foreign key: no result that is as it was",
        ("foreign key join",),
        in_rows=without_unchanged,
    ),
    Difference(
        "docs/windows.md, Sliding windows: one update of a window for each record",
        ("sliding", "cogroup sliding"),
        in_rows=without_repeats,
    ),
    Difference(
        "docs/windows.md, Sliding windows: windows behind records whose own one was closed",
        ("sliding", "cogroup sliding"),
        in_case=in_order,
    ),
    Difference(
        "docs/windows.md, Several streams into one aggregate: one stream time for all of them",
        ("cogroup",),
        in_case=in_order,
    ),
    Difference(
        "docs/streams.md, Record by record: a stream that is merged with itself comes twice",
        ("stateless",),
        in_case=without_self_merges,
    ),
    Difference(
        "docs/joins.md, Two streams: without a partner only after the grace",
        STREAMS,
        in_rows=untimely,
        in_case=ended,
    ),
    Difference(
        "docs/decisions/012-time-of-a-node.md, 012: records without a key or value move no time",
        STREAMS,
        in_case=complete,
    ),
    Difference(
        "docs/joins.md, Two streams: a late record meets what is still kept",
        STREAMS,
        in_case=in_order,
    ),
)
