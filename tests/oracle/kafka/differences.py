"""Differences in meaning from Kafka Streams, each with the documentation that states it.

Differences explain a case only if the results agree once the differences are removed, from the rows
or by leaving out inputs: they do not cover another fault in the case.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Final, NamedTuple

from streamlog.replace import replace
from tests.golden.compare import Case, Row, differing
from tests.golden.runners import run_on_driver
from tests.oracle.kafka.runner import KafkaStreams

Rows = Sequence[Row]


def unchanged_rows(rows: Rows) -> Rows:
    """No change."""
    return rows


def unchanged_case(case: Case) -> Case:
    """No change."""
    return case


class Difference(NamedTuple):
    """A documented difference."""

    page: str
    """The documentation page, its heading, and the statement."""
    kinds: tuple[str, ...]
    """Prefixes of the kinds of operators that have the difference."""
    in_rows: Callable[[Rows], Rows] = unchanged_rows
    """Removes the difference from the rows of both."""
    in_case: Callable[[Case], Case] = unchanged_case
    """Changes the inputs so that the difference does not show."""


@dataclass(frozen=True)
class Trial:
    """A case that both have run, with their rows."""

    kind: str
    case: Case
    ours: Rows
    theirs: Rows
    streams: KafkaStreams

    def agrees(self, differences: Sequence[Difference]) -> bool:
        """Whether both write equal rows once some differences are removed."""
        ours, theirs, case = self.ours, self.theirs, self.case
        for each in differences:
            case = each.in_case(case)
        if case is not self.case:
            ours, theirs = run_on_driver(case), self.streams.rows(case)
        for each in differences:
            ours, theirs = each.in_rows(ours), each.in_rows(theirs)
        return differing(self.case["expect"]["min_order"], theirs, ours) is None


def explanation(trial: Trial) -> str | None:
    """Return the fewest documented differences that explain a case, or None."""
    own = [each for each in DIFFERENCES if trial.kind.startswith(each.kinds)]
    sets = (chosen for size in range(1, len(own) + 1) for chosen in combinations(own, size))
    found = next((chosen for chosen in sets if trial.agrees(chosen)), None)
    return None if found is None else " + ".join(each.page for each in found)


def without_absent_tombstones(rows: Rows) -> list[Row]:
    """Return the rows without deletions of absent rows."""
    present: set[object] = set()
    kept = []
    for row in rows:
        if row.value is not None:
            present.add(row.row_key)
        elif row.row_key not in present:
            continue
        else:
            present.discard(row.row_key)
        kept.append(row)
    return kept


def last_of_each_input(rows: Rows) -> list[Row]:
    """Return the last row of each key for each input."""
    last = {(row.row_key, row.after): at for at, row in enumerate(rows)}
    return [row for at, row in enumerate(rows) if last[row.row_key, row.after] == at]


def without_repeats(rows: Rows) -> list[Row]:
    """Return the rows without repetitions for one input."""
    last: dict[object, Row] = {}
    kept = []
    for row in rows:
        if last.get(row.row_key) != row:
            kept.append(row)
        last[row.row_key] = row
    return kept


def without_timestamps(rows: Rows) -> list[Row]:
    """Return the rows without their timestamps."""
    return [replace(row, ts=None) for row in rows]


def without_unchanged(rows: Rows) -> list[Row]:
    """Return the rows without those that do not change the value."""
    last: dict[object, object] = {}
    kept = []
    for row in rows:
        if row.row_key not in last or last[row.row_key] != row.value:
            kept.append(row)
        last[row.row_key] = row.value
    return kept


def in_order(case: Case) -> Case:
    """Return the case without inputs that are earlier than a previous input of any topic."""
    latest, kept = -1, []
    for input_ in case["inputs"]:
        if input_["ts"] >= latest:
            kept.append(input_)
        latest = max(latest, input_["ts"])
    return {**case, "inputs": kept}


def without_nulls(case: Case) -> Case:
    """Return the case without inputs that lack a key or a value."""
    kept = [input_ for input_ in case["inputs"] if None not in (input_["key"], input_["value"])]
    return {**case, "inputs": kept}


def without_absent_deletions(case: Case) -> Case:
    """Return the case without inputs that delete absent rows."""
    present: set[tuple[str, object]] = set()
    kept = []
    for input_ in case["inputs"]:
        row_key = input_["topic"], input_["key"]
        if input_["value"] is not None or row_key in present:
            kept.append(input_)
        (present.discard if input_["value"] is None else present.add)(row_key)
    return {**case, "inputs": kept}


def without_deletions_of_both_sides(case: Case) -> Case:
    """Return the case without deletions in the table that reaches the last join by two paths."""
    kept = [
        input_ for input_ in case["inputs"] if input_["topic"] != "t" or input_["value"] is not None
    ]
    return {**case, "inputs": kept}


def with_unique_times(case: Case) -> Case:
    """Return the case without inputs that repeat a key and time."""
    first = {
        (input_["topic"], input_["key"], input_["ts"]): input_
        for input_ in reversed(case["inputs"])
    }
    return {**case, "inputs": [input_ for input_ in case["inputs"] if input_ in first.values()]}


def without_self_merges(case: Case) -> Case:
    """Return the case without merges of a stream with itself."""
    replaced_by: dict[str, str] = {}
    nodes = []
    for node in case["topology"]:
        of = node.get("of", [])
        parents = [replaced_by.get(each, each) for each in ([of] if isinstance(of, str) else of)]
        if node["op"] == "merge" and len({*parents}) == 1:
            replaced_by[node["id"]] = parents[0]
        else:
            renamed = parents[0] if isinstance(of, str) else parents
            nodes.append({**node, "of": renamed} if of else node)
    return {**case, "topology": nodes}


END: Final = {"key": "the end", "value": "x", "ts": 1_000_000}


def with_end_records(case: Case) -> Case:
    """Return the case with last records after every grace."""
    ends = [{"topic": topic, **END} for topic in ("left", "right")]
    return {**case, "inputs": [*case["inputs"], *ends]}


def without_causes(rows: Rows) -> list[Row]:
    """Return the rows sorted by key, without their causes and without the end records."""
    plain = [replace(row, after=None) for row in rows if row.key != END["key"]]
    return sorted(plain, key=lambda row: (row.row_key, row.ts or 0, str(row.value)))


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
        in_case=with_unique_times,
    ),
    Difference(
        "docs/tables.md, Joins by a foreign key: the later timestamp of both rows",
        ("foreign key join",),
        in_rows=without_timestamps,
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
        in_rows=without_causes,
        in_case=with_end_records,
    ),
    Difference(
        "docs/decisions/012-time-of-a-node.md, 012: records without a key or value move no time",
        STREAMS,
        in_case=without_nulls,
    ),
    Difference(
        "docs/joins.md, Two streams: a late record meets what is still kept",
        STREAMS,
        in_case=in_order,
    ),
)
