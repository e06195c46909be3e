"""QuorumMember: one node of the quorum; while it leads, it decides (`ActiveController`).

    request ─► submit ─► ActiveController ─► LogReplica.raft ─► on a majority's disks
                                                                     │ on_committed
    answer  ◄─ Decision.answer ◄─ watchers ◄─ ClusterMetadata.replay ◄┘

The active controller makes one decision at a time: it decides, appends one batch, and answers when
the batch is committed and in the metadata. The next decision rests on nothing that could be taken
back. If the node stops leading before, the batch may or may not be committed, and the client asks
the next controller.

A member without peers needs no loop: `submit` returns the response. `run` serves members with
peers. On a full disk requests are refused with its error, and the member continues when the disk
accepts writes again (`log_replica`).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Protocol, Self

from streamlog import repeated
from streamlog.broker.config.cluster import ClusterConfig
from streamlog.broker.quorum.controller.cluster_controller import Controller
from streamlog.broker.quorum.controller.decision import ControllerContext, Decision
from streamlog.broker.quorum.metadata.cluster_metadata import (
    ClusterMetadata,
    MetadataChange,
    changes_between,
)
from streamlog.broker.quorum.metadata.metadata_records import decode_record, encode_record
from streamlog.broker.quorum.raft.log_entries import encode_entry, encode_snapshot, records_of
from streamlog.broker.quorum.raft.log_replica import LogPosition, LogReplica, QuorumPeers
from streamlog.broker.quorum.raft.raft_machine import QuorumView, view_of
from streamlog.broker.quorum.raft.raft_messages import EMPTY, RaftSnapshotId
from streamlog.broker.quorum.raft.raft_state import UNKNOWN, Timeouts
from streamlog.broker.quorum.raft.raft_wire import Asked
from streamlog.broker.storage.disk.files import Files
from streamlog.clock import Clock
from streamlog.errors import LogDirectoryError, LogDirectoryFull, LogError, StreamlogError
from streamlog.protocol.error_codes import ErrorCode
from streamlog.protocol.schema import Message

WAITING_MAX = 1_000
"""Requests that wait for their turn; those that come then are refused."""
RETRY_MS = 500
"""Until something due that could not be written is decided anew. The node may lead no longer, and
be told so behind a disk that is slow."""


class MetadataLogPort(Protocol):
    """Port: the end of the metadata log."""

    @property
    def end_offset(self) -> int:
        """Where the next record goes."""
        ...

    def write(self, values: list[bytes]) -> None:
        """Append one batch; it may be committed, and applied, before this returns.

        Raises:
            StreamlogError: nothing was written.
        """
        ...


_log = repeated.logger(__name__)


@dataclass(slots=True)
class Submitted:
    """A request; or what is due with time, which nobody waits for."""

    decide: Callable[[], Decision]
    since_ms: int
    """When it came, or was due."""
    future: asyncio.Future[Message] | None = None
    """Who waits; None in a node without a loop, which has the result at once."""
    decision: Decision | None = None
    next_offset: int = 0
    """Behind its records, once they are in the log."""
    result: Message | StreamlogError | None = None


class ActiveController:
    """Runs a `Controller` on a log; `on_applied` tells what has come of what was written."""

    def __init__(self, realm: ControllerContext, *, clock: Clock, log: MetadataLogPort) -> None:
        self.is_active = False
        self._controller = Controller(realm)
        self._clock = clock
        self._log = log
        self._waiting: deque[Submitted] = deque()
        self._under_way: Submitted | None = None
        self._is_deciding = False
        self._not_before_ms = 0
        """When what is due is decided at the earliest."""

    @property
    def requests(self) -> frozenset[type[Message]]:
        """What it decides on."""
        return self._controller.requests

    @property
    def is_busy(self) -> bool:
        """Whether it takes no more requests for now."""
        return len(self._waiting) >= WAITING_MAX

    @property
    def deciding_ms(self) -> int | None:
        """For how long what is being decided has been; None for nothing."""
        under_way = self._under_way
        return None if under_way is None else self._clock.now_ms() - under_way.since_ms

    def begin(self) -> None:
        """The node leads, and all that was committed before is in the metadata."""
        self.is_active = True
        self._not_before_ms = 0
        first = self._controller.on_active(self._clock.now_ms())
        if first is not None:
            self._waiting.appendleft(Submitted(lambda: first, self._clock.now_ms()))
        self.go_on()

    def end(self, error: StreamlogError) -> None:
        """The node leads no longer: whoever waits is told so."""
        self.is_active = False
        under_way, self._under_way = self._under_way, None
        waiting, self._waiting = self._waiting, deque()
        for submitted in (*((under_way,) if under_way else ()), *waiting):
            _settle(submitted, error)

    def submit(
        self, request: Message, version: int, future: asyncio.Future[Message] | None
    ) -> Submitted:
        """Have it decide, when it is its turn."""
        submitted = Submitted(
            lambda: self._controller.decide(request, version, self._clock.now_ms()),
            self._clock.now_ms(),
            future,
        )
        self._waiting.append(submitted)
        self.go_on()
        return submitted

    def on_applied(self, offset: int) -> None:
        """Everything before `offset` is committed and in the metadata."""
        under_way = self._under_way
        if under_way is not None and offset >= under_way.next_offset:
            self._under_way = None
            _settle(under_way, None)

    def go_on(self) -> None:
        """Decide what waits, and what is due."""
        if self._is_deciding:
            return
        self._is_deciding = True
        try:
            while self.is_active and self._under_way is None and self._next():
                pass
        finally:
            self._is_deciding = False

    def next_deadline_ms(self) -> int | None:
        """When `go_on` has something to do at the earliest; None for never."""
        if not self.is_active or self._under_way is not None:
            return None
        due_ms = self._controller.next_deadline_ms()
        return None if due_ms is None else max(due_ms, self._not_before_ms)

    def _next(self) -> bool:
        """Carry out one; whether there was any."""
        if self._waiting:
            self._carry_out(self._waiting.popleft())
            return True
        now_ms = self._clock.now_ms()
        due = self._controller.on_tick(now_ms) if now_ms >= self._not_before_ms else None
        if due is None:
            return False
        if not self._carry_out(Submitted(lambda: due, now_ms)):
            self._not_before_ms = now_ms + RETRY_MS
        return True

    def _carry_out(self, submitted: Submitted) -> bool:
        """Decide, and write that down; whether that could be done. If not, who asks is told."""
        try:
            self._decide(submitted)
        except StreamlogError as error:
            if submitted.future is None:
                _log.warning("the controller could not write what it had decided: %s", error)
            self._under_way = None
            _settle(submitted, error)
            return False
        return True

    def _decide(self, submitted: Submitted) -> None:
        decision = submitted.decision = submitted.decide()
        if not decision.records:
            _settle(submitted, None)
            return
        values = [encode_record(record) for record in decision.records]
        self._under_way = submitted
        submitted.next_offset = self._log.end_offset + len(values)
        self._log.write(values)


def _settle(submitted: Submitted, error: StreamlogError | None) -> None:
    decision, future = submitted.decision, submitted.future
    if error is not None:
        submitted.result = error
    elif decision is not None and decision.answer is not None:
        submitted.result = decision.answer()
    if future is None or future.done():
        return
    match submitted.result:
        case StreamlogError() as failure:
            future.set_exception(failure)
        case Message() as answer:
            future.set_result(answer)
        case None:
            future.cancel()


SNAPSHOT_BYTES = 20 * 1024 * 1024
"""Of entries since the last snapshot, after which the next one is written
(`metadata.log.max.record.bytes.between.snapshots`)."""
SNAPSHOT_RETRY_MS = 60_000
"""Until a snapshot for which there was no room is tried again."""

Watcher = Callable[[list[MetadataChange]], None]


class QuorumMember:
    """One node of the cluster; made by `open`.

    `snapshot_bytes` is after how much of the log, and `snapshot_interval_ms` after how long the
    next snapshot is written; 0: not for the time alone.
    """

    def __init__(
        self,
        place: LogPosition,
        realm: ControllerContext,
        *,
        snapshot_bytes: int,
        snapshot_interval_ms: int,
        rejoins: bool,
        has_earlier_start: bool,
    ) -> None:
        self._realm = realm
        self._clock = place.clock
        self._snapshot_bytes = snapshot_bytes
        self._snapshot_interval_ms = snapshot_interval_ms
        self._snapshot_not_before_ms = 0
        self._is_writing_snapshot = False
        self._uncovered_since_ms = 0
        """When the first was applied of what is in no snapshot, while there is any."""
        self._timer: asyncio.TimerHandle | None = None
        self._replica = LogReplica(
            place, self, rejoins=rejoins, has_earlier_start=has_earlier_start
        )
        self._controller = ActiveController(realm, clock=place.clock, log=self)
        self._watchers: list[Watcher] = []
        self._applied = self._replica.files.snapshot.end_offset
        self._led_from: int | None = None
        """The first offset of the epoch that this node leads; None if it leads none."""

    @classmethod
    def open(
        cls,
        files: Files,
        directory: str,
        realm: ControllerContext,
        *,
        voters: Sequence[int],
        clock: Clock,
        timeouts: Timeouts | None = None,
        snapshot_bytes: int = SNAPSHOT_BYTES,
        snapshot_interval_ms: int = 0,
        rejoins: bool = False,
        has_earlier_start: bool = False,
    ) -> Self:
        """Read what is on disk; a sole voter leads, and has applied all, when it returns.

        A sole voter whose disk is full has applied all, and leads as soon as there is room.

        `realm.metadata` is brought to what is committed. A voter that `rejoins`, because its disk
        was replaced, or whose files are damaged, does not vote before the others have let it in.
        Nor does one that `has_earlier_start` and has lost the folder of its metadata log.

        Raises:
            CorruptData: the files of a sole voter are damaged: nobody else has what is missing.
            ConfigError: the log is that of other voters.
            LogDirectoryError: the disk refuses.
        """
        place = LogPosition(
            files=files,
            directory=directory,
            node_id=realm.node_id,
            cluster_id=realm.cluster_id,
            voters=tuple(voters),
            draw=realm.chance.randrange,
            clock=clock,
            timeouts=timeouts or Timeouts(),
        )
        member = cls(
            place,
            realm,
            snapshot_bytes=snapshot_bytes,
            snapshot_interval_ms=snapshot_interval_ms,
            rejoins=rejoins,
            has_earlier_start=has_earlier_start,
        )
        try:
            member._begin(is_sole=place.is_sole)
        except BaseException:
            member.close()
            raise
        return member

    def _begin(self, *, is_sole: bool) -> None:
        self._begin_image(self._replica.files.values)
        if is_sole:
            self._replica.start()
        refusal = self._replica.failure or self._replica.refusal
        if is_sole and isinstance(refusal, LogDirectoryFull):
            # What a sole voter has on disk is committed, and can be served without being led.
            self._apply(self._replica.files.flushed_end)
        elif refusal is not None:
            raise refusal

    # ---- what it is ----

    @property
    def metadata(self) -> ClusterMetadata:
        """What is committed, as far as this node has heard; the same object all the time."""
        return self._realm.metadata

    @property
    def controller_id(self) -> int | None:
        """Who leads the quorum, as far as this node knows."""
        return self._replica.leader_id

    @property
    def epoch(self) -> int:
        """Of the quorum, as far as this node knows."""
        return self._replica.raft.epoch

    @property
    def is_active(self) -> bool:
        """Whether this node is the active controller: it leads, and knows all that is committed."""
        return self._controller.is_active

    @property
    def is_refused(self) -> bool:
        """Whether the disk takes nothing for now, so that this node decides nothing."""
        return self._replica.refusal is not None

    @property
    def is_rejoining(self) -> bool:
        """Whether it has lost what it had, and the others have not let it in again."""
        return self._replica.raft.is_rejoining

    @property
    def applied_offset(self) -> int:
        """Everything before it is in `metadata`."""
        return self._applied

    @property
    def requests(self) -> frozenset[type[Message]]:
        """What can be submitted."""
        return self._controller.requests

    def describe(self) -> str:
        """One line for people."""
        return self._replica.raft.describe()

    def configure(self, cluster: ClusterConfig) -> None:
        """Go by other settings."""
        self._realm.cluster = cluster

    def watch(self, watcher: Watcher) -> None:
        """Have it told of what every batch that is committed from now on has changed.

        It is told when the batch is in `metadata`, and before its answer leaves.
        """
        self._watchers.append(watcher)

    def replicas(self) -> QuorumView:
        """How far everybody is, as far as this node knows: all of it if it leads the quorum."""
        return view_of(self._replica.raft, ahead_ms=self._clock.wall_ms() - self._replica.now_ms)

    # ---- the controller ----

    @property
    def deciding_ms(self) -> int | None:
        """For how long the controller here has been at what is told to watchers; None: another."""
        return self._controller.deciding_ms

    def submit(self, request: Message, version: int) -> Message | asyncio.Future[Message]:
        """Have the controller decide; the answer is there once what it says is committed.

        Raises, at once or by the future:
            LogError: NOT_CONTROLLER: this node is not, or not any more, the active controller; if
                it was, what was asked may have happened or not.
            StreamlogError: nothing was decided.
        """
        replica = self._replica
        if replica.refusal is not None and not replica.waits:
            replica.reopen()  # there may be room again
        if not self.is_active or self._controller.is_busy:
            raise replica.failure or replica.refusal or self._not_active()
        future = asyncio.get_running_loop().create_future() if replica.waits else None
        submitted = self._controller.submit(request, version, future)
        if isinstance(submitted.result, StreamlogError):
            if future is not None:
                future.exception()  # it is raised here instead
            raise submitted.result
        result = submitted.result or future
        if result is None:
            raise self._not_active()
        return result

    def tick(self) -> None:
        """Do what is due; `run` does so by itself."""
        self._replica.tick()
        if not self._replica.is_down:
            self._controller.go_on()
            self._write_snapshot_if_due()
        self.on_performed()

    def next_deadline_ms(self) -> int | None:
        """When `tick` has something to do at the earliest; None for never."""
        due = [self._replica.next_deadline_ms(), self._controller.next_deadline_ms()]
        if not self._replica.is_down:
            due.append(self._snapshot_due_ms())
        return min((each for each in due if each is not None), default=None)

    @property
    def end_offset(self) -> int:
        """Of the log, committed or not."""
        return self._replica.raft.end_offset

    def write(self, values: list[bytes]) -> None:
        """Append one batch of records; for the controller.

        Raises:
            LogError: NOT_CONTROLLER: this node does not lead the quorum.
            MessageTooLarge: they do not fit into one batch.
        """
        raft = self._replica.raft
        leadership = raft.leadership
        if leadership is None or leadership.start_offset != self._led_from:
            raise self._not_active()  # it is about to hear so: the metadata may lag behind
        entry = encode_entry(
            values,
            base_offset=raft.end_offset,
            epoch=raft.epoch,
            wall_ms=self._clock.wall_ms(),
        )
        now_ms = self._replica.now_ms
        self._replica.perform(raft.append(entry.payload, count=entry.count, now_ms=now_ms))

    def _not_active(self) -> LogError:
        leader = self.controller_id
        who = "nobody is, for now" if leader is None else f"node {leader} leads the quorum"
        return LogError(
            f"node {self._realm.node_id} is not the active controller: {who}",
            code=ErrorCode.NOT_CONTROLLER,
        )

    # ---- what is committed ----

    def _begin_image(self, values: Sequence[bytes]) -> None:
        """Begin with what a snapshot holds."""
        snapshot = self._replica.files.snapshot
        if snapshot != EMPTY:
            records = (decode_record(value) for value in values)
            self.metadata.become(ClusterMetadata.of_snapshot(records, snapshot.end_offset - 1))
        self._applied = snapshot.end_offset

    def on_committed(self, high_watermark: int) -> None:
        """See `Reader.on_committed`."""
        log = self._replica.files.log
        self._apply(high_watermark)
        self._activate()
        self._controller.go_on()
        if log.size_bytes >= self._snapshot_bytes:
            self._write_snapshot_if_due()

    def _apply(self, high_watermark: int) -> None:
        """Bring the metadata to what is committed."""
        log = self._replica.files.log
        if not self._has_uncovered:
            self._uncovered_since_ms = self._replica.now_ms
        for entry in log.read(self._applied, max_bytes=2**62, end_offset=high_watermark):
            changes = [
                change
                for offset, value in records_of(entry)
                if (change := self.metadata.replay(decode_record(value), offset)) is not None
            ]
            self._applied = entry.next_offset
            self._tell(changes)
            self._controller.on_applied(self._applied)

    def on_installed(self, values: Sequence[bytes]) -> None:
        """See `Reader.on_installed`."""
        before = ClusterMetadata.of_snapshot(self.metadata.snapshot(), self.metadata.offset)
        self._begin_image(values)
        self._tell(changes_between(before, self.metadata))

    def on_leading(self, start_offset: int) -> None:
        """See `Reader.on_leading`."""
        self._led_from = start_offset
        self._activate()

    def on_not_leading(self) -> None:
        """See `Reader.on_not_leading`."""
        self._led_from = None
        self._controller.end(self._not_active())

    def on_refused(self, error: StreamlogError) -> None:
        """See `Reader.on_refused`."""
        self._led_from = None
        self._is_writing_snapshot = False
        self._controller.end(error)

    def on_performed(self) -> None:
        """See `Reader.on_performed`."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        deadline_ms = self.next_deadline_ms() if self._replica.waits else None
        if deadline_ms is not None:
            delay_ms = max(0, deadline_ms - self._replica.now_ms)
            self._timer = asyncio.get_running_loop().call_later(delay_ms / 1000, self.tick)

    def _activate(self) -> None:
        """The node leads; once all that was committed before is in its metadata, it decides."""
        led_from = self._led_from
        if led_from is not None and self._applied > led_from and not self.is_active:
            self._controller.begin()

    def _tell(self, changes: list[MetadataChange]) -> None:
        if changes:
            for watcher in self._watchers:
                watcher(changes)

    # ---- snapshots ----

    @property
    def _has_uncovered(self) -> bool:
        """Whether anything was applied that is in no snapshot."""
        return self._applied > self._replica.files.snapshot.end_offset

    def _snapshot_due_ms(self) -> int | None:
        """When the next snapshot is due; None if there is nothing new, or one is being written.

        By this clock, not by when entries say that they were written: wall clocks jump.
        """
        if not self._has_uncovered or self._is_writing_snapshot:
            return None
        if self._replica.files.log.size_bytes >= self._snapshot_bytes:
            return self._snapshot_not_before_ms
        if not self._snapshot_interval_ms:
            return None
        due_ms = self._uncovered_since_ms + self._snapshot_interval_ms
        return max(due_ms, self._snapshot_not_before_ms)

    def _write_snapshot_if_due(self) -> None:
        due_ms = self._snapshot_due_ms()
        if due_ms is not None and due_ms <= self._replica.now_ms:
            self.write_snapshot()

    def write_snapshot(self) -> None:
        """Write down what all that was applied amounts to; the log then begins there."""
        replica = self._replica
        files, raft = replica.files, replica.raft
        snapshot = RaftSnapshotId(self._applied, raft.chain.epoch_at(self._applied))
        if snapshot <= files.snapshot or self._is_writing_snapshot:
            return
        values = [encode_record(record) for record in self.metadata.snapshot()]
        batches = encode_snapshot(values, epoch=snapshot.epoch, wall_ms=self._clock.wall_ms())
        self._is_writing_snapshot = True
        began_ms = replica.now_ms
        refused: list[LogDirectoryFull] = []

        def write() -> None:
            try:
                files.write_snapshot(snapshot, batches)
            except LogDirectoryFull as error:
                refused.append(error)  # the log has what would have been in it

        def written() -> None:
            self._is_writing_snapshot = False
            if refused:
                _log.warning("no snapshot of the metadata log is written: %s", refused[0])
                self._snapshot_not_before_ms = replica.now_ms + SNAPSHOT_RETRY_MS
                return
            files.snapshot = max(files.snapshot, snapshot)
            self._uncovered_since_ms = began_ms  # what was applied meanwhile is not in it
            replica.perform(raft.trim(snapshot))

        try:
            files.roll()
        except LogDirectoryError as error:
            replica.fail(error)
        else:
            replica.aside(write, written)

    # ---- peers ----

    def handle(self, request: Asked) -> asyncio.Future[Message]:
        """Another member asks: Vote, Begin- or EndQuorumEpoch, Fetch of the log, FetchSnapshot.

        Raises:
            CorruptData: the request makes no sense.
            LogError: INCONSISTENT_CLUSTER_ID: it belongs to another cluster; INVALID_VOTER_KEY: it
                is meant for another node.
            LogDirectoryError: the disk does not let this one take part.
        """
        own = self._realm.cluster_id
        if request.cluster_id is not None and request.cluster_id != own:
            raise LogError(
                f"the request is meant for cluster {request.cluster_id}, this is {own}",
                code=ErrorCode.INCONSISTENT_CLUSTER_ID,
            )
        meant = getattr(request, "voter_id", UNKNOWN)
        if meant not in (UNKNOWN, self._realm.node_id):
            raise LogError(
                f"the request is meant for node {meant}, this is node {self._realm.node_id}:"
                " controller.quorum.voters has its address for the other one",
                code=ErrorCode.INVALID_VOTER_KEY,
            )
        return self._replica.handle(request)

    async def run(self, peers: QuorumPeers, thread: Executor) -> None:
        """Take part in the quorum until `stop`; what takes long is done by the thread.

        Raises:
            StreamlogError: the log can't be written, or contradicts what is committed.
        """
        await self._replica.run(peers, thread)

    def stop(self) -> None:
        """Have `run` end; a leader lets the others know."""
        self._replica.stop()

    def close(self) -> None:
        """Give the files back; after `run`."""
        if self._timer is not None:
            self._timer.cancel()
        self._replica.close()
