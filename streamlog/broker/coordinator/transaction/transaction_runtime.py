"""TransactionRuntime: runs the transaction coordinators on `__transaction_state`.

Each partition of that topic is one shard. The runtime appends what the shard decides, replays it,
and continues when it is committed. Then a prepared transaction gets its markers in each of its
partitions, wherever they are led, including those with offsets of groups (`marker_writer`). When
the markers are committed, the shard completes the transaction and the EndTxn request is answered.
The next leader of the shard continues with transactions that were prepared before.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING

from streamlog import repeated
from streamlog.broker.coordinator.led_shards import LedShard, LedShards
from streamlog.broker.coordinator.pending_requests import PendingRequests, Proofs, coordinator_error
from streamlog.broker.coordinator.shard import (
    Caller,
    CoordinatorRecord,
    Instant,
    ShardOutcome,
    refuse,
)
from streamlog.broker.coordinator.transaction.coordinated_transaction import Ending, tombstone_of
from streamlog.broker.coordinator.transaction.marker_queue import LeaderOf, MarkerJob
from streamlog.broker.coordinator.transaction.marker_writer import MarkerWriter
from streamlog.broker.coordinator.transaction.transaction_coordinator import (
    TransactionCoordinator,
    TransactionDeps,
)
from streamlog.broker.storage.validator import AppendOrigin
from streamlog.errors import LogError, StreamlogError
from streamlog.protocol.error_codes import ErrorCode, error_for
from streamlog.records.batch import RecordBatch, encode_batch

if TYPE_CHECKING:
    from streamlog.broker.config.coordinators import TransactionConfig
    from streamlog.broker.coordinator.group.group_runtime import CoordinatorRuntime
    from streamlog.broker.coordinator.transaction.coordinated_transaction import (
        CoordinatedTransaction,
    )
    from streamlog.broker.coordinator.transaction.producer_ids import ProducerIds
    from streamlog.broker.replication.partition import Partitions
    from streamlog.clock import Clock
    from streamlog.protocol.schema import Message

TRANSACTIONS_TOPIC = "__transaction_state"
TRANSACTIONS_PARTITIONS = 4
"""The partitions of a new topic, for good; see `group_runtime.OFFSETS_PARTITIONS`."""
TRANSACTIONS_CONFIGS: Mapping[str, str] = {
    "cleanup.policy": "compact",
    "segment.bytes": str(100 * 1024 * 1024),
    "max.message.bytes": str(16 * 1024 * 1024),
}
"""A transaction over very many partitions has to fit into one message."""
NOTHING = tombstone_of("")
"""A record without meaning: a transactional id is never empty."""
RETRY_MS = 500
"""The pause before an append or a commit that failed is tried again."""

_log = repeated.logger(__name__)


class TransactionRuntime:
    """All transactional ids of this broker."""

    def __init__(
        self,
        partitions: Partitions,
        groups: CoordinatorRuntime,
        producer_ids: ProducerIds,
        *,
        config: TransactionConfig,
        clock: Clock,
        node_id: int,
        leader_of: LeaderOf,
    ) -> None:
        """`leader_of` returns the leader of a partition, as far as this broker knows."""
        self.partitions = partitions
        self.clock = clock
        self._config = config
        self.producer_ids = producer_ids
        self._deps = TransactionDeps(producer_ids.take, partitions.exists, groups.partition_of)
        self._shards: LedShards[TransactionCoordinator] = LedShards(
            TRANSACTIONS_TOPIC,
            partitions,
            make=lambda: TransactionCoordinator(self._config, self._deps),
            replay=self._replay_batch,
        )
        self._answering = PendingRequests()
        self._proofs = Proofs(self._answering, NOTHING, self._instant)
        self.markers = MarkerWriter(
            partitions,
            groups,
            node_id=node_id,
            leader_of=leader_of,
            clock=clock,
            on_done=self._on_ended,
        )
        self._later: list[
            tuple[int, int, LedShard[TransactionCoordinator], Callable[[], None]]
        ] = []
        """What to try again, and when; the second number orders entries of the same time."""
        self._numbers = itertools.count()
        self._loaded: list[int] = []
        """Shards that were loaded and may have prepared transactions to continue."""

    def configure(self, config: TransactionConfig) -> None:
        """Use other settings."""
        self._config = config
        for led in self._shards:
            led.shard.configure(config)

    # Loading.

    def lead(self, index: int) -> None:
        """Serve the transactional ids of a partition once it is replayed to its end.

        Transactions prepared before continue with the next tick.

        Raises:
            CorruptData: a record is malformed.
        """
        if self._shards.lead(index):
            self._loaded.append(index)

    def load(self) -> None:
        """Load as long as something can be replayed. Raises what `lead` raises."""
        while self._shards.can_load:
            self._loaded += self._shards.load_on()

    def resign(self, index: int) -> None:
        """Stop serving the transactional ids of a partition, because another broker leads it."""
        self._shards.resign(index)
        self.markers.forget(index)
        self._answering.resign(index)
        self._proofs.resign(index)

    def _replay_batch(self, batch: RecordBatch, shard: TransactionCoordinator) -> None:
        now_ms = self.clock.now_ms()
        for record in batch.records():
            stored = CoordinatorRecord(record.key or b"", record.value)
            shard.replay(stored, now_ms=now_ms)

    # Requests.

    def begin(
        self, transactional_id: str, request: Message, *, version: int, connection: int = 0
    ) -> Message | asyncio.Future[Message]:
        """Pass a request to its transactional id; return the response, or a future of it."""
        try:
            led = self._shards.of(transactional_id)
        except LogError as error:
            return refuse(request, version, error.code)
        ticket, answer = self._answering.take(led.index, request, version)
        caller = Caller(ticket, version, "", "", "", connection)
        outcome = led.shard.handle(request, caller, self._instant())
        self._deliver(led, outcome, ticket)
        return answer.result() if answer.done() else answer

    def verify(
        self, transactional_id: str, producer: tuple[int, int], partition: tuple[str, int]
    ) -> ErrorCode:
        """Check that a producer may write to a partition in its transaction now."""
        if not self.partitions.partitions(TRANSACTIONS_TOPIC):
            return ErrorCode.INVALID_PRODUCER_ID_MAPPING
        try:
            shard = self._shards.of(transactional_id).shard
        except LogError as error:
            return ErrorCode(error.code)
        return shard.verify(transactional_id, producer, partition)

    def respond_when_committed(
        self, transactional_id: str, answer: Callable[[], Message]
    ) -> Message | asyncio.Future[Message]:
        """Call `answer` once the state of the transactional id is committed; return its result."""
        try:
            led = self._shards.of(transactional_id)
        except LogError:
            return answer()
        end_offset = led.log.log.log_end_offset
        if led.log.may_acknowledge(end_offset):
            return answer()
        response: asyncio.Future[Message] = asyncio.get_running_loop().create_future()

        def go_on(_: StreamlogError | None) -> None:
            if not response.done():
                response.set_result(answer())

        led.log.when_committed(end_offset, go_on)
        return response

    def transaction(self, transactional_id: str) -> CoordinatedTransaction | None:
        """Return the state of a transactional id.

        Raises:
            LogError: with the error code for the client, the shard is not here, or not loaded yet.
        """
        if not self.partitions.partitions(TRANSACTIONS_TOPIC):
            return None
        return self._shards.of(transactional_id).shard.transaction(transactional_id)

    def transactions(self) -> Iterable[CoordinatedTransaction]:
        """Return all transactional ids of this broker's shards.

        Raises:
            LogError: COORDINATOR_LOAD_IN_PROGRESS, some shards are not loaded yet.
        """
        if self._shards.is_loading:
            what = "not all transactional ids are loaded yet"
            raise error_for(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, what)
        return itertools.chain.from_iterable(led.shard.transactions() for led in self._shards)

    def served(self) -> list[TransactionCoordinator]:
        """Return the shards that serve requests, without those that are still loading."""
        return [led.shard for led in self._shards]

    def stop(self, reason: StreamlogError) -> None:
        """Fail all requests that have no response yet."""
        self._answering.stop(reason)

    # Time.

    def tick(self) -> None:
        """Load a slice, continue prepared transactions, and run deadlines that have passed."""
        at = self._instant()
        self._loaded += self._shards.load_on()
        loaded, self._loaded = self._loaded, []
        for led in self._shards:
            # A new leader continues transactions that its predecessor had prepared: their markers
            # are written again, as they may be missing. In a partition that has one already, the
            # second one ends nothing.
            if led.index in loaded:
                self._end_prepared(led)
            deadline_ms = led.shard.next_deadline_ms()
            if deadline_ms is not None and deadline_ms <= at.now_ms:
                self._deliver(led, led.shard.on_tick(at))
        while self._later and self._later[0][0] <= at.now_ms:
            *_, led, again = heapq.heappop(self._later)
            if self._shards.has(led):
                again()
        self.markers.tick()
        self._answering.tick(at.now_ms)

    def next_deadline_ms(self) -> int | None:
        """When `tick` has something to do; None for never."""
        now_ms = self.clock.now_ms()
        if self._loaded:
            return now_ms
        deadlines = [led.shard.next_deadline_ms() for led in self._shards]
        deadlines.append(self._shards.next_deadline_ms(now_ms))
        deadlines += [due_ms for due_ms, *_ in self._later[:1]]
        deadlines += [self.markers.next_deadline_ms(), self._answering.next_deadline_ms()]
        return min((each for each in deadlines if each is not None), default=None)

    # The end of transactions.

    def _end_prepared(self, led: LedShard[TransactionCoordinator]) -> None:
        """Write the markers of decided transactions once the decisions are committed."""
        endings = led.shard.take_endings()
        if endings:
            self._when_prepared(led, endings)

    def _when_prepared(self, led: LedShard[TransactionCoordinator], endings: list[Ending]) -> None:
        end_offset = led.log.log.log_end_offset
        # The decision must be committed before the first marker: 1. Coordinator A decides to
        # commit, and writes a marker before the decision is on its followers. 2. A dies; B leads
        # without the decision, and aborts on time-out. 3. One partition is committed, others are
        # aborted.
        if led.log.may_acknowledge(end_offset):
            self._on_prepared(led, endings, None)
        else:
            led.log.when_committed(end_offset, partial(self._on_prepared, led, endings))

    def _on_prepared(
        self,
        led: LedShard[TransactionCoordinator],
        endings: list[Ending],
        failure: StreamlogError | None,
    ) -> None:
        if not self._shards.has(led):
            return
        if failure is None:
            epoch = led.log.log.epochs.current
            self.markers.add(MarkerJob(ending, led.index, epoch) for ending in endings)
        else:
            # The record stays in the log: if this broker still leads, it will be committed.
            self._try_later(led, partial(self._when_prepared, led, endings))

    def _on_ended(self, job: MarkerJob) -> None:
        """Complete a transaction whose markers are all committed."""
        self._complete(self._shards.at(job.shard), job.ending)

    def _complete(self, led: LedShard[TransactionCoordinator], ending: Ending) -> None:
        """Answer, and append the record that completes the transaction.

        Without that record, the next leader writes the markers again.
        """
        outcome = led.shard.on_ended(ending, self._instant())
        self._answering.send(outcome.answers)
        if self._append(led, outcome) is not None:
            self._try_later(led, partial(self._complete, led, ending))

    def _try_later(self, led: LedShard[TransactionCoordinator], again: Callable[[], None]) -> None:
        due_ms = self.clock.now_ms() + RETRY_MS
        heapq.heappush(self._later, (due_ms, next(self._numbers), led, again))

    # Outcomes.

    def _deliver(
        self, led: LedShard[TransactionCoordinator], outcome: ShardOutcome, ticket: int = 0
    ) -> None:
        """Append, replay, and continue when the records are committed.

        A response from memory alone needs a proof: a coordinator that was replaced could report a
        commit, or a fencing, that its successor does not know.
        """
        if not outcome.records:
            self._proofs.give(led, outcome.answers)
            return
        failure = self._append(led, outcome)
        if failure is None:
            self._answering.give(led.log, outcome.answers, self.clock.now_ms())
            self._end_prepared(led)
            return
        led.shard.forget_ticket(ticket)
        refused = {answer.ticket for answer in outcome.answers} | {ticket}
        self._answering.refuse(refused, coordinator_error(failure))

    def _append(
        self, led: LedShard[TransactionCoordinator], outcome: ShardOutcome
    ) -> StreamlogError | None:
        """Append and replay; return the error if the append failed."""
        if not outcome.records:
            return None
        at = self._instant()
        batch = encode_batch([(at.wall_ms, r.key, r.value, ()) for r in outcome.records])
        try:
            # As with acks=all: without enough replicas in sync, refuse before the append, and not
            # after it.
            led.log.check_insync()
            led.log.append(batch, now_ms=at.now_ms, origin=AppendOrigin.COORDINATOR)
        except StreamlogError as error:
            _log.error(
                "%s-%d: records could not be appended: %s", TRANSACTIONS_TOPIC, led.index, error
            )
            return error
        for record in outcome.records:
            led.shard.replay(record, now_ms=at.now_ms)
        return None

    def _instant(self) -> Instant:
        return Instant(self.clock.now_ms(), self.clock.wall_ms())
