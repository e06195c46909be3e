"""LogReplica: this node's copy of the metadata log: `Raft`, run on files, peers and a clock.

Effects wait in one queue and are performed in their order: what has to be on disk first (epoch and
vote, a cut) holds up those behind it while a thread syncs; the log is synced while the queue goes
on, as Raft counts nothing before it is told. A replica without peers needs no loop: its syncs are
done in place. `run` is for as long as there are peers.

What goes wrong on the disk ends the replica, for good. But not a disk that is full: that is as if
the process had been killed and started again, which Raft is made for. What is in memory is dropped,
the log ends behind its last whole batch, and until the disk takes something again the replica
neither leads nor follows.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from itertools import count
from typing import Protocol, TypeAlias

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

REOPEN_MS = 1_000
"""Between two tries to go on with a disk that was full."""

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
        """Ask one of them.

        Raises:
            ConnectionLost: it can't be reached or hung up.
            RequestTimedOut: no answer came in time.
        """
        ...


class Reader(Protocol):
    """Port: what is made of the log."""

    def on_committed(self, high_watermark: int) -> None:
        """Everything before is committed."""
        ...

    def on_installed(self, values: Sequence[bytes]) -> None:
        """The log begins behind another snapshot, which holds these records."""
        ...

    def on_leading(self, start_offset: int) -> None:
        """This node leads an epoch, which begins at that offset."""
        ...

    def on_not_leading(self) -> None:
        """It does no more."""
        ...

    def on_refused(self, error: StreamlogError) -> None:
        """Nothing can be written: for now if the disk is full, or else for ever."""
        ...

    def on_performed(self) -> None:
        """What is due next may be due at another time."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class LogPosition:
    """Whose replica it is, and where."""

    files: Files
    directory: str
    """The node's; the log is in a folder of it."""
    node_id: int
    cluster_id: str
    voters: tuple[int, ...]
    draw: Draw
    """Its chance."""
    clock: Clock
    timeouts: Timeouts

    @property
    def is_sole(self) -> bool:
        """Whether nobody else votes."""
        return self.voters == (self.node_id,)


