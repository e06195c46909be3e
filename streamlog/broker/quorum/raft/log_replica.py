"""LogReplica: this node's copy of the metadata log: the shell of `Raft`.

It performs Raft's effects, on files and peers, and passes it messages, syncs and the time. A
replica without peers needs no event loop: it syncs in context. `run` serves a replica with peers.

Rules of this module:

- Effects wait in one queue and are performed in order. One that has to be on disk first (epoch and
  vote, a cut) holds up the queue while the thread syncs. A sync of the log does not: Raft counts
  nothing before `on_flushed`.
- A disk error ends the replica. A full disk does not: it is handled as a crash and a restart. What
  is in memory is dropped, the log ends after its last whole batch, and until the disk has room the
  replica neither leads nor follows.

Not done here: decisions (`raft_machine`), the metadata and its snapshots (`quorum_member`).
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from itertools import count
from typing import Protocol, TypeAlias

import msgspec

from streamlog import repeated
from streamlog.broker.quorum.raft import raft_messages as raft
from streamlog.broker.quorum.raft.log_entries import encode_leader_change
from streamlog.broker.quorum.raft.quorum_files import QuorumFiles
from streamlog.broker.quorum.raft.raft_machine import Raft, deliver_request, deliver_response
from streamlog.broker.quorum.raft.raft_messages import Effect, RaftSnapshotId
from streamlog.broker.quorum.raft.raft_state import Draw, Timeouts
from streamlog.broker.quorum.raft.raft_wire import (
    FETCH_BYTES_MAX,
    SNAPSHOT_BYTES_MAX,
    Asked,
    request_of_wire,
    request_to_wire,
    response_of_wire,
    response_to_wire,
)
from streamlog.broker.replication.replica_state import (
    AdvanceHighWatermark,
    LoseLeadership,
    StopReplica,
    Truncate,
)
from streamlog.broker.storage.disk.files import Files, directory_error
from streamlog.clock import Clock
from streamlog.errors import (
    ConnectionLost,
    CorruptData,
    LogDirectoryFull,
    RequestTimedOut,
    StreamlogError,
)
from streamlog.protocol.error_codes import ErrorCode
from streamlog.protocol.error_responses import error_response
from streamlog.protocol.schema import Message
from streamlog.replace import replace

REOPEN_MS = 1_000
"""The pause in milliseconds between two attempts to use a disk that was full."""

OnFiles: TypeAlias = (
    raft.Persist
    | raft.AppendEntries
    | raft.FlushLog
    | Truncate
    | raft.WriteSnapshot
    | raft.InstallSnapshot
    | raft.TrimLog
)

_LEAVING = "leaving the quorum"
_log = repeated.logger(__name__)


class QuorumPeers(Protocol):
    """Port: the other members."""

    async def call(self, node_id: int, request: Message, *, timeout_ms: int) -> Message:
        """Send a request to another member, and return its response.

        Raises:
            ConnectionLost: the member can't be reached, or has closed the connection.
            RequestTimedOut: the member has not responded in time.
        """
        ...


class Reader(Protocol):
    """Port: the reader of the log, which keeps the metadata up to date."""

    def on_committed(self, high_watermark: int) -> None:
        """Apply the entries before `high_watermark`, which are committed."""
        ...

    def on_installed(self, values: Sequence[bytes]) -> None:
        """Replace everything by the values of another snapshot, after which the log begins."""
        ...

    def on_leading(self, start_offset: int) -> None:
        """Note that this node leads an epoch that begins at `start_offset`."""
        ...

    def on_not_leading(self) -> None:
        """Note that this node no longer leads."""
        ...

    def on_refused(self, error: StreamlogError) -> None:
        """Note that nothing can be written: until the full disk has room, or else for good."""
        ...

    def on_performed(self) -> None:
        """Note that the next deadline may have changed."""
        ...


class LogReplicaContext(msgspec.Struct, frozen=True, kw_only=True):
    """The node of a replica, its disk, its clock and its settings."""

    files: Files
    directory: str
    """The node's data directory, which contains the folder of the log."""
    node_id: int
    cluster_id: str
    voters: tuple[int, ...]
    """The node ids of all voters."""
    draw: Draw
    """The source of random numbers, see `RaftState`."""
    clock: Clock
    timeouts: Timeouts

    @property
    def is_sole(self) -> bool:
        """Whether this node is the only voter."""
        return self.voters == (self.node_id,)


