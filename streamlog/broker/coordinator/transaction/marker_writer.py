"""MarkerWriting: brings markers to the partitions that they end a transaction in.

The thin edge of `markers`: what this broker leads is written here, offsets of groups included; what
others lead goes to them by WriteTxnMarkers (KIP-98), all that is due for one broker in one request.
Either way a marker is done once it is committed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from typing import TYPE_CHECKING, Any

from streamlog import repeated
from streamlog.broker.coordinator.group.group_runtime import OFFSETS_TOPIC
from streamlog.broker.coordinator.transaction.transaction_coordinator import (
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
    from streamlog.broker.coordinator.transaction.transaction_coordinator import LeaderOf
    from streamlog.broker.replication.partition import Partition, Partitions
    from streamlog.clock import Clock
    from streamlog.protocol.schema import Message

Place = tuple[str, int]
Call = Callable[[int, "Message", int], Awaitable["Message"]]
"""Asks another broker, by number, and waits for so many ms. Raises StreamlogError."""
Spawn = Callable[[Coroutine[Any, Any, None]], object]
"""Runs something for as long as the broker does."""

REQUEST_TIMEOUT_MS = 15_000
"""More than a leader waits for its followers, so that it can say that they were too slow."""

_log = repeated.logger(__name__)


class MarkerWriter:
    """The markers of one broker, as a coordinator and as a leader."""

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
        """`on_done` is told of transactions all of whose markers are committed."""
        self._partitions = partitions
        self._groups = groups
        self._node_id = node_id
        self._leader_of = leader_of
        self._clock = clock
        self._on_done = on_done
        self.on_marker: Callable[[Place, int], None] = lambda _place, _producer_id: None
        """Told of each marker before it is written here: the place, and whose transaction ends."""
        self._queue = MarkerQueue()
        self._outbox: dict[int, list[Try]] = {}
        self._others: tuple[Call, Spawn] | None = None
        self._is_telling = False

    def begin(self, call: Call, spawn: Spawn) -> None:
        """Other brokers can be asked from now on."""
        self._others = call, spawn

    def add(self, jobs: Iterable[MarkerJob]) -> None:
        """See to these transactions."""
        for job in jobs:
            self._queue.add(job, self._clock.now_ms())
        self.tick()

    def forget(self, index: int) -> None:
        """The coordinator of a partition is another broker, which sees to its transactions."""
        self._queue.forget(index)

    def tick(self) -> None:
        """Try what is due."""
        for each in self._queue.take(self._leader_of, self._clock.now_ms()):
            if each.node_id == self._node_id:
                self._write_here(each)
                continue
            if not self._outbox:
                # What else is decided in this turn of the loop goes with the same requests.
                asyncio.get_running_loop().call_soon(self._send)
            self._outbox.setdefault(each.node_id, []).append(each)
        self._tell()

    def next_deadline_ms(self) -> int | None:
        """When `tick` has something to do at the earliest; None for never."""
        return self._queue.next_deadline_ms()

    # ---- what is led here ----

    def write(self, place: Place, producer: tuple[int, int], marker: Marker) -> Partition:
        """End a producer's transaction in one partition.

        Raises:
            UnknownTopicOrPartition: it is gone.
            LogError: a newer instance of the producer, or a newer coordinator, has taken over;
                another broker leads it; too few replicas are in sync.
            LogDirectoryError: the disk refused.
        """
        topic, index = place
        partition = self._partitions.get(topic, index)
        if topic == OFFSETS_TOPIC:
            self._groups.check_marker(index)
        partition.check_insync()
        now_ms, wall_ms = self._clock.now_ms(), self._clock.wall_ms()
        partition.end_transaction(*producer, marker, now_ms=now_ms, wall_ms=wall_ms)
        self.on_marker(place, producer[0])
        if topic == OFFSETS_TOPIC:
            self._groups.on_marker(index, producer[0], committed=marker.kind == COMMIT)
        return partition

    def _write_here(self, trial: Try) -> None:
        ending = trial.job.ending
        marker = Marker(COMMIT if ending.committed else ABORT, trial.job.coordinator_epoch)
        producer = (ending.producer_id, ending.producer_epoch)
        for place in trial.places:
            try:
                partition = self.write(place, producer, marker)
            except StreamlogError as error:
                if not isinstance(error, LogError):
                    _log.error("%s-%d: a marker is written later: %s", *place, error)
                self._on_refused(trial.number, place, error)
                continue
            end_offset = partition.log.log_end_offset
            if partition.may_acknowledge(end_offset):
                self._queue.on_code(trial.number, place, ErrorCode.NONE, self._clock.now_ms())
            else:
                partition.when_committed(
                    end_offset, partial(self._on_committed, trial.number, place)
                )

    def _on_committed(self, number: int, place: Place, failure: StreamlogError | None) -> None:
        if failure is None:
            self._queue.on_code(number, place, ErrorCode.NONE, self._clock.now_ms())
        else:
            self._on_refused(number, place, failure)
        self._tell()

    def _on_refused(self, number: int, place: Place, error: StreamlogError) -> None:
        code = error.code if isinstance(error, LogError) else ErrorCode.KAFKA_STORAGE_ERROR
        self._note(number, place, code)

    # ---- what others lead ----

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
            _log.info("broker %d gets its transaction markers later: %s", node_id, error)
            response = WriteTxnMarkersResponse()
        self._on_response(tries, response)

    def _on_response(self, tries: list[Try], response: Message) -> None:
        codes = _codes(response) if isinstance(response, WriteTxnMarkersResponse) else {}
        for each in tries:
            for place in each.places:
                told = codes.get((each.job.ending.producer_id, place))
                code = ErrorCode.REQUEST_TIMED_OUT if told is None else told
                self._note(each.number, place, code)
        self._tell()

    def _on_lost(self, tries: list[Try]) -> None:
        self._on_response(tries, WriteTxnMarkersResponse())

    def _note(self, number: int, place: Place, code: int) -> None:
        if code in NEEDLESS:
            _log.warning("%s-%d: no marker is needed: %s", *place, ErrorCode(code).name)
        self._queue.on_code(number, place, code, self._clock.now_ms())

    def _tell(self) -> None:
        """Tell of what is done; what that leads to may be done at once as well."""
        if self._is_telling:
            return
        self._is_telling = True
        try:
            while done := self._queue.take_done():
                for job in done:
                    self._on_done(job)
        finally:
            self._is_telling = False


def _marker(trial: Try) -> WritableTxnMarker:
    ending, topics = trial.job.ending, dict[str, list[int]]()
    for topic, index in trial.places:
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
    )


def _codes(response: WriteTxnMarkersResponse) -> dict[tuple[int, Place], int]:
    """What has become of each marker, by producer and place."""
    return {
        (each.producer_id, (topic.name, partition.partition_index)): partition.error_code
        for each in response.markers
        for topic in each.topics
        for partition in topic.partitions
    }
