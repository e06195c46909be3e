"""QuorumMember: one node of the quorum and, while it leads, the active controller.

    request ─► submit ─► ActiveController ─► LogReplica.raft ─► on a majority's disks
                                                                     │ on_committed
    answer  ◄─ Decision.answer ◄─ watchers ◄─ ClusterMetadata.replay ◄┘

Rules of this module: the active controller makes one decision at a time. It decides, appends one
batch, and answers once the batch is committed and in the metadata. So the next decision never
depends on records that could still be lost. If the node stops leading before that, the batch may or
may not be committed, and the client asks the next controller.

A member without peers needs no event loop: `submit` returns the response. `run` serves a member
with peers. On a full disk, requests are refused with its error until the disk accepts writes again.

Not done here: what is decided (`controller`), the log and its replication (`raft`).
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
)
from streamlog.broker.quorum.metadata.image_changes import changes_between
from streamlog.broker.quorum.metadata.metadata_records import decode_record, encode_record
from streamlog.broker.quorum.raft.log_entries import encode_entry, encode_snapshot, records_of
from streamlog.broker.quorum.raft.log_replica import LogReplica, LogReplicaContext, QuorumPeers
from streamlog.broker.quorum.raft.raft_machine import QuorumView, view_of
from streamlog.broker.quorum.raft.raft_messages import EMPTY, RaftSnapshotId
from streamlog.broker.quorum.raft.raft_state import UNKNOWN, Timeouts
from streamlog.broker.quorum.raft.raft_wire import Asked
from streamlog.broker.storage.disk.files import Files
from streamlog.broker.subject_logs import log_records
from streamlog.clock import Clock
from streamlog.errors import LogDirectoryError, LogDirectoryFull, LogError, StreamlogError
from streamlog.metrics.instruments import Histogram
from streamlog.protocol.error_codes import ErrorCode
from streamlog.protocol.schema import Message

WAITING_MAX = 1_000
"""The number of waiting requests at which further ones are refused."""
RETRY_MS = 500
"""The pause in milliseconds before a timed decision is repeated that could not be written. The
node may have lost its leadership, and learn it only behind a slow disk."""


class MetadataLogPort(Protocol):
    """Port: the end of the metadata log."""

    @property
    def end_offset(self) -> int:
        """The offset of the next record."""
        ...

    def write(self, values: list[bytes]) -> None:
        """Append one batch, which may be committed and applied before this returns.

        Raises:
            StreamlogError: nothing was written.
        """
        ...


_log = repeated.logger(__name__)


@dataclass(slots=True)
class Submitted:
    """A request to the controller, or a timed decision, which has no future and no answer."""

    decide: Callable[[], Decision[Message]]
    since_ms: int
    """When it arrived, or was due."""
    future: asyncio.Future[Message] | None = None
    """Gets the result; None without an event loop, where `result` is set at once."""
    decision: Decision[Message] | None = None
    begun_ms: int = 0
    """When the decision began."""
    next_offset: int = 0
    """The offset after its records, once they are in the log."""
    result: Message | StreamlogError | None = None


class ActiveController:
    """Runs a `Controller` on a log, one decision at a time."""

    def __init__(
        self, controller_context: ControllerContext, *, clock: Clock, log: MetadataLogPort
    ) -> None:
        self.is_active = False
        self.queue_times = Histogram()
        """How long requests waited for earlier decisions, in seconds."""
        self.decision_times = Histogram()
        """How long decisions took, from their beginning until they were committed, in seconds."""
        self._controller = Controller(controller_context)
        self._clock = clock
        self._log = log
        self._waiting: deque[Submitted] = deque()
        self._in_progress: Submitted | None = None
        self._is_deciding = False
        self._not_before_ms = 0
        """The earliest time of the next timed decision, after one that could not be written."""

    @property
    def requests(self) -> frozenset[type[Message]]:
        """The kinds of requests that it decides on."""
        return self._controller.requests

    @property
    def waiting(self) -> int:
        """How many requests wait for earlier decisions."""
        return len(self._waiting)

    @property
    def is_busy(self) -> bool:
        """Whether it refuses further requests because too many wait."""
        return len(self._waiting) >= WAITING_MAX

    @property
    def deciding_ms(self) -> int | None:
        """The age in milliseconds of the decision that is in progress; None for none."""
        in_progress = self._in_progress
        return None if in_progress is None else self._clock.now_ms() - in_progress.since_ms

    def begin(self) -> None:
        """Start deciding: the node leads, and the metadata includes all that was committed."""
        self.is_active = True
        self._not_before_ms = 0
        first = self._controller.on_active(self._clock.now_ms())
        if first is not None:
            self._waiting.appendleft(Submitted(lambda: first, self._clock.now_ms()))
        self.proceed()

    def end(self, error: StreamlogError) -> None:
        """Stop deciding, because the node does not lead; waiting requests get `error`."""
        self.is_active = False
        in_progress, self._in_progress = self._in_progress, None
        waiting, self._waiting = self._waiting, deque()
        for submitted in (*((in_progress,) if in_progress else ()), *waiting):
            _complete(submitted, error)

    def submit(
        self, request: Message, version: int, future: asyncio.Future[Message] | None
    ) -> Submitted:
        """Queue a request; its result is in `future`, or in the returned object."""
        submitted = Submitted(
            lambda: self._controller.decide(request, version, self._clock.now_ms()),
            self._clock.now_ms(),
            future,
        )
        self._waiting.append(submitted)
        self.proceed()
        return submitted

    def on_applied(self, offset: int) -> None:
        """Answer the decision in progress, if its records are before `offset`.

        Everything before `offset` is committed and in the metadata.
        """
        in_progress = self._in_progress
        if in_progress is not None and offset >= in_progress.next_offset:
            self._in_progress = None
            self._note_time(in_progress)
            _complete(in_progress, None)

    def proceed(self) -> None:
        """Decide on the requests that wait, then on what is due."""
        # Without peers `write` commits at once, and `on_committed` calls this method again.
        if self._is_deciding:
            return
        self._is_deciding = True
        try:
            while self.is_active and self._in_progress is None and self._next():
                pass
        finally:
            self._is_deciding = False

    def next_deadline_ms(self) -> int | None:
        """Return when `proceed` next has a timed decision to make; None for never."""
        if not self.is_active or self._in_progress is not None:
            return None
        due_ms = self._controller.next_deadline_ms()
        return None if due_ms is None else max(due_ms, self._not_before_ms)

    def _next(self) -> bool:
        """Carry out one decision; return whether there was any."""
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
        """Decide and write the records; return whether that succeeded.

        If not, the request gets the error.
        """
        try:
            self._decide(submitted)
        except StreamlogError as error:
            if submitted.future is None:
                _log.warning("the controller could not write its decision: %s", error)
            self._in_progress = None
            _complete(submitted, error)
            return False
        return True

    def _decide(self, submitted: Submitted) -> None:
        # Timed decisions count, too: theirs is the time since they were due.
        submitted.begun_ms = self._clock.now_ms()
        self.queue_times.record((submitted.begun_ms - submitted.since_ms) / 1000)
        decision = submitted.decision = submitted.decide()
        if not decision.records:
            self._note_time(submitted)
            _complete(submitted, None)
            return
        values = [encode_record(record) for record in decision.records]
        # Set before the write, which may commit and apply the records at once.
        self._in_progress = submitted
        log_records(self._log.end_offset, decision.records)
        submitted.next_offset = self._log.end_offset + len(values)
        self._log.write(values)

    def _note_time(self, submitted: Submitted) -> None:
        self.decision_times.record((self._clock.now_ms() - submitted.begun_ms) / 1000)


def _complete(submitted: Submitted, error: StreamlogError | None) -> None:
    decision, future = submitted.decision, submitted.future
    if error is not None:
        submitted.result = error
    elif decision is not None and decision.answer is not None:
        submitted.result = decision.answer()
    if future is None or future.done():
        return  # The client has disconnected, or there is no event loop.
    match submitted.result:
        case StreamlogError() as failure:
            future.set_exception(failure)
        case Message() as answer:
            future.set_result(answer)
        case None:
            future.cancel()


SNAPSHOT_BYTES = 20 * 1024 * 1024
"""The bytes of entries after which the next snapshot is written
(`metadata.log.max.record.bytes.between.snapshots`)."""
SNAPSHOT_RETRY_MS = 60_000
"""The pause in milliseconds after a snapshot for which the disk had no room."""

Watcher = Callable[[list[MetadataChange]], None]


class QuorumMember:
    """One node of the quorum, voter or observer; made by `open`."""

    def __init__(
        self,
        context: LogReplicaContext,
        controller_context: ControllerContext,
        *,
        snapshot_bytes: int,
        snapshot_interval_ms: int,
        rejoins: bool,
        has_earlier_start: bool,
    ) -> None:
        self._controller_context = controller_context
        self._clock = context.clock
        self._snapshot_bytes = snapshot_bytes
        self._snapshot_interval_ms = snapshot_interval_ms
        self._snapshot_not_before_ms = 0
        self._is_writing_snapshot = False
        self._uncovered_since_ms = 0
        """When the first entry was applied that is in no snapshot, while there is one."""
        self._timer: asyncio.TimerHandle | None = None
        self._replica = LogReplica(
            context, self, rejoins=rejoins, has_earlier_start=has_earlier_start
        )
        self._controller = ActiveController(controller_context, clock=context.clock, log=self)
        self._watchers: list[Watcher] = []
        self._applied = self._replica.files.snapshot.end_offset
        self._epoch_start: int | None = None
        """The first offset of the epoch that this node leads; None if it does not lead."""

    @classmethod
    def open(
        cls,
        files: Files,
        directory: str,
        controller_context: ControllerContext,
        *,
        voters: Sequence[int],
        clock: Clock,
        timeouts: Timeouts | None = None,
        snapshot_bytes: int = SNAPSHOT_BYTES,
        snapshot_interval_ms: int = 0,
        rejoins: bool = False,
        has_earlier_start: bool = False,
    ) -> Self:
        """Open a node's metadata log, and apply what is committed to the context's metadata.

        A sole voter leads, and has applied everything, when this returns. If its disk is full, it
        has applied everything, and leads as soon as there is room.

        Args:
            files: the file system.
            directory: the node's data directory.
            controller_context: the node, its metadata and its settings.
            voters: the node ids of all voters.
            clock: the time.
            timeouts: the quorum's time-outs, Kafka's defaults if not given.
            snapshot_bytes: the bytes of entries after which a snapshot is written.
            snapshot_interval_ms: the time after which a snapshot is written; 0 for no limit.
            rejoins: whether the disk replaces one that was lost. Such a voter, like one whose
                files are damaged, does not vote before the others let it in again.
            has_earlier_start: whether a node was started on this directory before. If the folder
                of the metadata log is missing then, the voter rejoins too.

        Raises:
            CorruptData: the files of a sole voter are damaged, so no other node can repair them.
            ConfigError: the log belongs to other voters.
            LogDirectoryError: the disk failed.
        """
        context = LogReplicaContext(
            files=files,
            directory=directory,
            node_id=controller_context.node_id,
            cluster_id=controller_context.cluster_id,
            voters=tuple(voters),
            draw=controller_context.chance.randrange,
            clock=clock,
            timeouts=timeouts or Timeouts(),
        )
        member = cls(
            context,
            controller_context,
            snapshot_bytes=snapshot_bytes,
            snapshot_interval_ms=snapshot_interval_ms,
            rejoins=rejoins,
            has_earlier_start=has_earlier_start,
        )
        try:
            member._begin(is_sole=context.is_sole)
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
            # What a sole voter has on disk is committed, so it can be served without a leader.
            self._apply(self._replica.files.flushed_end)
        elif refusal is not None:
            raise refusal

    # ---- what it is ----

    @property
    def metadata(self) -> ClusterMetadata:
        """The committed metadata that this node knows; always the same object."""
        return self._controller_context.metadata

    @property
    def controller_id(self) -> int | None:
        """The leader of the quorum, if this node knows it."""
        return self._replica.leader_id

    @property
    def epoch(self) -> int:
        """The latest epoch of the quorum that this node knows."""
        return self._replica.raft.epoch

    @property
    def is_active(self) -> bool:
        """Whether this node is the active controller: it leads and has all committed metadata."""
        return self._controller.is_active

    @property
    def is_refused(self) -> bool:
        """Whether the disk is full, so that this node takes no part in the quorum for now."""
        return self._replica.refusal is not None

    @property
    def is_rejoining(self) -> bool:
        """Whether this voter has lost its log and was not let in again."""
        return self._replica.raft.is_rejoining

    @property
    def applied_offset(self) -> int:
        """The offset before which everything is in `metadata`."""
        return self._applied

    @property
    def requests(self) -> frozenset[type[Message]]:
        """The kinds of requests that can be submitted."""
        return self._controller.requests

    def describe(self) -> str:
        """Return the state of the member in one line."""
        return self._replica.raft.describe()

    def configure(self, cluster: ClusterConfig) -> None:
        """Apply other settings of the cluster."""
        self._controller_context.cluster = cluster

    def watch(self, watcher: Watcher) -> None:
        """Call `watcher` with the changes of every batch that is committed from now on.

        It is called when the batch is in `metadata`, and before the answer to its request leaves.
        """
        self._watchers.append(watcher)

    def replicas(self) -> QuorumView:
        """Return the leader and the replicas; only the leader knows all replicas."""
        return view_of(self._replica.raft, ahead_ms=self._clock.wall_ms() - self._replica.now_ms)

    # ---- the controller ----

    @property
    def deciding_ms(self) -> int | None:
        """The age in milliseconds of the controller's decision in progress; None for none."""
        return self._controller.deciding_ms

    @property
    def controller_times(self) -> tuple[Histogram, Histogram]:
        """How long requests to this controller waited, and how long its decisions took."""
        return self._controller.queue_times, self._controller.decision_times

    @property
    def waiting_decisions(self) -> int:
        """How many requests wait for this controller to begin with them."""
        return self._controller.waiting

    def submit(self, request: Message, version: int) -> Message | asyncio.Future[Message]:
        """Let the controller decide on a request; return its answer, or a future of it.

        The answer exists once the records of the decision are committed.

        Raises, at once or by the future:
            LogError: NOT_CONTROLLER: this node is not the active controller. If it has stopped
                being it, the request may or may not have taken effect.
            StreamlogError: nothing was decided.
        """
        replica = self._replica
        if replica.refusal is not None and not replica.waits:
            replica.reopen()  # Without an event loop, no timer checks for room on the disk.
        if not self.is_active or self._controller.is_busy:
            raise replica.failure or replica.refusal or self._not_active()
        future = asyncio.get_running_loop().create_future() if replica.waits else None
        submitted = self._controller.submit(request, version, future)
        if isinstance(submitted.result, StreamlogError):
            if future is not None:
                future.exception()  # Raised here instead: mark it as retrieved.
            raise submitted.result
        result = submitted.result or future
        if result is None:
            raise self._not_active()
        return result

    def tick(self) -> None:
        """Do what is due, see `next_deadline_ms`; in an event loop a timer calls this."""
        self._replica.tick()
        if not self._replica.is_down:
            self._controller.proceed()
            self._write_snapshot_if_due()
        self.on_performed()

    def next_deadline_ms(self) -> int | None:
        """Return when `tick` next has something to do; None for never."""
        due = [self._replica.next_deadline_ms(), self._controller.next_deadline_ms()]
        if not self._replica.is_down:
            due.append(self._snapshot_due_ms())
        return min((each for each in due if each is not None), default=None)

    @property
    def end_offset(self) -> int:
        """The end offset of the log, committed or not."""
        return self._replica.raft.end_offset

    def write(self, values: list[bytes]) -> None:
        """Append one batch of records, for the controller.

        Raises:
            LogError: NOT_CONTROLLER: this node does not lead the quorum.
            MessageTooLarge: the records do not fit into one batch.
        """
        raft = self._replica.raft
        leadership = raft.leadership
        if leadership is None or leadership.start_offset != self._epoch_start:
            # 1. Raft has lost and won an election. 2. Its effects still wait behind a sync, so
            # that `on_not_leading` was not called. 3. The controller would decide by metadata
            # that may lack what another leader committed in between.
            raise self._not_active()
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
        who = "no node is, for now" if leader is None else f"node {leader} leads the quorum"
        return LogError(
            f"node {self._controller_context.node_id} is not the active controller: {who}",
            code=ErrorCode.NOT_CONTROLLER,
        )

    # ---- committed entries ----

    def _begin_image(self, values: Sequence[bytes]) -> None:
        """Replace the metadata by the values of the log's snapshot."""
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
        self._controller.proceed()
        if log.size_bytes >= self._snapshot_bytes:
            self._write_snapshot_if_due()

    def _apply(self, high_watermark: int) -> None:
        """Apply the entries before `high_watermark` to the metadata."""
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
            # Watchers first: an answer must not arrive before its effect on this broker.
            self._notify(changes)
            self._controller.on_applied(self._applied)

    def on_installed(self, values: Sequence[bytes]) -> None:
        """See `Reader.on_installed`."""
        before = ClusterMetadata.of_snapshot(self.metadata.snapshot(), self.metadata.offset)
        self._begin_image(values)
        self._notify(changes_between(before, self.metadata))

    def on_leading(self, start_offset: int) -> None:
        """See `Reader.on_leading`."""
        self._epoch_start = start_offset
        self._activate()

    def on_not_leading(self) -> None:
        """See `Reader.on_not_leading`."""
        self._epoch_start = None
        self._controller.end(self._not_active())

    def on_refused(self, error: StreamlogError) -> None:
        """See `Reader.on_refused`."""
        self._epoch_start = None
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
        """Start the controller if this node leads and has applied an entry of its epoch.

        A committed entry of the own epoch shows that everything before is committed and applied.
        """
        epoch_start = self._epoch_start
        # 1. Node 1 leads epoch 5 from offset 100, and knows that 90 is committed. 2. Offsets 90 to
        #    99 may be committed too: another leader may have answered for them. 3. With offset 100
        #    committed and applied, all of them are in the metadata.
        if epoch_start is not None and self._applied > epoch_start and not self.is_active:
            self._controller.begin()

    def _notify(self, changes: list[MetadataChange]) -> None:
        if changes:
            for watcher in self._watchers:
                watcher(changes)

    # ---- snapshots ----

    @property
    def _has_uncovered(self) -> bool:
        """Whether an entry was applied that is in no snapshot."""
        return self._applied > self._replica.files.snapshot.end_offset

    def _snapshot_due_ms(self) -> int | None:
        """Return when the next snapshot is due; None if nothing is new, or one is in progress.

        By the monotonic clock, not by the timestamps of entries, because wall clocks jump.
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
        """Write a snapshot of the applied metadata; the log then begins after it."""
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
                refused.append(error)  # No harm: the log still has all entries.

        def finish() -> None:
            self._is_writing_snapshot = False
            if refused:
                _log.warning(
                    "could not write a snapshot of the metadata log, and will retry: %s", refused[0]
                )
                self._snapshot_not_before_ms = replica.now_ms + SNAPSHOT_RETRY_MS
                return
            files.snapshot = max(files.snapshot, snapshot)
            self._uncovered_since_ms = began_ms  # It lacks entries that were applied since then.
            replica.perform(raft.trim(snapshot))

        try:
            # The log after the snapshot begins in a file of its own, so that `trim` can remove the
            # files before it as a whole.
            files.roll()
        except LogDirectoryError as error:
            replica.fail(error)
        else:
            replica.run_in_thread(write, finish)

    # ---- peers ----

    def handle(self, request: Asked) -> asyncio.Future[Message]:
        """Handle Vote, Begin- and EndQuorumEpoch, FetchSnapshot, or Fetch of the metadata log.

        Raises:
            CorruptData: the request does not name exactly one partition.
            LogError: INCONSISTENT_CLUSTER_ID if the sender belongs to another cluster;
                INVALID_VOTER_KEY if the request is meant for another node.
            LogDirectoryError: this member takes no part because of its disk.
        """
        own = self._controller_context.cluster_id
        if request.cluster_id is not None and request.cluster_id != own:
            raise LogError(
                f"the request is meant for cluster {request.cluster_id}, this is {own}",
                code=ErrorCode.INCONSISTENT_CLUSTER_ID,
            )
        meant = getattr(request, "voter_id", UNKNOWN)
        if meant not in (UNKNOWN, self._controller_context.node_id):
            raise LogError(
                f"the request is meant for node {meant}, and this is node"
                f" {self._controller_context.node_id}: controller.quorum.voters of the sender has"
                f" this node's address for node {meant}",
                code=ErrorCode.INVALID_VOTER_KEY,
            )
        return self._replica.handle(request)

    async def run(self, peers: QuorumPeers, thread: Executor) -> None:
        """Take part in the quorum until `stop`; `thread` does the disk work.

        Raises:
            StreamlogError: the log can't be written, or lacks committed entries.
        """
        await self._replica.run(peers, thread)

    def stop(self) -> None:
        """End `run`; a leader resigns first."""
        self._replica.stop()

    def close(self) -> None:
        """Close the files; after `run`."""
        if self._timer is not None:
            self._timer.cancel()
        self._replica.close()
