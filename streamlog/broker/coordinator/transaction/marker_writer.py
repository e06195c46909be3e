"""MarkerWriter: brings transaction markers to the partitions of ended transactions.

This is the shell of `MarkerQueue`. Markers for partitions that this broker leads are written here,
including those with offsets of groups; others go to their leaders by WriteTxnMarkers (KIP-98), all
for one broker in one request. In both cases a marker is done once it is committed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from typing import TYPE_CHECKING, Any

from streamlog import repeated
from streamlog.broker.coordinator.group.group_runtime import OFFSETS_TOPIC
from streamlog.broker.coordinator.transaction.marker_queue import (
    NEEDLESS,
    MarkerJob,
    MarkerQueue,
    Try,
)
from streamlog.errors import LogError, StreamlogError
from streamlog.protocol.error_codes import ErrorCode
from streamlog.protocol.messages.transaction_messages import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from streamlog.records.control_batches import ABORT, COMMIT, Marker

if TYPE_CHECKING:
    from collections.abc import Iterable

    from streamlog.broker.coordinator.group.group_runtime import CoordinatorRuntime
    from streamlog.broker.coordinator.transaction.marker_queue import LeaderOf
    from streamlog.broker.replication.partition import Partition, Partitions
    from streamlog.clock import Clock
    from streamlog.protocol.schema import Message

PartitionKey = tuple[str, int]
Call = Callable[[int, "Message", int], Awaitable["Message"]]
"""Sends a request to another broker, by id, with a time-out in ms. Raises StreamlogError."""
Spawn = Callable[[Coroutine[Any, Any, None]], object]
"""Runs a coroutine for as long as the broker runs."""

REQUEST_TIMEOUT_MS = 15_000
"""Longer than a leader waits for its followers, so that it can report that they were slow."""

_log = repeated.logger(__name__)


class MarkerWriter:
    """Writes the markers of one broker, as a coordinator and as a leader."""

    def __init__(
        self,
        partitions: Partitions,
        groups: CoordinatorRuntime,
        *,
        node_id: int,
        leader_of: LeaderOf,
        clock: Clock,
        on_done: Callable[[MarkerJob], None],
    ) -> None:
        """`on_done` receives the jobs whose markers are all committed."""
        self._partitions = partitions
        self._groups = groups
        self._node_id = node_id
        self._leader_of = leader_of
        self._clock = clock
        self._on_done = on_done
        self.on_marker: Callable[[PartitionKey, int], None] = lambda _partition_key, _producer_id: (
            None
        )
        """Called with the partition and producer id of each marker that is written here."""
        self._queue = MarkerQueue()
        self._outbox: dict[int, list[Try]] = {}
        self._others: tuple[Call, Spawn] | None = None
        self._is_telling = False

    def begin(self, call: Call, spawn: Spawn) -> None:
        """Start sending markers to other brokers."""
        self._others = call, spawn

    def add(self, jobs: Iterable[MarkerJob]) -> None:
        """Write the markers of these transactions."""
        for job in jobs:
            self._queue.add(job, self._clock.now_ms())
        self.tick()

    def forget(self, index: int) -> None:
        """Drop the jobs of a partition whose coordinator is another broker now."""
        self._queue.forget(index)

    def tick(self) -> None:
        """Write the markers that are due."""
        for each in self._queue.take(self._leader_of, self._clock.now_ms()):
            if each.node_id == self._node_id:
                self._write_here(each)
                continue
            if not self._outbox:
                # Markers decided in the same iteration of the loop share the requests.
                asyncio.get_running_loop().call_soon(self._send)
            self._outbox.setdefault(each.node_id, []).append(each)
        self._tell()

    def next_deadline_ms(self) -> int | None:
        """When `tick` has something to do; None for never."""
        return self._queue.next_deadline_ms()

    # Partitions led here.

    def write(
        self, partition_key: PartitionKey, producer: tuple[int, int], marker: Marker
    ) -> Partition:
        """Write the marker that ends a producer's transaction in one partition.

        Raises:
            UnknownTopicOrPartition: the partition is gone.
            LogError: a newer instance of the producer or a newer coordinator has written already;
                another broker leads the partition; too few replicas are in sync.
            LogDirectoryError: the disk refused.
        """
        topic, index = partition_key
        partition = self._partitions.get(topic, index)
        if topic == OFFSETS_TOPIC:
            # Before the append: a shard that is loading could not apply the marker now, and would
            # miss it.
            self._groups.check_marker(index)
        partition.check_insync()
        now_ms, wall_ms = self._clock.now_ms(), self._clock.wall_ms()
        partition.end_transaction(*producer, marker, now_ms=now_ms, wall_ms=wall_ms)
        self.on_marker(partition_key, producer[0])
        if topic == OFFSETS_TOPIC:
            # The group's shard does not read its log after loading: the staged offsets count from
            # here on.
            self._groups.on_marker(index, producer[0], committed=marker.kind == COMMIT)
        return partition

    def _write_here(self, trial: Try) -> None:
        ending = trial.job.ending
        kind, raises = COMMIT if ending.committed else ABORT, ending.client_version > 0
        marker = Marker(kind, trial.job.coordinator_epoch, raises)
        producer = (ending.producer_id, ending.producer_epoch)
        for partition_key in trial.partitions:
            try:
                partition = self.write(partition_key, producer, marker)
            except StreamlogError as error:
                if not isinstance(error, LogError):
                    _log.error(
                        "%s-%d: a transaction marker is postponed: %s", *partition_key, error
                    )
                self._on_refused(trial.number, partition_key, error)
                continue
            end_offset = partition.log.log_end_offset
            if partition.may_acknowledge(end_offset):
                self._queue.on_code(
                    trial.number, partition_key, ErrorCode.NONE, self._clock.now_ms()
                )
            else:
                partition.when_committed(
                    end_offset, partial(self._on_committed, trial.number, partition_key)
                )

    def _on_committed(
        self, number: int, partition_key: PartitionKey, failure: StreamlogError | None
    ) -> None:
        if failure is None:
            self._queue.on_code(number, partition_key, ErrorCode.NONE, self._clock.now_ms())
        else:
            self._on_refused(number, partition_key, failure)
        self._tell()

    def _on_refused(self, number: int, partition_key: PartitionKey, error: StreamlogError) -> None:
        code = error.code if isinstance(error, LogError) else ErrorCode.KAFKA_STORAGE_ERROR
        self._note(number, partition_key, code)

    # Partitions led by others.

    def _send(self) -> None:
        outbox, self._outbox = self._outbox, {}
        for node_id, tries in outbox.items():
            if self._others is None:
                self._on_lost(tries)
            else:
                call, spawn = self._others
                spawn(self._ask(call, node_id, tries))

    async def _ask(self, call: Call, node_id: int, tries: list[Try]) -> None:
        request = WriteTxnMarkersRequest(
            coordinator_id=self._node_id, markers=[_marker(each) for each in tries]
        )
        try:
            response = await call(node_id, request, REQUEST_TIMEOUT_MS)
        except StreamlogError as error:
            _log.info("transaction markers for broker %d are postponed: %s", node_id, error)
            response = WriteTxnMarkersResponse()
        self._on_response(tries, response)

    def _on_response(self, tries: list[Try], response: Message) -> None:
        codes = _codes(response) if isinstance(response, WriteTxnMarkersResponse) else {}
        for each in tries:
            for partition_key in each.partitions:
                code = codes.get((each.job.ending.producer_id, partition_key))
                code = ErrorCode.REQUEST_TIMED_OUT if code is None else code
                self._note(each.number, partition_key, code)
        self._tell()

    def _on_lost(self, tries: list[Try]) -> None:
        self._on_response(tries, WriteTxnMarkersResponse())

    def _note(self, number: int, partition_key: PartitionKey, code: int) -> None:
        if code in NEEDLESS:
            _log.warning(
                "%s-%d: no transaction marker is needed: %s", *partition_key, ErrorCode(code).name
            )
        self._queue.on_code(number, partition_key, code, self._clock.now_ms())

    def _tell(self) -> None:
        """Report completed jobs; a report may complete further ones."""
        # `on_done` appends, which may complete another job and call this method again.
        if self._is_telling:
            return
        self._is_telling = True
        try:
            while done := self._queue.take_complete():
                for job in done:
                    self._on_done(job)
        finally:
            self._is_telling = False


def _marker(trial: Try) -> WritableTxnMarker:
    ending, topics = trial.job.ending, dict[str, list[int]]()
    for topic, index in trial.partitions:
        topics.setdefault(topic, []).append(index)
    return WritableTxnMarker(
        producer_id=ending.producer_id,
        producer_epoch=ending.producer_epoch,
        transaction_result=ending.committed,
        topics=[
            WritableTxnMarkerTopic(name=topic, partition_indexes=numbers)
            for topic, numbers in topics.items()
        ],
        coordinator_epoch=trial.job.coordinator_epoch,
        transaction_version=ending.client_version,
    )


def _codes(response: WriteTxnMarkersResponse) -> dict[tuple[int, PartitionKey], int]:
    """Return the result of each marker, by producer id and partition."""
    return {
        (each.producer_id, (topic.name, partition.partition_index)): partition.error_code
        for each in response.markers
        for topic in each.topics
        for partition in topic.partitions
    }
