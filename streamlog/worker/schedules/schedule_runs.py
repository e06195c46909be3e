"""What has been run of a schedule, as the log remembers it for whoever leads next.

A leader claims a due time before it runs it, and says when it is done; both are records in the
app's topic of schedules. Of two that claim the same time the first one in the log has it, and
the other one finds that out before it runs anything. Rule of the file: a record holds all that
its writer knew, and records are merged in the order of the log, so everybody who has read it to
the same place knows the same, and what compaction leaves is enough. A claim whose owner has gone
silent is a run that was interrupted: misfire="skip" leaves it at that, others run it again.
Pure. Not done here: reading and writing (`cron`), and what is due (`dsl/schedule_times`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import msgspec

from streamlog.dsl.schedule_times import Misfire, Schedule, missed_runs
from streamlog.errors import CorruptData

FORMAT_VERSION = 1
"""Of a record. A reader refuses what it does not know."""
NEVER_MS = -1


class _Wire(msgspec.Struct, frozen=True):
    """A record."""

    format: int
    done_ms: int
    claimed_ms: int
    attempt: int
    by: str


@dataclass(frozen=True, slots=True)
class Runs:
    """What is known of the runs of one schedule."""

    done_ms: int
    """Everything due until then is done with; at first, when the schedule became known."""
    claimed_ms: int = NEVER_MS
    """The due time that was claimed last."""
    attempt: int = 0
    """How often that one was claimed."""
    by: str = ""
    """Who claimed it."""

    @property
    def is_open(self) -> bool:
        """Whether the last claim has not been told to be done."""
        return self.claimed_ms > self.done_ms

    def claim(self, due_ms: int, by: str) -> Runs:
        """What is to be written before a due time is run."""
        attempt = self.attempt + 1 if due_ms == self.claimed_ms else 1
        return Runs(self.done_ms, due_ms, attempt, by)

    def done(self, due_ms: int) -> Runs:
        """What is to be written when everything due until then is done with."""
        return replace(self, done_ms=max(self.done_ms, due_ms))

    def merged(self, record: Runs) -> Runs:
        """What is known after a record; of two claims of the same, the first one counts."""
        done_ms = max(self.done_ms, record.done_ms)
        is_newer = (record.claimed_ms, record.attempt) > (self.claimed_ms, self.attempt)
        return replace(record if is_newer else self, done_ms=done_ms)

    def to_run(self, schedule: Schedule, now_ms: int, misfire: Misfire) -> list[int]:
        """The due times to be run now; an open claim is taken for one that was interrupted."""
        return missed_runs(schedule, self.next_ms(schedule, misfire), now_ms, misfire)

    def next_ms(self, schedule: Schedule, misfire: Misfire) -> int:
        """The first due time that is not done with."""
        after_ms = self.done_ms
        if self.is_open:
            after_ms = self.claimed_ms if misfire == "skip" else self.claimed_ms - 1
        return schedule.next_after(after_ms)

    def encode(self) -> bytes:
        """As the value of a record."""
        wire = _Wire(FORMAT_VERSION, self.done_ms, self.claimed_ms, self.attempt, self.by)
        return msgspec.json.encode(wire)

    @classmethod
    def decode(cls, data: bytes) -> Runs:
        """The value of a record.

        Raises:
            CorruptData: it is not readable, or a newer streamlog has written it.
        """
        try:
            wire = msgspec.json.decode(data, type=_Wire)
        except (msgspec.MsgspecError, ValueError) as error:
            raise CorruptData(f"the runs of a schedule are not readable: {error}") from error
        if wire.format != FORMAT_VERSION:
            raise CorruptData(
                f"the runs of a schedule have format {wire.format}, this streamlog reads "
                f"{FORMAT_VERSION}: a newer one has written them; use that one"
            )
        return cls(wire.done_ms, wire.claimed_ms, wire.attempt, wire.by)
