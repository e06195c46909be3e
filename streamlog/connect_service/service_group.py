"""Service group: the consumer group by which the workers of a service share its tasks.

The tasks of connectors are slots (`worker/assignment`): the leader places them, evenly and with few
moves, and each round tells every worker its own, who leads, and where the others answer. Every
transaction of the service carries an offset of this group, so its coordinator refuses those of a
worker that is no member of the present generation: a worker that was suspended, or a leader that
was deposed, can't write any more. `ServiceWriter` writes into the group's own topics.

Rule: a round is carried out within the poll that brings it. What is given up has ended before the
group hears of it, and it is given to another worker by the round after that. Not done here: what a
round means for connectors (`herding`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from types import TracebackType
from typing import Final, Self
from uuid import uuid4

from streamlog import repeated
from streamlog.client.offset_metadata import GroupMetadata, OffsetAndMetadata
from streamlog.client.producer import Producer
from streamlog.client.producer.transaction_session import Transaction
from streamlog.clock import Clock
from streamlog.connect.herding.herder_requests import (
    ConnectorSlot,
    Write,
    WriteStatus,
)
from streamlog.errors import ProducerFenced, TransactionAborted, UnknownMember
from streamlog.log import Log
from streamlog.metrics.registry import Kind, Metric, number
from streamlog.record import TopicPartition
from streamlog.worker.assignment.rebalance_plan import Placement
from streamlog.worker.assignment.streams_assignor import StreamsAssignor
from streamlog.worker.connect.herder_callers import WriteCaller, not_written, written
from streamlog.worker.connect.status_writer import LostStatus, StatusWriter

logger = repeated.logger(__name__)

POLL_MS: Final = 100
REBALANCES: Final = "kafka_connect_connect_worker_rebalance_metrics"
MAX_POLL_INTERVAL_MS: Final = 2**31 - 1
"""No limit: tasks that take long to end would take long on another worker as well."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupTimes:
    """The times of the group, by Kafka Connect's names and defaults, in milliseconds."""

    session_timeout_ms: int = 10_000
    """How long the group waits for a worker that has died (`session.timeout.ms`)."""
    heartbeat_interval_ms: int = 3_000
    rebalance_timeout_ms: int = 60_000
    """How long a round waits for the last commits of a worker (`rebalance.timeout.ms`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupRound:
    """What a round of the group says to this worker."""

    slots: frozenset[ConnectorSlot]
    """Its tasks."""
    until: int
    """The offset of the configs topic up to which its records count."""
    generation: int
    is_leader: bool
    has_missed: bool
    """Whether rounds without this worker lie before it: its tasks may have had other owners."""


@dataclass(slots=True)
class _Rebalances:
    """The rounds of the group that this worker has carried out."""

    completed: int = 0
    ms_max: int = 0
    """The longest time that one took, from the first look that saw it."""
    begun_ms: int | None = None
    """When the present one was first seen; None between two rounds."""
    ended_ms: int | None = None
    """When the last one was carried out; None before the first."""

    def begin(self, now_ms: int) -> None:
        """Note that a rebalance is under way."""
        if self.begun_ms is None:
            self.begun_ms = now_ms

    def end(self, now_ms: int) -> None:
        """Note that a round is carried out."""
        self.completed += 1
        if self.begun_ms is not None:
            self.ms_max = max(self.ms_max, now_ms - self.begun_ms)
        self.begun_ms, self.ended_ms = None, now_ms

    def metrics(self, now_ms: int) -> Iterator[Metric]:
        """Yield these figures under the names that Connect has for them."""
        yield number(
            f"{REBALANCES}_completed_rebalances_total",
            "Rounds of the group that this worker has carried out.",
            self.completed,
            kind=Kind.COUNTER,
        )
        yield number(f"{REBALANCES}_rebalance_max_time_ms", "The longest rebalance.", self.ms_max)
        if self.ended_ms is not None:
            name = f"{REBALANCES}_time_since_last_rebalance_ms"
            yield number(name, "Time since the last rebalance.", now_ms - self.ended_ms)


SlotCounts = Callable[[], tuple[Mapping[str, int], int]]
"""Returns the number of tasks of each connector, and the offset of the configs behind them."""
OnRound = Callable[[GroupRound], Awaitable[None]]


class ServiceGroup:
    """The membership of one worker; an async context manager. `run` polls."""

    def __init__(
        self,
        log: Log,
        group_id: str,
        configs_topic: str,
        *,
        clock: Clock,
        endpoint: str,
        instance_id: str | None,
        times: GroupTimes,
        slot_counts: SlotCounts,
        on_round: OnRound,
    ) -> None:
        """Create a member that has not joined yet.

        Args:
            log: the log.
            group_id: the group.
            configs_topic: the topic of configurations, whose first partition the offsets of
                transactions name.
            clock: the time.
            endpoint: HOST:PORT where this worker answers requests.
            instance_id: makes the worker a static member (KIP-345).
            times: the group's times.
            slot_counts: what there is to place; asked for on the leader.
            on_round: carries a round out. When it returns, the tasks that the round does not give
                to this worker have ended.
        """
        self._exchange = StreamsAssignor(Placement(()), process=instance_id or uuid4().hex)
        self._exchange.takes_slots = True
        self._exchange.endpoint = endpoint
        self._exchange.slot_counts = self._directed
        self._slot_counts, self._on_round, self._clock = slot_counts, on_round, clock
        self._rebalances = _Rebalances()
        self._fence = {TopicPartition(configs_topic, 0): OffsetAndMetadata(0)}
        self._placed: Mapping[str, int] | None = None
        """What this worker has placed as the leader."""
        self._generation: int | None = None
        self._polled = asyncio.Event()
        self._consumer = log.consumer(
            group_id=group_id,
            auto_offset_reset="latest",
            assignor=self._exchange,
            group_instance_id=instance_id,
            session_timeout_ms=times.session_timeout_ms,
            heartbeat_interval_ms=times.heartbeat_interval_ms,
            rebalance_timeout_ms=times.rebalance_timeout_ms,
            max_poll_interval_ms=MAX_POLL_INTERVAL_MS,
        )

    async def __aenter__(self) -> Self:
        await self._consumer.__aenter__()
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        # A cancellation is the orderly end of a service: its tasks have committed by now, so
        # others may have them at once.
        if exc_type is None or exc_type is asyncio.CancelledError:
            await self._consumer.close(leave_group=True)
        else:
            await self._consumer.__aexit__(exc_type, exc, traceback)

    async def run(self) -> None:
        """Join the group and poll until cancelled.

        Raises:
            StreamlogError: the group can't be joined, or another process has this worker's
                instance id.
        """
        await self._consumer.subscribe((), on_assigned=self._on_assigned)
        while True:
            await self._consumer.poll(timeout_ms=POLL_MS)
            if not self.is_settled:
                self._rebalances.begin(self._clock.now_ms())
            self._polled.set()

    async def moved_on(self) -> None:
        """Wait until the group has been polled once more, or at most as long as a poll takes."""
        self._polled.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout(POLL_MS / 1000):
                await self._polled.wait()

    @property
    def is_leader(self) -> bool:
        """Whether this worker leads the group, as far as it knows."""
        return self._consumer.is_leader

    @property
    def is_settled(self) -> bool:
        """Whether this worker is a member, and the last round is carried out."""
        with self.staying() as member:
            return member is not None

    @property
    def peers(self) -> Sequence[str]:
        """HOST:PORT of all workers of the last round."""
        return [each.endpoint for each in self._exchange.peers.all]

    @property
    def leader_endpoint(self) -> str:
        """HOST:PORT of the leader; empty if it is not known."""
        leader = self._exchange.peers.leader
        return "" if leader is None else leader.endpoint

    def is_outdated(self) -> bool:
        """Return whether the leader has something else to place than in the last round."""
        return self._placed != self._slot_counts()[0]

    def ask_round(self) -> None:
        """Ask for a round."""
        self._consumer.enforce_rebalance()

    @contextmanager
    def staying(self, generation: int | None = None) -> Iterator[GroupMetadata | None]:
        """Stay in a generation for the length of the block; the value names this member.

        Args:
            generation: the generation; None for that of the last round which is carried out.

        Yields:
            None if the group is in another generation or between two: nothing that was done in
            this one can be committed now.
        """
        wanted = self._generation if generation is None else generation
        with self._consumer.staying() as is_staying:
            member: GroupMetadata | None = None
            if is_staying:
                try:
                    member = self._consumer.group_metadata()
                except UnknownMember:
                    logger.debug("the group does not know this worker now")
            yield member if member is not None and member.generation_id == wanted else None

    def metrics(self) -> Iterator[Metric]:
        """Yield what rebalances have cost this worker, under the names that Connect has for it."""
        yield Metric(
            REBALANCES,
            "1, with HOST:PORT of the leader's REST API as a label; empty: no leader is known.",
            Kind.GAUGE,
            ("leader_name",),
            [((self.leader_endpoint,), 1)],
        )
        generation = -1 if self._generation is None else self._generation
        yield number(f"{REBALANCES}_epoch", "Generation of the group.", generation)
        is_rebalancing = "1 while this worker is between two rounds, or no member."
        yield number(f"{REBALANCES}_rebalancing", is_rebalancing, int(not self.is_settled))
        yield from self._rebalances.metrics(self._clock.now_ms())

    async def fence(self, transaction: Transaction, member: GroupMetadata) -> None:
        """Let the coordinator check a transaction whose records are all acknowledged.

        Raises:
            TransactionAborted: the group has gone on without this worker.
        """
        await transaction.send_offsets(self._fence, member)

    def _directed(self) -> tuple[Mapping[str, int], int]:
        counts, until = self._slot_counts()
        self._placed = counts
        return counts, until

    async def _on_assigned(self, _partitions: frozenset[TopicPartition]) -> None:
        self._rebalances.begin(self._clock.now_ms())
        try:
            generation = self._consumer.group_metadata().generation_id
        except UnknownMember:
            # The session has ended since the round, as on a machine that stood still. The next poll
            # joins again, and the round that follows counts as missed.
            return
        before, claimed = self._generation, self._exchange.own_slots
        given = {name: [*numbers] for name, numbers in self._exchange.given_slots.items()}
        await self._on_round(
            GroupRound(
                slots=_slots(given),
                until=self._exchange.configs_until,
                generation=generation,
                is_leader=self._consumer.is_leader,
                # 1. This worker is suspended beyond its session in generation 4. 2. In generation 5
                # others have its tasks. 3. Generation 6 gives them back, at later offsets.
                has_missed=before is not None and generation != before + 1,
            )
        )
        self._generation = generation
        self._rebalances.end(self._clock.now_ms())
        # From here on they may be given to another worker, in the next round.
        self._exchange.own_slots, self._exchange.own_slots_generation = given, generation
        counts, _ = self._slot_counts()
        released = _slots(claimed) - _slots(given)
        if any(slot.task < counts.get(slot.connector, 0) for slot in released):
            self._consumer.enforce_rebalance()


def _slots(given: Mapping[str, Sequence[int]]) -> frozenset[ConnectorSlot]:
    return frozenset(
        ConnectorSlot(name, number) for name, numbers in given.items() for number in numbers
    )


ATTEMPTS_MAX: Final = 5
"""How often in a row the group may refuse a transaction of the worker that leads it."""
TRANSACTION_TIMEOUT_MS: Final = 10_000
"""How long followers of the topics wait for a leader that was killed."""


@dataclass(frozen=True, slots=True)
class _Transaction:
    """Records that belong together, and the leadership that has decided about them."""

    topic: str
    records: Sequence[tuple[bytes, bytes | None]]
    lead: int
    caller: WriteCaller = None


@dataclass(frozen=True, slots=True)
class _Open:
    """Open the leader's producer."""

    opened: asyncio.Future[None] = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )


