"""Where streamlog means something else than Kafka Streams, and the paragraph that says so.

A difference explains a case only if the two agree once that difference alone is taken away, from
the rows or from the inputs: a second fault in the same case is not covered by it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from tests.golden.compare import Case, Row, differing
from tests.golden.runners import run_on_driver
from tests.oracle.kafka.runner import KafkaStreams, Refused


@dataclass(frozen=True)
class Trial:
    """A case that both have run."""

    kind: str
    case: Case
    ours: Sequence[Row]
    theirs: Sequence[Row]
    streams: KafkaStreams

    def agrees(self, change: Callable[[Sequence[Row]], Sequence[Row]]) -> bool:
        """Whether the rows are equal once both are changed."""
        order = self.case["expect"]["min_order"]
        return differing(order, change(self.theirs), change(self.ours)) is None

    def agrees_without(self, dropped: Iterable[int]) -> bool:
        """Whether the rows are equal if some of the inputs had never been sent."""
        gone = {*dropped}
        if not gone:
            return False
        kept = [each for at, each in enumerate(self.case["inputs"]) if at not in gone]
        case = {**self.case, "inputs": kept}
        try:
            theirs = self.streams.rows(case)
        except Refused:
            return False
        return differing(case["expect"]["min_order"], theirs, run_on_driver(case)) is None


class Difference(NamedTuple):
    """A difference that stands."""

    page: str
    """The page of the documentation that owns it, and what it says."""
    explains: Callable[[Trial], bool]


def explanation(trial: Trial) -> str | None:
    """The stated difference that a case falls under."""
    return next((each.page for each in DIFFERENCES if each.explains(trial)), None)


def without_absent_tombstones(rows: Sequence[Row]) -> list[Row]:
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


def without_repeats(rows: Sequence[Row]) -> list[Row]:
    """Rows without updates that leave value and time as they were."""
    last: dict[object, tuple[object, int | None]] = {}
    kept = []
    for row in rows:
        now = row.value, row.ts
        if last.get(row.place) != now:
            kept.append(row)
        last[row.place] = now
    return kept


def timeless(rows: Sequence[Row]) -> list[Row]:
    """Rows without their timestamps."""
    return [replace(row, ts=None) for row in rows]


DIFFERENCES: Final[tuple[Difference, ...]] = ()