class LogReplica:
    """One node's copy of the metadata log, made by opening its files."""

    def __init__(
        self,
        place: LogPosition,
        reader: Reader,
        *,
        rejoins: bool,
        has_earlier_start: bool = False,
    ) -> None:
        """Read what is on disk.

        Args:
            place: whose replica it is.
            reader: is handed what is committed.
            rejoins: a new directory takes the place of one that was lost.
            has_earlier_start: a node was started on the directory before, so a folder of the log
                that no member has used takes the place of one that was lost. A folder that a
                member has used without an epoch lost nothing: the node votes, or no voter does
                where all of them lose power in their first start.

        Raises:
            CorruptData: the files of a sole voter are damaged: nobody else has what is missing.
            ConfigError: the log is that of other voters.
            LogDirectoryError: the disk refuses.
        """
        self.failure: StreamlogError | None = None
        """Why nothing will be written any more."""
        self.refusal: StreamlogError | None = None
        """Why nothing is written for now."""
        self._place = place
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
        self._asking: set[asyncio.Task[None]] = set()
        self._complaints: dict[int, str] = {}
        """What was told last about the answers of others."""
        self._ended = asyncio.Event()
        self._is_closed = False
        self.files = self._opened()
        self.raft = self._new_raft()

    def _opened(self) -> QuorumFiles:
        place = self._place
        files = QuorumFiles(place.files, place.directory)
        try:
            files.belong_to(place.voters, place.node_id)
            was_lost = self._has_earlier_start and not files.has_flushed_end
            rejoins = files.is_new and (self._rejoins or was_lost)
            if place.is_sole or (files.damage is None and not rejoins):
                files.settle()
            else:
                reason = files.damage or "it is new, and takes the place of one that was lost"
                _log.warning("node %s rejoins the quorum: %s", place.node_id, reason)
                is_voter = place.node_id in place.voters  # others have confirmed nothing
                files.rejoin(1 + place.draw(raft.REJOIN_IDS) if is_voter else 0)
        except BaseException:
            files.close()
            raise
        return files

    def _new_raft(self) -> Raft:
        place = self._place
        return Raft(
            node_id=place.node_id,
            voters=place.voters,
            state=self.files.state,
            chain=self.files.chain(),
            draw=place.draw,
            timeouts=place.timeouts,
        )

    # ---- what it is ----

    @property
    def leader_id(self) -> int | None:
        """Who leads, as far as it knows."""
        return None if self.is_down else self.raft.leader_id

    @property
    def is_down(self) -> bool:
        """Whether it takes no part: the disk does not let it, or it is closed."""
        return self._is_closed or (self.failure or self.refusal) is not None

    @property
    def waits(self) -> bool:
        """Whether it has a loop: what is written is on disk later."""
        return self._tasks is not None

    @property
    def now_ms(self) -> int:
        """The time."""
        return self._place.clock.now_ms()

    def tick(self) -> None:
        """Do what is due."""
        if self._reopen_at_ms is not None and self.now_ms >= self._reopen_at_ms:
            self.reopen()
        if not self.is_down:
            self.perform(self.raft.on_tick(self.now_ms))

    def next_deadline_ms(self) -> int | None:
        """When `tick` has something to do at the earliest; None for never."""
        return self._reopen_at_ms if self.is_down else self.raft.next_deadline_ms()

    # ---- effects ----

    def perform(self, effects: list[Effect]) -> None:
        """Do what Raft has decided, behind all that it has decided before."""
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
        node_id = self._place.node_id
        match effect:
            case raft.BecomeLeader():
                # Of a broker that is alone, nobody wants to know it.
                level = logging.DEBUG if self._place.is_sole else logging.INFO
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
                self.aside(lambda: files.sync(effect.end_offset), lambda: self._flushed(effect))
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
            leader_id=self._place.node_id,
            voters=self.raft.voters,
            wall_ms=self._place.clock.wall_ms(),
        )

    def _flushed(self, flush: raft.FlushLog) -> None:
        self.perform(self.raft.on_flushed(flush.generation, flush.end_offset, self.now_ms))

    def _install(self, snapshot: RaftSnapshotId) -> None:
        """Take over what another node's records amount to."""
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
                _log.warning("a snapshot of node %s is dropped: %s", self.leader_id, refused[0])
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

    # ---- beside the loop ----

    def _hold_up(self, work: Callable[[], None], then: Callable[[], None] | None = None) -> None:
        """Have it done before any effect that follows."""
        self._is_held_up = self._thread is not None

        def done() -> None:
            self._is_held_up = False
            if then is not None:
                then()
            self.perform([])

        self.aside(work, done)

    def aside(self, work: Callable[[], None], then: Callable[[], None]) -> None:
        """Have it done by the thread, and go on with `then`; in place if there is none.

        What becomes of it when the replica has been opened anew meanwhile, nobody asks.
        """
        if self._thread is None:
            try:
                work()
            except (OSError, StreamlogError) as error:
                self.fail(error)
            else:
                then()
            return
        begun_by = self.raft

        def done(ended: asyncio.Future[None]) -> None:
            if ended.cancelled() or self.is_down or self.raft is not begun_by:
                ended.cancelled() or ended.exception()
                return
            error = ended.exception()
            if error is not None:
                self.fail(error)
            else:
                then()

        future = asyncio.get_running_loop().run_in_executor(self._thread, work)
        future.add_done_callback(done)

    # ---- a disk that refuses ----

    def fail(self, error: BaseException) -> None:
        """Nothing can be written: this node neither leads nor follows."""
        if isinstance(error, OSError):
            error = directory_error(error, self.files.directory)
        if not isinstance(error, StreamlogError):
            error = CorruptData(f"{self.files.directory}: {error!r}")
        if isinstance(error, LogDirectoryFull):
            _log.error("node %s takes no part in the quorum: %s", self._place.node_id, error)
            self.refusal = error
            self._reopen_at_ms = self.now_ms + REOPEN_MS
        else:
            self.failure = self.failure or error
            self._ended.set()
        self._effects.clear()
        self._is_held_up = False
        tickets, self._tickets = self._tickets, {}
        for request, future in tickets.values():
            if not future.done():
                future.set_result(error_response(request, ErrorCode.KAFKA_STORAGE_ERROR))
        self._reader.on_refused(error)
        self._reader.on_performed()

    def reopen(self) -> None:
        """Go on with what is on the disk, if that was full and has room again.

        With a loop it has not happened yet when this returns.
        """
        if self.refusal is None or self.failure is not None:
            return
        old, found = self.files, list[QuorumFiles]()
        self._reopen_at_ms = None

        def work() -> None:
            old.close()
            found.append(self._opened())

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
                self.files = found[0]  # to be closed

        future = asyncio.get_running_loop().run_in_executor(self._thread, work)
        future.add_done_callback(done)

    def _begin_again(self, files: QuorumFiles) -> None:
        self.files, self.raft = files, self._new_raft()
        self.refusal = None
        self.start()
        if not self.is_down:
            repeated.forget(__name__)
            _log.warning("node %s takes part in the quorum again", self._place.node_id)

    # ---- peers ----

    def start(self) -> None:
        """Take part."""
        self.perform(self.raft.start(self.now_ms))

    def handle(self, request: Asked) -> asyncio.Future[Message]:
        """Another member asks.

        Raises:
            CorruptData: the request makes no sense.
            LogDirectoryError: the disk does not let this one take part.
        """
        asked = request_of_wire(request)
        refusal = self.failure or self.refusal
        if refusal is not None:
            raise refusal
        ticket = next(self._next_ticket)
        future: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
        self._tickets[ticket] = request, future
        self.perform(deliver_request(self.raft, asked, ticket, self.now_ms))
        return future

    def _send(self, send: raft.SendMessage) -> None:
        if self._tasks is None:
            self._effects.extend(self.raft.on_failed(send.request_id, self.now_ms))
            return
        name = _LEAVING if isinstance(send.request, raft.EndEpochRequest) else None
        task = self._tasks.create_task(self._ask(send, self.raft), name=name)
        self._asking.add(task)
        task.add_done_callback(self._asking.discard)

    async def _ask(self, send: raft.SendMessage, asking: Raft) -> None:
        peers, place = self._peers, self._place
        if peers is None:
            return
        message = request_to_wire(
            send.request,
            cluster_id=place.cluster_id,
            to=send.to,
            wait_ms=place.timeouts.wait_ms,
        )
        answer: raft.Response | None = None
        try:
            told = await peers.call(send.to, message, timeout_ms=place.timeouts.request_ms)
            answer = response_of_wire(told)
        except (ConnectionLost, RequestTimedOut) as error:
            _log.debug("node %s does not answer: %s", send.to, error)
        except StreamlogError as error:
            self._complain(send.to, str(error))
        else:
            self._complaints.pop(send.to, None)
        if asking is not self.raft or self.is_down:
            return
        if answer is None:
            self.perform(asking.on_failed(send.request_id, self.now_ms))
        else:
            self.perform(deliver_response(asking, send, answer, self.now_ms))

    def _complain(self, node_id: int, what: str) -> None:
        """Once, and not with every answer."""
        if self._complaints.get(node_id) != what:
            self._complaints[node_id] = what
            _log.warning("the answer of node %s is dropped: %s", node_id, what)

    async def run(self, peers: QuorumPeers, thread: Executor) -> None:
        """Take part until `stop`; what takes long is done by the thread, which does nothing else.

        Raises:
            StreamlogError: the log can't be written, or contradicts what is committed.
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
                    self._tasks = None  # A group that ends takes no more; a sync may end later.
        finally:
            self._reader.on_performed()
        if self.failure is not None:
            raise self.failure

    async def _leave(self) -> None:
        """Resign, and wait until the others have heard so."""
        if not self.is_down:
            self.perform(self.raft.resign(self.now_ms))
        leaving = [each for each in self._asking if each.get_name() == _LEAVING]
        if leaving:
            await asyncio.wait(leaving, timeout=self._place.timeouts.request_ms / 1000)
        self._tasks = None
        for task in self._asking:
            task.cancel()

    def stop(self) -> None:
        """Have `run` end; a leader lets the others know."""
        self._ended.set()

    def close(self) -> None:
        """Give the files back; after `run`, and when the thread has nothing to do any more."""
        self._is_closed = True
        self.files.close()