def leader_id(group_id: str) -> str:
    """Return the transactional id of the worker that leads a group."""
    return f"{group_id}-leader"


class ServiceWriter:
    """What one worker writes into the group's own topics, in order; `run` performs it.

    Configurations and the offsets that an operator sets are the leader's, in transactions of one id
    for the whole group: a new leader thereby aborts what the one before left open. That alone would
    fence no leader that wakes up and opens its producer late, so the group checks each transaction
    as well. What was decided under one leadership is never written under another. Statuses are
    every worker's, and need no transaction.
    """

    def __init__(
        self,
        log: Log,
        group: ServiceGroup,
        *,
        group_id: str,
        configs_topic: str,
        status_topic: str,
    ) -> None:
        self._log, self._group = log, group
        self._identity = leader_id(group_id)
        self._configs_topic, self._status_topic = configs_topic, status_topic
        self._queue: asyncio.Queue[_Transaction | WriteStatus | LostStatus | _Open] = (
            asyncio.Queue()
        )
        self._leader: Producer | None = None
        self._stack = AsyncExitStack()
        self._lead = 0
        """Counts the leaderships of this worker, and their ends."""

    def put(self, write: Write | WriteStatus) -> None:
        """Write behind everything before it."""
        if isinstance(write, WriteStatus):
            self._queue.put_nowait(write)
        else:
            self._queue.put_nowait(_Transaction(self._configs_topic, write.records, self._lead))

    async def write_offsets(
        self, topic: str, records: Sequence[tuple[bytes, bytes | None]]
    ) -> None:
        """Write offsets that an operator sets, all of them or none.

        Raises:
            ConnectRefusal: the group has another leader by now; nothing was written.
        """
        caller: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queue.put_nowait(_Transaction(topic, records, self._lead, caller))
        await caller

    async def lead(self) -> None:
        """Begin to lead: what the leader before has left open is aborted."""
        self._lead += 1
        opening = _Open()
        self._queue.put_nowait(opening)
        await opening.opened

    def depose(self) -> None:
        """Note that another worker leads: what still waits is not written."""
        self._lead += 1

    async def run(self, producer: Producer) -> None:
        """Write until cancelled.

        Args:
            producer: writes statuses.

        Raises:
            StreamlogError: the log can't be written, or the group refuses its leader again and
                again.
        """
        statuses = StatusWriter(producer, self._status_topic, self._queue.put_nowait)
        async with self._stack:
            while True:
                match await self._queue.get():
                    case WriteStatus() | LostStatus() as write:
                        await statuses.write(write)
                    case _Open(opened):
                        await self._open()
                        opened.set_result(None)
                    case _Transaction() as transaction:
                        await self._write(transaction)

    async def _open(self) -> None:
        await self._stack.aclose()
        self._leader = await self._stack.enter_async_context(
            self._log.producer(
                transactional_id=self._identity, transaction_timeout_ms=TRANSACTION_TIMEOUT_MS
            )
        )

    async def _write(self, each: _Transaction) -> None:
        """Write a transaction as soon as the group takes it; drop it if another worker leads."""
        attempts = 0
        while each.lead == self._lead:
            try:
                if await self._transact(each):
                    written(each.caller)
                    return
            except (ProducerFenced, TransactionAborted) as error:
                attempts += 1
                if attempts >= ATTEMPTS_MAX:
                    raise
                logger.warning("%s is not written yet: %s", each.topic, error)
                # 1. A worker that led before wakes up and opens its producer of this id.
                # 2. This one is fenced, and leads nevertheless.
                if isinstance(error, ProducerFenced):
                    await self._open()
            # Between two rounds, or refused: the next one says who leads.
            await self._group.moved_on()
        logger.info("a change is not made, as another worker leads the group")
        not_written(each.caller)

    async def _transact(self, each: _Transaction) -> bool:
        """Write a transaction; returns False if the group is between two generations."""
        # From the records to the group's offset in one generation.
        with self._group.staying() as member:
            if member is None or self._leader is None:
                return False
            async with self._leader.transaction() as transaction:
                await self._send(self._leader, each)
                await self._group.fence(transaction, member)
            return True

    async def _send(self, leader: Producer, each: _Transaction) -> None:
        for key, value in each.records:
            sent = await leader.send(each.topic, value, key=key)
            # The flush fails if it is lost.
            sent.add_done_callback(lambda done: done.cancelled() or done.exception())
        # All records are acknowledged before the group sees the offset: see `source_slots`.
        await leader.flush()
