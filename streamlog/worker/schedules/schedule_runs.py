"""Schedule runs: the record of a schedule's runs in the log, for the next leader.

A leader claims a due time before its run, and records the end of the run. If two workers claim one
due time, the first claim in the log counts, and the other worker finds that out before it runs
anything. A claim whose owner no longer renews it is an interrupted run: with misfire="skip" it is
left alone, otherwise it is run again.

Rule: pure. A record holds everything that its writer knew, and records are merged in the order of
the log. So all readers at one offset have equal knowledge, and the records that compaction leaves
suffice. Not done here: reading and writing (`schedule_runner`), and due times (`dsl/schedules`).
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from streamlog.dsl.schedules import Misfire, Schedule, missed_runs
from streamlog.errors import CorruptData
from streamlog.replace import replace

FORMAT_VERSION = 1
"""The format of a record. A reader refuses other formats."""
NEVER_MS = -1


class _RunRecord(msgspec.Struct, frozen=True):
    """A record of a schedule."""

    format: int
    done_ms: int
    claimed_ms: int
    attempt: int
    by: str


@dataclass(frozen=True, slots=True)
class Runs:
    """The recorded runs of one schedule."""

    done_ms: int
    """Due times up to this one are done; initially the time of the schedule's first record."""
    claimed_ms: int = NEVER_MS
    """The due time that was claimed last."""
    attempt: int = 0
    """The number of claims of that due time."""
    by: str = ""
    """The owner of the claim."""

    @property
    def is_open(self) -> bool:
        """Whether the last claim's run is not recorded as done."""
        return self.claimed_ms > self.done_ms

    def claim(self, due_ms: int, by: str) -> Runs:
        """Return the record to write before a run."""
        attempt = self.attempt + 1 if due_ms == self.claimed_ms else 1
        return Runs(self.done_ms, due_ms, attempt, by)

    def done(self, due_ms: int) -> Runs:
        """Return the record to write when all due times up to this one are done."""
        return replace(self, done_ms=max(self.done_ms, due_ms))

    def merge(self, record: Runs) -> Runs:
        """Return the runs after a further record."""
        done_ms = max(self.done_ms, record.done_ms)
        # An equal pair is a second claim of one attempt: the first claim stays.
        is_newer = (record.claimed_ms, record.attempt) > (self.claimed_ms, self.attempt)
        return replace(record if is_newer else self, done_ms=done_ms)

    def to_run(self, schedule: Schedule, now_ms: int, misfire: Misfire) -> list[int]:
        """Return the due times to run now; an open claim counts as interrupted."""
        return missed_runs(schedule, self.next_ms(schedule, misfire), now_ms, misfire)

    def next_ms(self, schedule: Schedule, misfire: Misfire) -> int:
        """Return the first due time that is not done."""
        after_ms = self.done_ms
        if self.is_open:
            # One millisecond before the claim: `next_after` returns the interrupted run again.
            after_ms = self.claimed_ms if misfire == "skip" else self.claimed_ms - 1
        return schedule.next_after(after_ms)

    def encode(self) -> bytes:
        """Encode the value of a record."""
        wire = _RunRecord(FORMAT_VERSION, self.done_ms, self.claimed_ms, self.attempt, self.by)
        return msgspec.json.encode(wire)

    @classmethod
    def decode(cls, data: bytes) -> Runs:
        """Decode the value of a record.

        Raises:
            CorruptData: the value is malformed, or a newer streamlog wrote it.
        """
        try:
            wire = msgspec.json.decode(data, type=_RunRecord)
        except (msgspec.MsgspecError, ValueError) as error:
            raise CorruptData(f"the record of a schedule's runs is malformed: {error}") from error
        if wire.format != FORMAT_VERSION:
            raise CorruptData(
                f"the record of a schedule's runs has format {wire.format}, but this streamlog "
                f"reads format {FORMAT_VERSION}: use the newer streamlog that wrote it"
            )
        return cls(wire.done_ms, wire.claimed_ms, wire.attempt, wire.by)
