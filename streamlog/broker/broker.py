"""Broker: wires the parts of one node; `handle` is the one way in.

A request comes as a typed message, from the TCP server and from inside the process alike, and
its type says who answers it. Most requests are answered at once. A Fetch that finds too little,
a JoinGroup and a SyncGroup wait; `begin` then gives a future, and no task, so a thousand waiting
consumers cost a thousand futures. One timer stands for the earliest of all deadlines.
Everything runs on the one event loop: state is touched by nobody else.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Self, TypeAlias, TypeVar, cast, overload

from streamlog.broker.acl_requests import AclRequests
from streamlog.broker.admin import AdminRequests
from streamlog.broker.authorized import Authorized
from streamlog.broker.config import BrokerConfig
from streamlog.broker.config_requests import ConfigRequests
from streamlog.broker.coordinator.requests import GroupRequests
from streamlog.broker.coordinator.runtime import OFFSETS_TOPIC, CoordinatorRuntime
from streamlog.broker.coordinator.transaction_requests import TransactionRequests
from streamlog.broker.coordinator.transaction_runtime import TRANSACTIONS_TOPIC, TransactionRuntime
from streamlog.broker.data import DataRequests, FetchAttempt
from streamlog.broker.fetch_sessions import FetchSessions, Visit
from streamlog.broker.partition_requests import PartitionRequests
from streamlog.broker.produce_runs import append_run
from streamlog.broker.quota_requests import QuotaRequests
from streamlog.broker.replication.group_flush import GroupFlush
from streamlog.broker.replication.partition import Partitions
from streamlog.broker.replication.waiting import WaitingRequests
from streamlog.broker.security.acls import Authorizer
from streamlog.broker.security.principals import ANONYMOUS
from streamlog.broker.security.users import Users
from streamlog.broker.settings import INT_MAX
from streamlog.broker.storage.aside import Aside, Job
from streamlog.broker.storage.cleaner import Cleaner
from streamlog.broker.storage.log_directory import LogDirectory
from streamlog.broker.storage.retention import Kept, Retention
from streamlog.broker.user_requests import UserRequests
from streamlog.clock import Clock, SystemClock
from streamlog.errors import ConnectionLost, LogError, StreamlogError, UsageError
from streamlog.protocol.apis import APIS
from streamlog.protocol.error_codes import error_for
from streamlog.protocol.fetch_patterns import FetchAlike
from streamlog.protocol.messages.admin import (
    CreateTopicsRequest,
    DeleteRecordsRequest,
    DeleteTopicsRequest,
    DescribeConfigsRequest,
    IncrementalAlterConfigsRequest,
)
from streamlog.protocol.messages.cluster import (
    ApiVersion,
    ApiVersionsRequest,
    ApiVersionsResponse,
    DescribeClusterRequest,
    MetadataRequest,
    OffsetForLeaderEpochRequest,
)
from streamlog.protocol.messages.coordination import (
    FindCoordinatorRequest,
    OffsetFetchRequest,
)
from streamlog.protocol.messages.data import (
    FetchRequest,
    FetchResponse,
    ListOffsetsRequest,
    ProduceRequest,
    ProduceResponse,
)
from streamlog.protocol.messages.partitions import (
    CreatePartitionsRequest,
    DescribeLogDirsRequest,
)
from streamlog.protocol.messages.quotas import (
    AlterClientQuotasRequest,
    DescribeClientQuotasRequest,
)
from streamlog.protocol.messages.replace_configs import AlterConfigsRequest
from streamlog.protocol.produce_runs import ProduceRun
from streamlog.protocol.schema import Message, Piece

if TYPE_CHECKING:
    from types import TracebackType

    from streamlog.broker.storage.files import Files

_log = logging.getLogger(__name__)

INTERNAL_TOPICS = frozenset({OFFSETS_TOPIC, TRANSACTIONS_TOPIC})
CHECKPOINT_INTERVAL_MS = 5_000
"""How often it is written down up to where logs are on disk."""
FETCH_WAIT_MS_MAX = 5 * 60 * 1000
"""No Fetch waits longer, whatever it asks for; every client gives up on an answer before that."""

Pieces: TypeAlias = list[Piece]
"""Answers as they are written, to what is read without the codec (`produce_runs`)."""
R = TypeVar("R", Message, Pieces)
Answer: TypeAlias = Message | Pieces | asyncio.Future[Message] | asyncio.Future[Pieces] | None
"""A response, or where it will be, or nothing for a Produce that wants none."""


@dataclass(frozen=True, slots=True)
class RequestContext:
    """Who asks, and in which version."""

    version: int
    client_id: str | None
    client_host: str
    principal: str = ANONYMOUS
    listener: tuple[str, int] | None = None
    """Where this client has reached the broker, if that is not the same for all."""


@dataclass(frozen=True, slots=True)
class _ParkedFetch:
    visit: Visit
    version: int
    answer: asyncio.Future[Message]
    deadline_ms: int


class Broker:
    """One node over one data directory. Made by `open`; an async context manager."""

    def __init__(self, directory: LogDirectory, *, clock: Clock) -> None:
        self.advertised = ("127.0.0.1", 0)
        """Host and port that clients are told; see `listens`. Port 0: there is none."""
        self._directory = directory
        self._clock = clock
        self._flush = GroupFlush(directory)
        self._partitions = Partitions(
            directory, listener=self, flush=self._flush, mode=directory.config.flush
        )
        self._coordinator = CoordinatorRuntime(
            self._partitions, config=directory.config.group, clock=clock, flush=self._flush
        )
        self._groups = GroupRequests(self._coordinator)
        self._transactions = TransactionRuntime(
            self._partitions,
            self._coordinator,
            config=directory.config.transaction,
            clock=clock,
            flush=self._flush,
        )
        self._transacting = TransactionRequests(
            self._transactions, self._groups, on_deadline=self._arm
        )
        self._data = DataRequests(
            self._partitions,
            internal_topics=INTERNAL_TOPICS,
            check_transaction=self._transacting.check,
        )
        self._configs = ConfigRequests(directory, on_altered=self._on_altered)
        self._admin = AdminRequests(
            directory,
            self._partitions,
            internal_topics=INTERNAL_TOPICS,
            inherited_source=self._configs.inherited_source,
        )
        self._users = UserRequests(directory)
        self._acls = AclRequests(directory)
        self._authorized = Authorized(self._acls, self._partitions)
        self._aside = Aside()
        self._retention = self._make_retention()
        self._cleaner = self._make_cleaner()
        self._sessions = FetchSessions(slots=self._session_slots, new_id=_new_session_id)
        self._waiting: WaitingRequests[tuple[str, int]] = WaitingRequests()
        self._fetches: dict[int, _ParkedFetch] = {}
        self._ready: list[int] = []
        self._tickets = itertools.count(1)
        self._deletions: set[asyncio.Future[Message]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ms, self._closed = 0, False
        self._checkpoint_ms = clock.now_ms() + CHECKPOINT_INTERVAL_MS
        self._handlers = self._table()

    def _make_retention(self) -> Retention:
        return Retention(
            self._directory,
            now_ms=self._clock.now_ms(),
            high_watermark=self._partitions.high_watermark,
            remove=self._remove_aside,
            keep=self._keep_checkpoints,
        )

    def _make_cleaner(self) -> Cleaner:
        clock, retention = self._clock, self._retention
        return Cleaner(
            self._directory,
            clock=clock,
            stable_offset=self._partitions.last_stable_offset,
            on_over=lambda paths, in_ms: retention.take_over(paths, clock.now_ms() + in_ms),
            thread=self._aside,
            on_job_done=self._arm,
        )

    @classmethod
    def open(
        cls,
        directory: str,
        *,
        config: BrokerConfig | None = None,
        clock: Clock | None = None,
        files: Files | None = None,
    ) -> Self:
        """Open or make the data directory, recover its logs, load the groups.

        `clock` and `files` are the machine's unless they are given.

        Raises:
            LogDirectoryLocked: another process serves it; the message says where.
            LogDirectoryLost: it belongs to another log.
            CorruptData: what is in it is not what it claims to be.
        """
        config = config or BrokerConfig()
        clock = clock or SystemClock()
        opened = LogDirectory.open(directory, files=files, config=config, wall_ms=clock.wall_ms())
        broker = cls(opened, clock=clock)
        try:
            if OFFSETS_TOPIC in opened.topics:
                broker._coordinator.load(opened.topics[OFFSETS_TOPIC])
            if TRANSACTIONS_TOPIC in opened.topics:
                broker._transactions.load(opened.topics[TRANSACTIONS_TOPIC])
        except BaseException:
            opened.close()
            raise
        return broker

    @property
    def cluster_id(self) -> str:
        """The log's identity, made with its directory."""
        return self._directory.cluster_id

    @property
    def directory(self) -> LogDirectory:
        """What it stores in."""
        return self._directory

    @property
    def users(self) -> Users:
        """Who has a password here."""
        return self._users.users

    @property
    def authorizer(self) -> Authorizer | None:
        """Who decides what clients may do; None: they may do everything."""
        return self._acls.authorizer

    @property
    def clock(self) -> Clock:
        """What it takes for the time."""
        return self._clock

    def listens(self, host: str, port: int) -> None:
        """Tell clients, and processes that find the directory in use, where this broker is.

        Raises:
            LogDirectoryError: the disk refused to keep it.
        """
        self.advertised = (host, port)
        self._directory.write_listener(host, port)

    async def __aenter__(self) -> Self:
        self._arm()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Whoever waits is told, the logs are flushed, the directory is free for others."""
        if self._closed:
            return
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        gone = ConnectionLost("the broker was stopped")
        for parked in self._fetches.values():
            if not parked.answer.done():
                parked.answer.set_exception(gone)
        self._fetches.clear()
        for answer in list(self._deletions):
            if not answer.done():
                answer.set_exception(gone)
        self._flush.close()
        self._coordinator.stop(gone)
        self._transactions.stop(gone)
        self._aside.close()
        self._cleaner.close()
        self._directory.close()

    # ---- the way in ----

    async def handle(self, request: Message, context: RequestContext) -> Message | None:
        """Answer a request; None if it wants no answer.

        Raises:
            LogError: a Produce that wants no answer was refused.
            ConnectionLost: the broker was stopped before there was an answer.
        """
        answer = self.begin(request, context)
        return await answer if isinstance(answer, asyncio.Future) else answer

    @overload
    def begin(
        self, request: Message, context: RequestContext
    ) -> Message | asyncio.Future[Message] | None: ...

    @overload
    def begin(
        self, request: ProduceRun, context: RequestContext
    ) -> Pieces | asyncio.Future[Pieces]: ...

    @overload
    def begin(self, request: FetchAlike, context: RequestContext) -> Pieces | None: ...

    def begin(self, request: Message | ProduceRun | FetchAlike, context: RequestContext) -> Answer:
        """Take a request up, or a run of them, without waiting. Raises what `handle` raises.

        A repeated Fetch without an answer has to be taken up as any other.
        """
        if self._closed:
            raise ConnectionLost("the broker was stopped")
        handler = self._handlers.get(type(request))
        if handler is None:
            raise UsageError(f"{type(request).__name__} is not a request that a broker answers")
        return cast("Answer", self._authorized.begin(request, context, handler))

    def tick(self) -> None:
        """Time has passed: do what is due. The broker's own timer calls it."""
        self._timer = None
        try:
            self._ready += self._waiting.on_tick(self._clock.now_ms())
            self._answer_ready()
            self._coordinator.tick()
            self._transactions.tick()
            self._retention.tick(now_ms=self._clock.now_ms(), wall_ms=self._clock.wall_ms())
            self._flush.on_tick(self._clock.now_ms())
            self._refresh_checkpoints()
            cleaning_ms = self._cleaner.next_due_ms
            if cleaning_ms is not None and cleaning_ms <= self._clock.now_ms():
                self._cleaner.run()
        finally:
            self._arm()

    def _remove_aside(self, paths: list[str]) -> None:
        job = Job(partial(self._directory.remove_retired, paths))
        self._aside.start(job, self._arm)

    def _keep_checkpoints(self, then: Kept, *, if_changed: bool = False) -> None:
        """Beside the loop, which then calls."""
        job = self._directory.begin_checkpoints(if_changed=if_changed)
        if job is not None:
            self._aside.start(job, partial(self._on_kept, job, then))

    def _on_kept(self, job: Job[None], then: Kept) -> None:
        if self._closed:
            return
        failure: StreamlogError | None = None
        try:
            job.result()
        except StreamlogError as error:
            failure = error
        then(failure)
        self._arm()

    def _refresh_checkpoints(self) -> None:
        """So that after a crash no more than the last seconds have to be scanned."""
        now_ms = self._clock.now_ms()
        if now_ms < self._checkpoint_ms:
            return
        self._checkpoint_ms = now_ms + CHECKPOINT_INTERVAL_MS
        self._keep_checkpoints(_tell_of_checkpoint, if_changed=True)

    # ---- who answers what ----

    def _table(self) -> dict[type[Message | ProduceRun | FetchAlike], Callable[..., Answer]]:
        admin, configs = self._admin, self._configs
        quotas = QuotaRequests(self._directory)
        partitions = PartitionRequests(self._directory, internal_topics=INTERNAL_TOPICS)
        return {
            ApiVersionsRequest: lambda _, __: api_versions(),
            ProduceRequest: self._produce,
            ProduceRun: self._produce_run,
            FetchRequest: self._fetch,
            FetchAlike: lambda alike, _: self._data.fetch_alike(alike),
            ListOffsetsRequest: self._list_offsets,
            OffsetForLeaderEpochRequest: lambda request, _: self._data.epoch_ends(request),
            MetadataRequest: lambda request, at: admin.metadata(
                request, at.version, self._listener(at)
            ),
            DescribeClusterRequest: lambda request, at: admin.describe_cluster(
                request, self._listener(at)
            ),
            FindCoordinatorRequest: lambda request, at: admin.find_coordinator(
                request, at.version, self._listener(at)
            ),
            **self._transacting.handlers(),
            **self._groups.handlers(self._arm),
            CreateTopicsRequest: lambda request, _: admin.create_topics(request),
            DeleteTopicsRequest: self._delete_topics,
            DeleteRecordsRequest: self._delete_records,
            DescribeConfigsRequest: lambda request, at: configs.describe(
                request, self._listener(at)
            ),
            IncrementalAlterConfigsRequest: lambda request, _: configs.alter(request),
            AlterConfigsRequest: lambda request, _: configs.replace(request),
            CreatePartitionsRequest: lambda request, _: partitions.create(request),
            DescribeLogDirsRequest: lambda request, _: partitions.log_dirs(request),
            DescribeClientQuotasRequest: lambda request, _: quotas.describe(request),
            AlterClientQuotasRequest: lambda request, _: quotas.alter(request),
            OffsetFetchRequest: self._positions,
            **self._users.handlers(),
            **self._acls.handlers(),
        }

    def _listener(self, context: RequestContext) -> tuple[str, int]:
        return context.listener or self.advertised

    def _produce(self, request: ProduceRequest, context: RequestContext) -> Answer:
        now_ms, wall_ms = self._clock.now_ms(), self._clock.wall_ms()
        attempt = self._data.produce(request, context.version, now_ms, wall_ms)
        self._arm_flush()
        if request.acks == 0:
            _raise_first_error(attempt.response)
            return None
        if attempt.durable:
            return attempt.response
        return self._when_durable(lambda: attempt.response, attempt.failed)

    def _produce_run(self, run: ProduceRun, _: RequestContext) -> Answer:
        attempt = append_run(self._data, run, self._clock.now_ms(), self._clock.wall_ms())
        self._arm_flush()
        if attempt.durable:
            return attempt.response()
        return self._when_durable(attempt.response, attempt.failed)

    def _arm_flush(self) -> None:
        """See to it that what was appended is flushed in time."""
        flush_ms = self._flush.next_deadline_ms()
        if flush_ms is not None and (self._timer is None or flush_ms < self._timer_ms):
            self._arm()

    def _delete_topics(self, request: DeleteTopicsRequest, context: RequestContext) -> Answer:
        self._aside.wait()  # Nobody else may be at work in a folder that is removed.
        return self._admin.delete_topics(request, context.version, self._coordinator.forget_topic)

    def _delete_records(self, request: DeleteRecordsRequest, _: RequestContext) -> Answer:
        """It is answered when it is for good."""
        response = self._admin.delete_records(request)
        if all(each.error_code for topic in response.topics for each in topic.partitions):
            return response
        answer: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
        self._deletions.add(answer)
        answer.add_done_callback(self._deletions.discard)

        def settle(failure: StreamlogError | None) -> None:
            if failure is not None:
                self._admin.refuse_deletions(response, failure)
            if not answer.done():
                answer.set_result(response)

        self._keep_checkpoints(settle)
        return answer

    def _list_offsets(self, request: ListOffsetsRequest, _: RequestContext) -> Answer:
        """Who has sent without waiting for an answer, and asks for the end, is told it."""
        if self._data.is_settled(request):
            return self._data.list_offsets(request)
        answer = partial(self._data.list_offsets, request)
        return self._when_durable(answer, lambda _: answer())

    def _positions(self, request: OffsetFetchRequest, context: RequestContext) -> Answer:
        answer = partial(self._groups.positions, request, context.version)
        if self._coordinator.is_durable():
            return answer()
        return self._when_durable(answer, lambda _: self._groups.no_positions(request))

    def _when_durable(
        self, answer: Callable[[], R], failed: Callable[[StreamlogError], R]
    ) -> asyncio.Future[R]:
        """The answer once everything that was appended by now is on disk."""
        response: asyncio.Future[R] = asyncio.get_running_loop().create_future()

        def go_on(failure: StreamlogError | None) -> None:
            if response.done():
                return  # Nobody waits for it any more.
            if isinstance(failure, ConnectionLost):
                response.set_exception(failure)
            else:
                response.set_result(answer() if failure is None else failed(failure))

        self._flush.then(go_on)
        return response

    def _session_slots(self) -> int:
        return self._directory.config.connections.fetch_sessions_max

    def _fetch(self, request: FetchRequest, context: RequestContext) -> Answer:
        now_ms = self._clock.now_ms()
        try:
            visit = self._sessions.begin(request, version=context.version, now_ms=now_ms)
        except LogError as refusal:
            return FetchResponse(error_code=refusal.code)
        attempt = self._data.fetch(visit.request, context.version)
        if not attempt.missing_bytes:
            return visit.finish(attempt.response, now_ms=now_ms)
        deadline_ms = now_ms + min(request.max_wait_ms, FETCH_WAIT_MS_MAX)
        answer: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
        self._park(_ParkedFetch(visit, context.version, answer, deadline_ms), attempt)
        return answer

    def _park(self, fetch: _ParkedFetch, attempt: FetchAttempt) -> None:
        ticket = next(self._tickets)
        self._fetches[ticket] = fetch
        self._waiting.park(
            ticket,
            attempt.partitions,
            missing_bytes=attempt.missing_bytes,
            deadline_ms=fetch.deadline_ms,
        )
        self._arm()

    def _on_altered(self) -> None:
        """The broker's settings have changed: those that were handed on are handed on again."""
        self._coordinator.configure(self._directory.config.group)
        self._transactions.configure(self._directory.config.transaction)
        self._arm()

    # ---- waiting ----

    def on_append(self, topic: str, partition: int, size_bytes: int) -> None:
        """There is more to read. See `AppendListener`."""
        self._wake(self._waiting.on_append((topic, partition), size_bytes))

    def on_gone(self, topic: str, partition: int) -> None:
        """The partition was deleted. See `AppendListener`."""
        self._wake(self._waiting.on_gone((topic, partition)))

    def _wake(self, tickets: list[int]) -> None:
        """Answer soon, not now: the request that appends may have more for the same Fetch."""
        if tickets:
            if not self._ready:
                asyncio.get_running_loop().call_soon(self._answer_ready)
            self._ready += tickets

    def _answer_ready(self) -> None:
        ready, self._ready = self._ready, []
        for ticket in ready:
            parked = self._fetches.pop(ticket, None)
            if parked is None or parked.answer.done():
                continue  # Nobody waits for it any more.
            try:
                attempt = self._data.fetch(parked.visit.request, parked.version)
            except StreamlogError as error:
                parked.answer.set_exception(error)
            else:
                now_ms = self._clock.now_ms()
                # The bytes that were appended may belong to a transaction that is still open.
                if attempt.missing_bytes and now_ms < parked.deadline_ms:
                    self._park(parked, attempt)
                else:
                    parked.answer.set_result(parked.visit.finish(attempt.response, now_ms=now_ms))

    def _arm(self) -> None:
        """See to it that the timer rings at the earliest deadline."""
        due_ms = self._retention.next_deadline_ms()
        deadlines = (
            self._waiting.next_deadline_ms(),
            self._coordinator.next_deadline_ms(),
            self._transactions.next_deadline_ms(),
            self._flush.next_deadline_ms(),
            self._checkpoint_ms,
            self._cleaner.next_due_ms,
        )
        due_ms = min([due_ms, *(deadline for deadline in deadlines if deadline is not None)])
        if self._timer is not None:
            if self._timer_ms <= due_ms:
                return
            self._timer.cancel()
        delay_ms = max(due_ms - self._clock.now_ms(), 0)
        self._timer = asyncio.get_running_loop().call_later(delay_ms / 1000, self.tick)
        self._timer_ms = due_ms


def api_versions(error_code: int = 0) -> ApiVersionsResponse:
    """What this broker speaks."""
    return ApiVersionsResponse(
        error_code=error_code,
        api_keys=[
            ApiVersion(api_key=api.key, min_version=api.min_version, max_version=api.max_version)
            for api in APIS.values()
        ],
    )


def _new_session_id() -> int:
    return secrets.randbelow(INT_MAX) + 1


def _raise_first_error(response: ProduceResponse) -> None:
    """Nobody reads this response: a refusal can only be told by hanging up, as Kafka does."""
    for topic in response.responses:
        for each in topic.partition_responses:
            if each.error_code:
                raise error_for(
                    each.error_code, f"{topic.name}-{each.index}, acks=0: {each.error_message}"
                )


def _tell_of_checkpoint(failure: StreamlogError | None) -> None:
    if failure is not None:
        _log.error("the next start may take longer, no checkpoint was written: %s", failure)
