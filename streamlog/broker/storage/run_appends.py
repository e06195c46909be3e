"""RunAppends: what several requests bring for one log, appended by as few writes as can be.

Batches that a topic takes as they are go into the log together (`runs`); each of the others goes
the way of `PartitionLog.append`, in its place in the order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

from streamlog.broker.storage import runs
from streamlog.broker.storage.admission import is_checked
from streamlog.broker.storage.runs import PlainRun
from streamlog.broker.storage.validation import RecordRules
from streamlog.errors import StreamlogError

if TYPE_CHECKING:
    from streamlog.broker.config import TopicConfig
    from streamlog.broker.storage.admission import Prepared
    from streamlog.broker.storage.appends import AppendResult
    from streamlog.broker.storage.epochs import LeaderEpochs
    from streamlog.broker.storage.files import Content
    from streamlog.broker.storage.log_producers import LogProducers
    from streamlog.broker.storage.producers import ProducerStates
    from streamlog.broker.storage.segments import Segments
    from streamlog.records.batch import RecordBatch


class AppendedLog(Protocol):
    """What is asked of the log that is appended to, a `PartitionLog`."""

    epochs: LeaderEpochs

    @property
    def config(self) -> TopicConfig:
        """The settings that hold for it."""
        ...

    @property
    def producers(self) -> ProducerStates:
        """Who has written to it."""
        ...

    def check_open(self) -> None:
        """Raises LogDirectoryError if it takes nothing."""
        ...

    def append(
        self,
        data: memoryview,
        *,
        now_ms: int,
        wall_ms: int | None = None,
        prepared: Prepared | None = None,
    ) -> AppendResult:
        """Append batches by themselves."""
        ...


class RunAppends:
    """The appends of one log that come together."""

    def __init__(
        self,
        log: AppendedLog,
        segments: Segments,
        producers: LogProducers,
        *,
        check: Callable[[], None],
        write: Callable[[Content, list[RecordBatch], int], None],
    ) -> None:
        """`check` raises an error if the end of the log is damaged; `write` appends bytes."""
        self._log = log
        self._segments = segments
        self._producers = producers
        self._check_end = check
        self._write = write

    def append_each(
        self,
        pieces: Sequence[memoryview],
        now: tuple[int, int],
        prepared: Sequence[Prepared | StreamlogError],
    ) -> list[AppendResult | StreamlogError]:
        """See `PartitionLog.append_each`; `now` is monotonic, and by the clock on the wall."""
        outcomes: list[AppendResult | StreamlogError] = []
        config = self._log.config
        scans = not prepared and is_checked(config)
        rules = RecordRules.of(config, now[1])
        refused = {n: each for n, each in enumerate(prepared) if isinstance(each, StreamlogError)}
        for stop in (*refused, len(pieces)):
            while len(outcomes) < stop:
                begin = len(outcomes)
                outcomes += self._append_run(pieces[begin:stop], now[0], rules, scans=scans)
                if len(outcomes) == begin:
                    ready = prepared[begin] if prepared else None
                    outcomes.append(self._append_one(pieces[begin], now, ready))
            if stop in refused:
                outcomes.append(refused[stop])
        return outcomes

    def _append_one(
        self, piece: memoryview, now: tuple[int, int], prepared: Prepared | StreamlogError | None
    ) -> AppendResult | StreamlogError:
        if isinstance(prepared, StreamlogError):
            return prepared
        try:
            return self._log.append(piece, now_ms=now[0], wall_ms=now[1], prepared=prepared)
        except StreamlogError as error:
            return error

    def _append_run(
        self, pieces: Sequence[memoryview], now_ms: int, rules: RecordRules, *, scans: bool
    ) -> list[AppendResult | StreamlogError]:
        """Append the batches at the front that are taken as they are."""
        log, config = self._log, self._log.config
        if not runs.takes_as_they_are(config):
            return []
        segment = self._segments.active
        run = PlainRun(segment.next_offset, log.epochs.current, segment.room_bytes(config))
        run.extend(
            pieces,
            max_message_bytes=config.max_message_bytes,
            producers=log.producers,
            rules=rules,
            scans=scans,
        )
        batches = run.batches
        try:
            log.check_open()
            self._check_end()
            if batches:
                self._write(run.pieces, batches, now_ms)
        except StreamlogError as error:
            return [error for _ in batches]
        results = run.results()
        for batch, result in zip(batches, results, strict=True):
            if batch.producer_id >= 0:
                self._producers.note(batch, result.base_offset)
        return [*results]