class LogReplica:
    """One node's copy of the metadata log; the constructor opens its files."""

    def __init__(
        self,
        context: LogReplicaContext,
        reader: Reader,
        *,
        rejoins: bool,
        has_earlier_start: bool = False,
    ) -> None:
        """Open the files and read what is on disk.

        Args:
            context: the node, its disk and its settings.
            reader: receives committed entries.
            rejoins: whether the directory is new and replaces one that was lost (KIP-858).
            has_earlier_start: whether a node was started on this directory before. A log folder
                that no member has used then replaces one that was lost. See `_open_files`.

        Raises:
            CorruptData: the files of a sole voter are damaged, so no other node can repair them.
            ConfigError: the log belongs to other voters.
            LogDirectoryError: the disk failed.
        """
        self.failure: StreamlogError | None = None
        """Why the replica has ended; None while it has not."""
        self.refusal: StreamlogError | None = None
        """Why nothing is written until the disk has room; None otherwise."""
        self._context = context
        self._reader = reader
        self._rejoins = rejoins
        self._has_earlier_start = has_earlier_start
        self._effects: deque[Effect] = deque()
        self._is_performing = False
        self._is_held_up = False
        self._tickets: dict[int, tuple[Asked, asyncio.Future[Message]]] = {}
        self._next_ticket = count(1)
        self._reopen_at_ms: int | None = None
        self._thread: Executor | None = None
        self._peers: QuorumPeers | None = None
        self._tasks: asyncio.TaskGroup | None = None
        self._open_calls: set[asyncio.Task[None]] = set()
        self._complaints: dict[int, str] = {}
        """The last warning about each member's responses, so that it is logged once."""
        self._ended = asyncio.Event()
        self._is_closed = False
        self.files = self._open_files()
        self.raft = self._new_raft()

    def _open_files(self) -> QuorumFiles:
        context = self._context
        files = QuorumFiles(context.files, context.directory)
        try:
            files.belong_to(context.voters, context.node_id)
            # A voter with a new folder may have lost what it confirmed, and rejoins. But not all of
            # them may rejoin, for then no majority is left to let them in:
            #   1. Three voters start for the first time, and write their first files.
            #   2. All lose power before any has an epoch: their logs are empty, their states new.
            #   3. They start again. Each has an earlier start and an empty log, as after a loss.
            # `flushed-end` tells: it is written first, so a member that used the folder has it and
            # lost nothing. A folder without it, after an earlier start, replaces a lost one.
            was_lost = self._has_earlier_start and not files.has_flushed_end
            rejoins = files.is_new and (self._rejoins or was_lost)
            if context.is_sole or (files.damage is None and not rejoins):
                files.settle()
            else:
                reason = files.damage or "its metadata log is new and replaces one that was lost"
                _log.warning("node %s rejoins the quorum: %s", context.node_id, reason)
                is_voter = context.node_id in context.voters  # An observer has confirmed nothing.
                files.rejoin(1 + context.draw(raft.REJOIN_IDS) if is_voter else 0)
        except BaseException:
            files.close()
            raise
        return files

    def _new_raft(self) -> Raft:
        context = self._context
        return Raft(
            node_id=context.node_id,
            voters=context.voters,
            state=self.files.state,
            chain=self.files.chain(),
            draw=context.draw,
            timeouts=context.timeouts,
        )

    # ---- what it is ----

    @property
    def leader_id(self) -> int | None:
        """The leader's node id; None if this node knows none, or takes no part."""
        return None if self.is_down else self.raft.leader_id

    @property
    def is_down(self) -> bool:
        """Whether it takes no part, because of the disk or because it is closed."""
        return self._is_closed or (self.failure or self.refusal) is not None

    @property
    def waits(self) -> bool:
        """Whether it runs in an event loop, so that writes are synced later."""
        return self._tasks is not None

    @property
    def now_ms(self) -> int:
        """The monotonic time in milliseconds."""
        return self._context.clock.now_ms()

    def tick(self) -> None:
        """Do what is due, see `next_deadline_ms`."""
        if self._reopen_at_ms is not None and self.now_ms >= self._reopen_at_ms:
            self.reopen()
        if not self.is_down:
            self.perform(self.raft.on_tick(self.now_ms))

    def next_deadline_ms(self) -> int | None:
        """Return when `tick` next has something to do; None for never."""
        return self._reopen_at_ms if self.is_down else self.raft.next_deadline_ms()

    # ---- effects ----

    def perform(self, effects: list[Effect]) -> None:
        """Perform effects of Raft, after all earlier ones.

        An effect may call this method again: its effects are then appended to the queue.
        """
        if self.is_down:
            return
        self._effects.extend(effects)
        if self._is_performing or self._is_held_up:
            return
        self._is_performing = True
        try:
            while self._effects and not self._is_held_up and not self.is_down:
                self._perform_one(self._effects.popleft())
        except StreamlogError as error:
            self.fail(error)
        except Exception as error:
            self.fail(error)
            raise
        finally:
            self._is_performing = False
        self._reader.on_performed()

    def _perform_one(self, effect: Effect) -> None:
        match effect:
            case raft.SendMessage():
                self._send(effect)
            case raft.Reply():
                self._reply(effect.ticket, effect.response)
            case raft.ReplyEntries():
                entries = self.files.log.read(effect.offset, max_bytes=FETCH_BYTES_MAX)
                self._reply(effect.ticket, replace(effect.response, entries=tuple(entries)))
            case raft.ReplySnapshot():
                self._reply_snapshot(effect)
            case AdvanceHighWatermark():
                self._reader.on_committed(effect.offset)
            case raft.BecomeLeader() | LoseLeadership() | raft.LeaderChanged():
                self._change_role(effect)
            case StopReplica():
                raise CorruptData(f"{self.files.directory}: {effect.reason}")
            case raft.Complain():
                _log.warning("%s: %s", self.files.directory, effect.text)
            case _:
                self._perform_on_files(effect)

    def _change_role(self, effect: raft.BecomeLeader | LoseLeadership | raft.LeaderChanged) -> None:
        node_id = self._context.node_id
        match effect:
            case raft.BecomeLeader():
                # On a single broker this is no news.
                level = logging.DEBUG if self._context.is_sole else logging.INFO
                _log.log(level, "node %s leads epoch %s of the quorum", node_id, effect.epoch)
                self._reader.on_leading(effect.start_offset)
            case LoseLeadership():
                _log.info("node %s no longer leads epoch %s", node_id, effect.leader_epoch)
                self._reader.on_not_leading()
            case raft.LeaderChanged():
                _log.debug("node %s: epoch %s, leader %s", node_id, effect.epoch, effect.leader_id)

    def _perform_on_files(self, effect: OnFiles) -> None:
        files = self.files
        match effect:
            case raft.Persist():
                self._hold_up(lambda: files.persist(effect.state))
            case raft.AppendEntries():
                files.append(self._with_bytes(entry) for entry in effect.entries)
            case raft.FlushLog():
                self.run_in_thread(
                    lambda: files.sync(effect.end_offset), lambda: self._flushed(effect)
                )
            case Truncate():
                self._hold_up(lambda: files.truncate(effect.offset))
            case raft.WriteSnapshot():
                files.receive(effect.snapshot, effect.position, effect.data)
            case raft.InstallSnapshot():
                self._install(effect.snapshot)
            case raft.TrimLog():
                self._hold_up(lambda: files.trim(effect.snapshot))

    def _with_bytes(self, entry: raft.Entry) -> raft.Entry:
        if entry.payload:
            return entry
        return encode_leader_change(
            entry,
            leader_id=self._context.node_id,
            voters=self.raft.voters,
            wall_ms=self._context.clock.wall_ms(),
        )

    def _flushed(self, flush: raft.FlushLog) -> None:
        self.perform(self.raft.on_flushed(flush.generation, flush.end_offset, self.now_ms))

    def _install(self, snapshot: RaftSnapshotId) -> None:
        """Install a fetched snapshot; a damaged one is dropped, and the log stays as it is."""
        values: list[bytes] = []
        refused: list[CorruptData] = []
        files = self.files

        def install() -> None:
            try:
                values.extend(files.install(snapshot))
            except CorruptData as error:
                refused.append(error)

        def installed() -> None:
            if refused:
                _log.warning("dropped a snapshot from node %s: %s", self.leader_id, refused[0])
                self.perform(self.raft.on_installed(None, self.now_ms))
                return
            self._reader.on_installed(values)
            self.perform(self.raft.on_installed(snapshot, self.now_ms))

        self._hold_up(install, installed)

    def _reply(self, ticket: int, response: raft.Response) -> None:
        request, future = self._tickets.pop(ticket)
        if not future.done():
            future.set_result(response_to_wire(request, response))

    def _reply_snapshot(self, effect: raft.ReplySnapshot) -> None:
        found = self.files.snapshots.read(effect.snapshot, effect.position, SNAPSHOT_BYTES_MAX)
        response = replace(effect.response, position=effect.position)
        if found is None:
            response = replace(response, error_code=ErrorCode.SNAPSHOT_NOT_FOUND)
        elif effect.position >= found[1]:
            response = replace(response, error_code=ErrorCode.POSITION_OUT_OF_RANGE)
        else:
            response = replace(response, unaligned_records=found[0], size=found[1])
        self._reply(effect.ticket, response)

    # ---- work of the thread ----

    def _hold_up(self, work: Callable[[], None], then: Callable[[], None] | None = None) -> None:
        """Do `work`, then call `then`, before any effect that follows."""
        self._is_held_up = self._thread is not None

        def done() -> None:
            self._is_held_up = False
            if then is not None:
                then()
            self.perform([])

        self.run_in_thread(work, done)

    def run_in_thread(self, work: Callable[[], None], then: Callable[[], None]) -> None:
        """Do `work` in the thread, or in place if there is none, then call `then`.

        If the replica was reopened meanwhile, `then` is not called, because it belongs to the state
        before.
        """
        if self._thread is None:
            try:
                work()
            except (OSError, StreamlogError) as error:
                self.fail(error)
            else:
                then()
            return
        # `reopen` replaces `raft`; the object identifies the state that the work belongs to.
        raft_at_start = self.raft

        def done(ended: asyncio.Future[None]) -> None:
            if ended.cancelled() or self.is_down or self.raft is not raft_at_start:
                ended.cancelled() or ended.exception()  # Or asyncio logs it as never retrieved.
                return
            error = ended.exception()
            if error is not None:
                self.fail(error)
            else:
                then()

        future = asyncio.get_running_loop().run_in_executor(self._thread, work)
        future.add_done_callback(done)

    # ---- disk errors ----

    def fail(self, error: BaseException) -> None:
        """Stop leading and following after a disk error: until there is room, or for good."""
        if isinstance(error, OSError):
            error = directory_error(error, self.files.directory)
        if not isinstance(error, StreamlogError):
            error = CorruptData(f"{self.files.directory}: {error!r}")
        if isinstance(error, LogDirectoryFull):
            _log.error("node %s takes no part in the quorum: %s", self._context.node_id, error)
            self.refusal = error
            self._reopen_at_ms = self.now_ms + REOPEN_MS
        else:
            self.failure = self.failure or error
            self._ended.set()
        # Effects that wait are void, as after a crash: none of them was on disk or was sent.
        self._effects.clear()
        self._is_held_up = False
        tickets, self._tickets = self._tickets, {}
        for request, future in tickets.values():
            if not future.done():
                future.set_result(error_response(request, ErrorCode.KAFKA_STORAGE_ERROR))
        self._reader.on_refused(error)
        self._reader.on_performed()

    def reopen(self) -> None:
        """Open the files again after a full disk; without effect in any other state.

        With an event loop, this returns before the files are open.
        """
        if self.refusal is None or self.failure is not None:
            return
        old, found = self.files, list[QuorumFiles]()
        self._reopen_at_ms = None

        def work() -> None:
            old.close()
            found.append(self._open_files())

        if self._thread is None:
            try:
                work()
            except (OSError, StreamlogError) as error:
                self.fail(error)
            else:
                self._begin_again(found[0])
            return

        def done(ended: asyncio.Future[None]) -> None:
            error = None if ended.cancelled() else ended.exception()
            if error is not None:
                self.fail(error)
            elif found and not self._ended.is_set():
                self._begin_again(found[0])
            elif found:
                self.files = found[0]  # `close` closes them.

        future = asyncio.get_running_loop().run_in_executor(self._thread, work)
        future.add_done_callback(done)

    def _begin_again(self, files: QuorumFiles) -> None:
        self.files, self.raft = files, self._new_raft()
        self.refusal = None
        self.start()
        if not self.is_down:
            repeated.forget(__name__)
            _log.warning("node %s takes part in the quorum again", self._context.node_id)

    # ---- peers ----

    def start(self) -> None:
        """Take part in the quorum."""
        self.perform(self.raft.start(self.now_ms))

    def handle(self, request: Asked) -> asyncio.Future[Message]:
        """Handle another member's request; the future has the response.

        Raises:
            CorruptData: the request does not name exactly one partition.
            LogDirectoryError: this member takes no part because of its disk.
        """
        content = request_of_wire(request)
        refusal = self.failure or self.refusal
        if refusal is not None:
            raise refusal
        ticket = next(self._next_ticket)
        future: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
        self._tickets[ticket] = request, future
        self.perform(deliver_request(self.raft, content, ticket, self.now_ms))
        return future

    def _send(self, send: raft.SendMessage) -> None:
        if self._tasks is None:
            self._effects.extend(self.raft.on_failed(send.request_id, self.now_ms))
            return
        name = _LEAVING if isinstance(send.request, raft.EndEpochRequest) else None
        task = self._tasks.create_task(self._ask(send, self.raft), name=name)
        self._open_calls.add(task)
        task.add_done_callback(self._open_calls.discard)

    async def _ask(self, send: raft.SendMessage, asking: Raft) -> None:
        peers, context = self._peers, self._context
        if peers is None:
            return
        message = request_to_wire(
            send.request,
            cluster_id=context.cluster_id,
            to=send.to,
            wait_ms=context.timeouts.wait_ms,
        )
        answer: raft.Response | None = None
        try:
            response = await peers.call(send.to, message, timeout_ms=context.timeouts.request_ms)
            answer = response_of_wire(response)
        except (ConnectionLost, RequestTimedOut) as error:
            _log.debug("node %s did not respond: %s", send.to, error)
        except StreamlogError as error:
            self._complain(send.to, str(error))
        else:
            self._complaints.pop(send.to, None)
        if asking is not self.raft or self.is_down:
            return  # The replica was reopened while the request was open.
        if answer is None:
            self.perform(asking.on_failed(send.request_id, self.now_ms))
        else:
            self.perform(deliver_response(asking, send, answer, self.now_ms))

    def _complain(self, node_id: int, what: str) -> None:
        """Log a warning about a member's responses once, until a response is fine again."""
        if self._complaints.get(node_id) != what:
            self._complaints[node_id] = what
            _log.warning("dropped a response of node %s: %s", node_id, what)

    async def run(self, peers: QuorumPeers, thread: Executor) -> None:
        """Take part in the quorum until `stop`.

        Args:
            peers: the other members.
            thread: does the disk work, in order: an executor of one thread for this alone.

        Raises:
            StreamlogError: the log can't be written, or lacks committed entries.
        """
        self._peers, self._thread = peers, thread
        try:
            async with asyncio.TaskGroup() as tasks:
                self._tasks = tasks
                if self.raft.leader_id is None:
                    self.start()
                self._reader.on_performed()
                try:
                    await self._ended.wait()
                    await self._leave()
                finally:
                    # A sync may end after the group, which then accepts no more tasks.
                    self._tasks = None
        finally:
            self._reader.on_performed()
        if self.failure is not None:
            raise self.failure

    async def _leave(self) -> None:
        """Resign, and wait until the others have answered, or the request time-out."""
        if not self.is_down:
            self.perform(self.raft.resign(self.now_ms))
        leaving = [each for each in self._open_calls if each.get_name() == _LEAVING]
        if leaving:
            await asyncio.wait(leaving, timeout=self._context.timeouts.request_ms / 1000)
        self._tasks = None
        for task in self._open_calls:
            task.cancel()

    def stop(self) -> None:
        """End `run`; a leader resigns first."""
        self._ended.set()

    def close(self) -> None:
        """Close the files; call it after `run`, when the thread has no work left."""
        self._is_closed = True
        self.files.close()
