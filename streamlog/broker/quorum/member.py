"""QuorumMember: runs `Raft` on files, peers and a clock, and the controller on what it commits.

    request ─► submit ─► ActiveController ─► Raft.append ─► on a majority's disks
                                                                 │ Commit
    answer  ◄─ Decision.answer ◄─ watchers ◄─ ClusterMetadata.replay ◄┘

This is the room's shell. Effects wait in one queue and are performed in their order: what has to
be on disk first (epoch and vote, a cut) holds up those behind it while a thread syncs; the log is
synced while the queue goes on, as Raft counts nothing before it is told. A member without peers
needs no loop: its syncs are done in place, and a request is answered when `submit` returns. `run`
is for as long as there are peers. What goes wrong on the disk ends the member, for good.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import replace
from itertools import count
from typing import Protocol, Self, TypeAlias

from streamlog.broker.cluster_config import ClusterConfig
from streamlog.broker.quorum import raft_messages as raft
from streamlog.broker.quorum.active_controller import ActiveController
from streamlog.broker.quorum.decision import Realm
from streamlog.broker.quorum.deliveries import deliver_request, deliver_response
from streamlog.broker.quorum.log_entries import (
    encode_entry,
    encode_leader_change,
    encode_snapshot,
    records_of,
)
from streamlog.broker.quorum.metadata import ClusterMetadata
from streamlog.broker.quorum.metadata_changes import MetadataChange
from streamlog.broker.quorum.metadata_difference import changes_between
from streamlog.broker.quorum.metadata_records import decode_record, encode_record
from streamlog.broker.quorum.quorum_files import QuorumFiles
from streamlog.broker.quorum.quorum_view import QuorumView, view_of
from streamlog.broker.quorum.raft import Raft
from streamlog.broker.quorum.raft_messages import EMPTY, Effect, SnapshotId
from streamlog.broker.quorum.raft_state import Timeouts
from streamlog.broker.quorum.wire import (
    FETCH_BYTES_MAX,
    SNAPSHOT_BYTES_MAX,
    Asked,
    request_of_wire,
    request_to_wire,
    response_of_wire,
    response_to_wire,
)
from streamlog.broker.storage.files import Files, directory_error
from streamlog.clock import Clock
from streamlog.errors import (
    ConnectionLost,
    CorruptData,
    LogError,
    RequestTimedOut,
    StreamlogError,
)
from streamlog.protocol.error_codes import ErrorCode
from streamlog.protocol.schema import Message

SNAPSHOT_BYTES = 20 * 1024 * 1024
"""Of entries since the last snapshot, after which the next one is written
(`metadata.log.max.record.bytes.between.snapshots`)."""

Watcher = Callable[[list[MetadataChange]], None]

OnFiles: TypeAlias = (
    raft.Persist
    | raft.Append
    | raft.Flush
    | raft.Truncate
    | raft.WriteSnapshot
    | raft.InstallSnapshot
    | raft.TrimLog
)

_LEAVING = "leaving the quorum"
_log = logging.getLogger(__name__)


class Peers(Protocol):
    """Port: the other members."""

    async def call(self, node_id: int, request: Message, *, timeout_ms: int) -> Message:
        """Ask one of them.

        Raises:
            ConnectionLost: it can't be reached or hung up.
            RequestTimedOut: no answer came in time.
        """
        ...


class QuorumMember:
    """One node of the cluster; made by `open`.

    `snapshot_bytes` is after how much of the log the next snapshot is written.
    """

    def __init__(
        self,
        files: QuorumFiles,
        realm: Realm,
        *,
        voters: Sequence[int],
        clock: Clock,
        timeouts: Timeouts,
        snapshot_bytes: int = SNAPSHOT_BYTES,
    ) -> None:
        self._files = files
        self._realm = realm
        self._clock = clock
        self._timeouts = timeouts
        self._snapshot_bytes = snapshot_bytes
        self._raft = Raft(
            node_id=realm.node_id,
            voters=tuple(voters),
            state=files.state,
            chain=files.chain(),
            draw=realm.chance.randrange,
            timeouts=timeouts,
        )
        self._controller = ActiveController(realm, clock=clock, log=self)
        self._watchers: list[Watcher] = []
        self._applied = files.snapshot.end_offset
        self._led_from: int | None = None
        """The first offset of the epoch that this node leads; None if it leads none."""
        self._effects: deque[Effect] = deque()
        self._is_performing = False
        self._is_held_up = False
        self._is_writing_snapshot = False
        self._tickets: dict[int, tuple[Asked, asyncio.Future[Message]]] = {}
        self._next_ticket = count(1)
        self._failure: StreamlogError | None = None
        self._thread: Executor | None = None
        self._peers: Peers | None = None
        self._tasks: asyncio.TaskGroup | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._asking: set[asyncio.Task[None]] = set()
        self._ended = asyncio.Event()

    @classmethod
    def open(
        cls,
        files: Files,
        directory: str,
        realm: Realm,
        *,
        voters: Sequence[int],
        clock: Clock,
        timeouts: Timeouts | None = None,
        snapshot_bytes: int = SNAPSHOT_BYTES,
        rejoins: bool = False,
    ) -> Self:
        """Read what is on disk; a sole voter leads, and has applied all, when it returns.

        `realm.metadata` is brought to what is committed. A voter that `rejoins`, because its disk
        was replaced, or whose files are damaged, does not vote before the others have let it in.

        Raises:
            CorruptData: the files of a sole voter are damaged: nobody else has what is missing.
            LogDirectoryError: the disk refuses.
        """
        own = QuorumFiles(files, directory)
        is_sole = list(voters) == [realm.node_id]
        if is_sole or (own.damage is None and not (rejoins and own.is_new)):
            own.settle()
        else:
            reason = own.damage or "it is new, and takes the place of one that was lost"
            _log.warning("node %s rejoins the quorum: %s", realm.node_id, reason)
            own.rejoin(1 + realm.chance.randrange(2**62))
        member = cls(
            own,
            realm,
            voters=voters,
            clock=clock,
            timeouts=timeouts or Timeouts(),
            snapshot_bytes=snapshot_bytes,
        )
        member._begin_image(own.values)
        if is_sole:
            member._perform(member._raft.start(member._now_ms))
        if member._failure is not None:
            raise member._failure
        return member

    # ---- what it is ----

    @property
    def metadata(self) -> ClusterMetadata:
        """What is committed, as far as this node has heard; the same object all the time."""
        return self._realm.metadata

    @property
    def controller_id(self) -> int | None:
        """Who leads the quorum, as far as this node knows."""
        return self._raft.leader_id

    @property
    def epoch(self) -> int:
        """Of the quorum, as far as this node knows."""
        return self._raft.epoch

    @property
    def is_active(self) -> bool:
        """Whether this node is the active controller: it leads, and knows all that is committed."""
        return self._controller.is_active

    @property
    def is_rejoining(self) -> bool:
        """Whether it has lost what it had, and the others have not let it in again."""
        return self._raft.is_rejoining

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
        return self._raft.describe()

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
        return view_of(self._raft, ahead_ms=self._clock.wall_ms() - self._now_ms)

    # ---- the controller ----

    def submit(self, request: Message, version: int) -> Message | asyncio.Future[Message]:
        """Have the controller decide; the answer is there once what it says is committed.

        Raises, at once or by the future:
            LogError: NOT_CONTROLLER: this node is not, or not any more, the active controller; if
                it was, what was asked may have happened or not.
            StreamlogError: nothing was decided.
        """
        if not self.is_active or self._controller.is_busy:
            raise self._failure or self._not_active()
        future = None if self._tasks is None else asyncio.get_running_loop().create_future()
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
        if self._failure is None:
            self._perform(self._raft.on_tick(self._now_ms))
            self._controller.go_on()
            self._set_timer()

    def next_deadline_ms(self) -> int | None:
        """When `tick` has something to do at the earliest; None for never."""
        deadlines = (self._raft.next_deadline_ms(), self._controller.next_deadline_ms())
        return min((each for each in deadlines if each is not None), default=None)

    @property
    def end_offset(self) -> int:
        """Of the log, committed or not."""
        return self._raft.end_offset

    def write(self, values: list[bytes]) -> None:
        """Append one batch of records; for the controller.

        Raises:
            LogError: NOT_CONTROLLER: this node does not lead the quorum.
            MessageTooLarge: they do not fit into one batch.
        """
        leadership = self._raft.leadership
        if leadership is None or leadership.start_offset != self._led_from:
            raise self._not_active()  # it is about to hear so: the metadata may lag behind
        entry = encode_entry(
            values,
            base_offset=self._raft.end_offset,
            epoch=self._raft.epoch,
            wall_ms=self._clock.wall_ms(),
        )
        self._perform(self._raft.append(entry.payload, count=entry.count, now_ms=self._now_ms))

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
        snapshot = self._files.snapshot
        if snapshot != EMPTY:
            records = (decode_record(value) for value in values)
            self.metadata.become(ClusterMetadata.of_snapshot(records, snapshot.end_offset - 1))
        self._applied = snapshot.end_offset

    def _apply(self, high_watermark: int) -> None:
        for entry in self._files.log.read(
            self._applied, max_bytes=2**62, end_offset=high_watermark
        ):
            changes = [
                change
                for offset, value in records_of(entry)
                if (change := self.metadata.replay(decode_record(value), offset)) is not None
            ]
            self._applied = entry.next_offset
            self._tell(changes)
            self._controller.on_applied(self._applied)
        self._activate()
        self._controller.go_on()
        if self._files.log.size_bytes >= self._snapshot_bytes and not self._is_writing_snapshot:
            self.write_snapshot()

    def _activate(self) -> None:
        """The node leads; once all that was committed before is in its metadata, it decides."""
        led_from = self._led_from
        if led_from is not None and self._applied > led_from and not self.is_active:
            self._controller.begin()

    def _tell(self, changes: list[MetadataChange]) -> None:
        if changes:
            for watcher in self._watchers:
                watcher(changes)

    def write_snapshot(self) -> None:
        """Write down what all that was applied amounts to; the log then begins there."""
        snapshot = SnapshotId(self._applied, self._raft.chain.epoch_at(self._applied))
        if snapshot <= self._files.snapshot or self._is_writing_snapshot:
            return
        values = [encode_record(record) for record in self.metadata.snapshot()]
        batches = encode_snapshot(values, epoch=snapshot.epoch, wall_ms=self._clock.wall_ms())
        self._files.log.roll()
        self._is_writing_snapshot = True

        def written() -> None:
            self._is_writing_snapshot = False
            self._files.snapshot = max(self._files.snapshot, snapshot)
            self._perform(self._raft.trim(snapshot))

        self._aside(lambda: self._files.snapshots.write(snapshot, batches), written)

    def _install(self, snapshot: SnapshotId) -> None:
        """Take over what another node's records amount to."""
        values: list[bytes] = []
        refused: list[CorruptData] = []

        def install() -> None:
            try:
                values.extend(self._files.install(snapshot))
            except CorruptData as error:
                refused.append(error)

        def installed() -> None:
            if refused:
                _log.warning("a snapshot of node %s is dropped: %s", self.controller_id, refused[0])
                self._perform(self._raft.on_installed(None, self._now_ms))
                return
            before = ClusterMetadata.of_snapshot(self.metadata.snapshot(), self.metadata.offset)
            self._begin_image(values)
            self._tell(changes_between(before, self.metadata))
            self._perform(self._raft.on_installed(snapshot, self._now_ms))

        self._hold_up(install, installed)

    # ---- effects ----

    @property
    def _now_ms(self) -> int:
        return self._clock.now_ms()

    def _perform(self, effects: list[Effect]) -> None:
        self._effects.extend(effects)
        if self._is_performing or self._is_held_up:
            return
        self._is_performing = True
        try:
            while self._effects and not self._is_held_up and self._failure is None:
                self._perform_one(self._effects.popleft())
        except StreamlogError as error:
            self._fail(error)
        except Exception as error:
            self._fail(error)
            raise
        finally:
            self._is_performing = False
        self._set_timer()

    def _perform_one(self, effect: Effect) -> None:
        match effect:
            case raft.Send():
                self._send(effect)
            case raft.Reply():
                self._reply(effect.ticket, effect.response)
            case raft.ReplyEntries():
                entries = self._files.log.read(effect.offset, max_bytes=FETCH_BYTES_MAX)
                self._reply(effect.ticket, replace(effect.response, entries=tuple(entries)))
            case raft.ReplySnapshot():
                self._reply_snapshot(effect)
            case raft.Commit():
                self._apply(effect.high_watermark)
            case raft.BecomeLeader() | raft.LoseLeadership() | raft.LeaderChanged():
                self._change_role(effect)
            case raft.Halt():
                raise CorruptData(f"{self._files.directory}: {effect.reason}")
            case raft.Complain():
                _log.warning("%s: %s", self._files.directory, effect.text)
            case _:
                self._perform_on_files(effect)

    def _change_role(
        self, effect: raft.BecomeLeader | raft.LoseLeadership | raft.LeaderChanged
    ) -> None:
        node_id = self._realm.node_id
        match effect:
            case raft.BecomeLeader():
                _log.info("node %s leads epoch %s of the quorum", node_id, effect.epoch)
                self._led_from = effect.start_offset
                self._activate()
            case raft.LoseLeadership():
                _log.info("node %s no longer leads epoch %s", node_id, effect.epoch)
                self._led_from = None
                self._controller.end(self._not_active())
            case raft.LeaderChanged():
                _log.debug("node %s: epoch %s, leader %s", node_id, effect.epoch, effect.leader_id)

    def _perform_on_files(self, effect: OnFiles) -> None:
        files = self._files
        match effect:
            case raft.Persist():
                self._hold_up(lambda: files.persist(effect.state))
            case raft.Append():
                files.append(self._with_bytes(entry) for entry in effect.entries)
            case raft.Flush():
                self._aside(lambda: files.sync(effect.end_offset), lambda: self._flushed(effect))
            case raft.Truncate():
                self._hold_up(lambda: files.truncate(effect.end_offset))
            case raft.WriteSnapshot():
                files.snapshots.receive(effect.snapshot, effect.position, effect.data)
            case raft.InstallSnapshot():
                self._install(effect.snapshot)
            case raft.TrimLog():
                self._hold_up(lambda: files.trim(effect.snapshot))

    def _with_bytes(self, entry: raft.Entry) -> raft.Entry:
        if entry.payload:
            return entry
        return encode_leader_change(
            entry,
            leader_id=self._realm.node_id,
            voters=self._raft.voters,
            wall_ms=self._clock.wall_ms(),
        )

    def _flushed(self, flush: raft.Flush) -> None:
        self._perform(self._raft.on_flushed(flush.generation, flush.end_offset, self._now_ms))

    def _reply(self, ticket: int, response: raft.Response) -> None:
        request, future = self._tickets.pop(ticket)
        if not future.done():
            future.set_result(response_to_wire(request, response))

    def _reply_snapshot(self, effect: raft.ReplySnapshot) -> None:
        found = self._files.snapshots.read(effect.snapshot, effect.position, SNAPSHOT_BYTES_MAX)
        response = replace(effect.response, position=effect.position)
        if found is None:
            response = replace(response, refusal=raft.Refusal.UNKNOWN_SNAPSHOT)
        elif effect.position >= found[1]:
            response = replace(response, refusal=raft.Refusal.POSITION_OUT_OF_RANGE)
        else:
            response = replace(response, data=found[0], size_bytes=found[1])
        self._reply(effect.ticket, response)

    # ---- beside the loop ----

    def _hold_up(self, work: Callable[[], None], then: Callable[[], None] | None = None) -> None:
        """Have it done before any effect that follows."""
        self._is_held_up = self._thread is not None

        def done() -> None:
            self._is_held_up = False
            if then is not None:
                then()
            self._perform([])

        self._aside(work, done)

    def _aside(self, work: Callable[[], None], then: Callable[[], None]) -> None:
        """Have it done by the thread, and go on with `then`; in place if there is none."""
        if self._thread is None:
            work()
            then()
            return

        def done(ended: asyncio.Future[None]) -> None:
            error = None if ended.cancelled() else ended.exception()
            if isinstance(error, OSError):
                error = directory_error(error, self._files.directory)
            if error is not None:
                self._fail(error)
            elif self._failure is None and not ended.cancelled():
                then()

        future = asyncio.get_running_loop().run_in_executor(self._thread, work)
        future.add_done_callback(done)

    def _fail(self, error: BaseException) -> None:
        """Nothing can be written any more: this node neither leads nor follows."""
        if not isinstance(error, StreamlogError):
            error = CorruptData(f"{self._files.directory}: {error!r}")
        self._failure = self._failure or error
        self._effects.clear()
        self._led_from = None
        self._controller.end(self._failure)
        self._ended.set()

    # ---- peers ----

    def handle(self, request: Asked) -> asyncio.Future[Message]:
        """Another member asks: Vote, Begin- or EndQuorumEpoch, Fetch of the log, FetchSnapshot.

        Raises:
            CorruptData: the request makes no sense.
            LogError: INCONSISTENT_CLUSTER_ID: it belongs to another cluster.
        """
        own = self._realm.cluster_id
        if request.cluster_id is not None and request.cluster_id != own:
            raise LogError(
                f"the request is meant for cluster {request.cluster_id}, this is {own}",
                code=ErrorCode.INCONSISTENT_CLUSTER_ID,
            )
        asked = request_of_wire(request)
        if self._failure is not None:
            raise self._failure
        ticket = next(self._next_ticket)
        future: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
        self._tickets[ticket] = request, future
        self._perform(deliver_request(self._raft, asked, ticket, self._now_ms))
        return future

    def _send(self, send: raft.Send) -> None:
        if self._tasks is None:
            self._effects.extend(self._raft.on_failed(send.request_id, self._now_ms))
            return
        name = _LEAVING if isinstance(send.request, raft.EndEpochRequest) else None
        task = self._tasks.create_task(self._ask(send), name=name)
        self._asking.add(task)
        task.add_done_callback(self._asking.discard)

    async def _ask(self, send: raft.Send) -> None:
        peers = self._peers
        if peers is None:
            return
        message = request_to_wire(
            send.request,
            cluster_id=self._realm.cluster_id,
            to=send.to,
            wait_ms=self._timeouts.wait_ms,
        )
        timeout_ms = self._timeouts.request_ms
        try:
            answer = await peers.call(send.to, message, timeout_ms=timeout_ms)
            effects = deliver_response(self._raft, send, response_of_wire(answer), self._now_ms)
        except (ConnectionLost, RequestTimedOut) as error:
            _log.debug("node %s does not answer: %s", send.to, error)
            effects = self._raft.on_failed(send.request_id, self._now_ms)
        except StreamlogError as error:
            _log.warning("the answer of node %s is dropped: %s", send.to, error)
            effects = self._raft.on_failed(send.request_id, self._now_ms)
        self._perform(effects)

    async def run(self, peers: Peers, thread: Executor) -> None:
        """Take part in the quorum until `stop`; what takes long is done by the thread.

        Raises:
            StreamlogError: the log can't be written, or contradicts what is committed.
        """
        self._peers, self._thread = peers, thread
        try:
            async with asyncio.TaskGroup() as tasks:
                self._tasks = tasks
                if self.controller_id is None:
                    self._perform(self._raft.start(self._now_ms))
                self._set_timer()
                await self._ended.wait()
                await self._leave()
        finally:
            self._tasks = None
            self._set_timer()
        if self._failure is not None:
            raise self._failure

    async def _leave(self) -> None:
        """Resign, and wait until the others have heard so."""
        self._perform(self._raft.resign(self._now_ms))
        leaving = [each for each in self._asking if each.get_name() == _LEAVING]
        if leaving:
            await asyncio.wait(leaving, timeout=self._timeouts.request_ms / 1000)
        self._tasks = None
        for task in self._asking:
            task.cancel()

    def stop(self) -> None:
        """Have `run` end; a leader lets the others know."""
        self._ended.set()

    def close(self) -> None:
        """Give the files back; after `run`."""
        if self._timer is not None:
            self._timer.cancel()
        self._files.close()

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        deadline_ms = self.next_deadline_ms()
        if self._tasks is not None and deadline_ms is not None:
            delay_ms = max(0, deadline_ms - self._now_ms)
            self._timer = asyncio.get_running_loop().call_later(delay_ms / 1000, self.tick)
