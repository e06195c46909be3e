"""Broker: wires the parts of one node; `handle` is the one way in.

A request comes as a typed message, from the TCP server and from inside the process alike, and
its type says who answers it. Most requests are answered at once. Those that wait get a future
from `begin`, and no task. One alarm stands for the earliest of all deadlines.
Everything runs on the one event loop: state is touched by nobody else.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Coroutine, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self, TypeVar, cast, overload

from streamlog.broker.acl_requests import AclRequests
from streamlog.broker.admin import AdminRequests
from streamlog.broker.alarm import Alarm
from streamlog.broker.applying import Observers
from streamlog.broker.authorized import Authorized
from streamlog.broker.config import FLUSH_ALWAYS, BrokerConfig
from streamlog.broker.config_requests import ConfigRequests
from streamlog.broker.coordinator.producer_ids import ProducerIds
from streamlog.broker.coordinator.requests import GroupRequests
from streamlog.broker.coordinator.runtime import OFFSETS_TOPIC, CoordinatorRuntime
from streamlog.broker.coordinator.transaction_requests import TransactionRequests
from streamlog.broker.coordinator.transaction_runtime import TRANSACTIONS_TOPIC, TransactionRuntime
from streamlog.broker.coordinator.verification import Verification
from streamlog.broker.data import DataRequests
from streamlog.broker.deletions import Deletions
from streamlog.broker.durable import Answer, DurableAnswers, Pieces
from streamlog.broker.fetches import Fetches
from streamlog.broker.finding import Finding
from streamlog.broker.internal_topics import INTERNAL_TOPICS, InternalTopics
from streamlog.broker.leader_endpoints import LeaderEndpoints
from streamlog.broker.listeners import Reached
from streamlog.broker.marking import Marking
from streamlog.broker.membership import Membership
from streamlog.broker.partition_requests import PartitionRequests
from streamlog.broker.peer_security import peer_credentials, peer_principals
from streamlog.broker.peers import PEER_CLIENT_ID
from streamlog.broker.publishing import Coordinators, Publishing
from streamlog.broker.quorum.cluster_topics import ClusterTopics
from streamlog.broker.quorum.wire import about_quorum
from streamlog.broker.quorum_requests import QuorumRequests
from streamlog.broker.quota_requests import QuotaRequests
from streamlog.broker.replica_fetches import ReplicaFetches, is_of_a_follower
from streamlog.broker.replication.group_flush import GroupFlush
from streamlog.broker.replication.partition import Partitions
from streamlog.broker.replication.replicas import Replicas
from streamlog.broker.security.acls import Authorizer
from streamlog.broker.security.principals import ANONYMOUS
from streamlog.broker.security.users import Users
from streamlog.broker.security_config import PLAINTEXT
from streamlog.broker.storage.aside import Threads, os_thread
from streamlog.broker.storage.log_directory import LogDirectory
from streamlog.broker.storage.os_files import OsFiles
from streamlog.broker.topic_pages import TopicPages
from streamlog.broker.upkeep import Upkeep
from streamlog.broker.user_requests import UserRequests
from streamlog.clock import Clock, SystemClock
from streamlog.errors import ConnectionLost, UsageError
from streamlog.protocol.apis import APIS
from streamlog.protocol.fetch_patterns import FetchAlike
from streamlog.protocol.messages.brokers import Listener as BrokerListener
from streamlog.protocol.messages.cluster import (
    ApiVersion,
    ApiVersionsRequest,
    ApiVersionsResponse,
    DescribeClusterRequest,
    MetadataRequest,
    OffsetForLeaderEpochRequest,
)
from streamlog.protocol.messages.data import FetchRequest
from streamlog.protocol.messages.quorum import DescribeQuorumRequest
from streamlog.protocol.produce_runs import ProduceRun
from streamlog.protocol.schema import Message

if TYPE_CHECKING:
    from concurrent.futures import Executor
    from types import TracebackType

    from streamlog.broker.figures import BrokerStanding, ClusterFigures
    from streamlog.broker.security.access import Readable
    from streamlog.broker.storage.files import Files

ADVERTISED = frozenset(api.request for api in APIS.values())
"""What clients may ask for."""
T = TypeVar("T")
INCARNATION_BITS = 62
"""Of the number by which this life of the broker is told from others."""


@dataclass(frozen=True, slots=True)
class RequestContext:
    """Who asks, and in which version."""

    version: int
    client_id: str | None
    client_host: str
    principal: str = ANONYMOUS
    listener: Reached | None = None
    """Where this client has reached the broker; None for who is in its process."""
    connection: int = 0
    """Which one, by number in the order in which they were accepted; 0 in this process."""


class Broker:
    """One node over one data directory. Made by `open`; an async context manager."""

    def __init__(
        self, directory: LogDirectory, member: Membership, *, clock: Clock, threads: Threads
    ) -> None:
        self._reached = Reached(PLAINTEXT, "127.0.0.1", 0)
        """Where who is in this process is told to come; see `listens`. Port 0: there is none."""
        self._directory, self._clock = directory, clock
        self._is_open = self._closed = False
        self._threads = threads
        self._thread: Executor | None = None
        self._tasks = asyncio.TaskGroup()
        self._spawned: set[asyncio.Task[Any]] = set()
        self._member, metadata = member, member.metadata
        self._alarm = alarm = Alarm(clock, self.tick)
        self._flush = GroupFlush(directory, threads)
        self._marking = Marking(clock=clock, alarm=alarm)
        self._fetches = Fetches(
            lambda: self._data, slots=self._session_slots, clock=clock, alarm=alarm
        )
        self._partitions = Partitions(
            directory,
            topics=ClusterTopics(metadata),
            listener=self._fetches,
            flush=self._flush,
            mode=directory.config.flush,
        )
        self._replicas, self._replica_fetches = self._replicated()
        self._coordinator, self._transactions = self._coordinators()
        self._groups, self._verification, self._transacting = self._coordinating()
        self._data = DataRequests(
            self._partitions,
            internal_topics=frozenset(INTERNAL_TOPICS),
            check_transaction=self._verification.check,
            want_mark=self._marking.want,
        )
        self._admin = self._administration()
        config = directory.config
        self._users = UserRequests(metadata, peer_credentials(config))
        self._acls = AclRequests(metadata, config.security, peers=peer_principals(config))
        self._authorized = Authorized(self._acls, self._partitions)
        self._upkeep = Upkeep(
            directory, self._partitions, clock=clock, threads=threads, on_job_done=self._arm
        )
        self._deletions = Deletions(self._admin, self._upkeep)
        coordinators = Coordinators(self._transacting, self._groups)
        self._publishing = Publishing(directory, self._partitions, coordinators, clock=clock)
        self._quorum_requests = QuorumRequests(member.quorum)
        self._handlers = self._table()

    def _administration(self) -> AdminRequests:
        member = self._member
        return AdminRequests(
            self._directory,
            member.metadata,
            self._partitions,
            internal_topics=frozenset(INTERNAL_TOPICS),
            submit=member.submit,
            controller_id=lambda: member.quorum.controller_id,
        )

    def _replicated(self) -> tuple[Replicas, ReplicaFetches]:
        directory, member = self._directory, self._member
        replicas = Replicas(
            directory,
            node=(directory.node_id, secrets.randbits(INCARNATION_BITS)),
            clock=self._clock,
            config=directory.config.replication,
            topic_id=self._partitions.topic_id,
            connect=member.connect,
            submit=member.ask,
            strict=directory.config.flush == FLUSH_ALWAYS,
        )
        return replicas, ReplicaFetches(
            replicas, self._partitions, clock=self._clock, alarm=self._alarm
        )

    def _coordinators(self) -> tuple[CoordinatorRuntime, TransactionRuntime]:
        config, partitions, clock = self._directory.config, self._partitions, self._clock
        groups = CoordinatorRuntime(partitions, config=config.group, clock=clock)
        producer_ids = ProducerIds(self._member.submit, self._member.identity)
        return groups, TransactionRuntime(
            partitions,
            groups,
            producer_ids,
            config=config.transaction,
            clock=clock,
            node_id=self._directory.node_id,
            leader_of=self._leader_of,
        )

    def _coordinating(self) -> tuple[GroupRequests, Verification, TransactionRequests]:
        groups = GroupRequests(self._coordinator)
        verification = Verification(
            self._partitions,
            self._transactions,
            node_id=self._directory.node_id,
            leader_of=self._leader_of,
        )
        transacting = TransactionRequests(
            self._transactions, groups, verification, on_deadline=self._arm
        )
        return groups, verification, transacting

    @classmethod
    def open(
        cls,
        directory: str,
        *,
        config: BrokerConfig | None = None,
        clock: Clock | None = None,
        files: Files | None = None,
        threads: Threads = os_thread,
    ) -> Self:
        """Open or make the data directory, recover its logs, load the groups.

        `clock`, `files` and `threads` are the machine's unless they are given.

        Raises:
            LogDirectoryLocked: another process serves it; the message says where.
            LogDirectoryLost: it belongs to another log.
            CorruptData: what is in it is not what it claims to be.
        """
        config = config or BrokerConfig()
        clock = clock or SystemClock()
        files = files or OsFiles()
        opened = LogDirectory.open(directory, files=files, config=config, wall_ms=clock.wall_ms())
        with ExitStack() as if_it_fails:
            if_it_fails.callback(opened.close)
            member = Membership.open(
                opened, files=files, clock=clock, internal_topics=INTERNAL_TOPICS
            )
            if_it_fails.callback(member.close)
            broker = cls(opened, member, clock=clock, threads=threads)
            broker._begin()
            if_it_fails.pop_all()
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
    def figures(self) -> ClusterFigures:
        """What has happened in its cluster."""
        return self._member.figures

    def standing(self) -> BrokerStanding:
        """Where it stands."""
        return self._member.standing(self._replicas.follower_lag())

    @property
    def clock(self) -> Clock:
        """What it takes for the time."""
        return self._clock

    @property
    def advertised(self) -> tuple[str, int]:
        """Host and port of its last listener. Port 0: there is none."""
        return self._reached.host, self._reached.port

    def listens(self, host: str, port: int, *, listener: str = PLAINTEXT) -> None:
        """Tell processes that find the directory in use where this broker is.

        Raises:
            LogDirectoryError: the disk refused to keep it.
        """
        self._reached = Reached(listener, host, port)
        self._directory.write_listener(host, port)

    def listens_at(self, listeners: Sequence[BrokerListener]) -> None:
        """All listeners are open: what the cluster is told of where this broker is reached."""
        self._member.listens_at(listeners)

    async def __aenter__(self) -> Self:
        self._is_open = True
        if not self._member.is_alone:
            await self._tasks.__aenter__()
            self._thread = self._threads("streamlog-quorum")
            self._member.start(self._spawn, self._thread, self._arm)
            self._spawn(self._replicas.run())
            self._transactions.markers.begin(self._call, self._spawn)
            self._verification.begin(self._member.call_coordinator, self._spawn)
        self._arm()
        return self

    def _spawn(self, work: Coroutine[Any, Any, T]) -> asyncio.Future[T]:
        """Run something for as long as the broker does; ConnectionLost if that is over."""
        try:
            task = self._tasks.create_task(work)
        except RuntimeError:
            # The group is shutting down, of which nothing else tells.
            work.close()
            gone: asyncio.Future[T] = asyncio.get_running_loop().create_future()
            gone.set_exception(ConnectionLost("the broker is ending"))
            gone.exception()  # Who does not wait for it need not hear of it.
            return gone
        self._spawned.add(task)
        task.add_done_callback(self._spawned.discard)
        return task

    async def _call(self, node_id: int, request: Message, timeout_ms: int) -> Message:
        return await self._member.call(node_id, request, timeout_ms=timeout_ms)

    async def leave(self) -> None:
        """Have others lead what this broker leads, as long as its listeners are open.

        A broker that is alone need not.
        """
        if not self._closed:
            await self._member.leave()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """End.

        Raises:
            StreamlogError: the broker could not go on; whoever had it open was cancelled.
        """
        try:
            if not self._member.is_alone:
                if kind is None:
                    await self.leave()
                await self._end_tasks(error if kind is asyncio.CancelledError else None)
                await self._member.close_connections()
        finally:
            self.close()

    async def _end_tasks(self, cancelled: BaseException | None) -> None:
        for task in list(self._spawned):
            task.cancel()
        try:
            kind = None if cancelled is None else type(cancelled)
            await self._tasks.__aexit__(kind, cancelled, None)
        except BaseExceptionGroup as group:
            raise _first_of(group) from None
        finally:
            if self._thread is not None:
                self._thread.shutdown(wait=True)

    def close(self) -> None:
        """Whoever waits is told, the logs are flushed, the directory is free for others."""
        if self._closed:
            return
        self._closed = True
        self._alarm.close()
        gone = ConnectionLost("the broker was stopped")
        self._fetches.stop(gone)
        self._replica_fetches.stop(gone)
        self._deletions.stop(gone)
        self._publishing.stop(gone)
        self._flush.close()
        self._coordinator.stop(gone)
        self._transactions.stop(gone)
        self._upkeep.close()
        try:
            self._member.close()
        finally:
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
        self, request: ProduceRun | FetchAlike, context: RequestContext
    ) -> Pieces | asyncio.Future[Pieces]: ...

    def begin(self, request: Message | ProduceRun | FetchAlike, context: RequestContext) -> Answer:
        """Take a request up, or a run of them, without waiting. Raises what `handle` raises."""
        if self._closed:
            raise ConnectionLost("the broker was stopped")
        handler = self._handlers.get(type(request))
        if handler is None:
            raise UsageError(f"{type(request).__name__} is not a request that a broker answers")
        return cast("Answer", self._authorized.begin(request, context, handler))

    def tick(self) -> None:
        """Time has passed: do what is due. The broker's own alarm calls it."""
        self._alarm.clear()
        try:
            self._fetches.tick(self._clock.now_ms())
            self._replica_fetches.tick(self._clock.now_ms())
            self._coordinator.tick()
            self._transactions.tick()
            self._marking.tick(self._clock.now_ms())
            self._member.tick()
            self._flush.on_tick(self._clock.now_ms())
            self._upkeep.tick()
            self._upkeep.clean()
        finally:
            self._arm()

    # ---- who answers what ----

    def _table(self) -> dict[type[Message | ProduceRun | FetchAlike], Callable[..., Answer]]:
        admin = self._admin
        durable = DurableAnswers(
            self._data, flush=self._flush, clock=self._clock, alarm=self._alarm
        )
        metadata, submit = self._member.metadata, self._member.submit
        topics = InternalTopics(self._partitions, submit)
        internal = frozenset(INTERNAL_TOPICS)
        leaders = LeaderEndpoints(admin, self._listener)
        return {
            ApiVersionsRequest: lambda _, __: api_versions(),
            **leaders.after({FetchRequest: self._fetch}),
            FetchAlike: self._fetches.begin_alike,
            OffsetForLeaderEpochRequest: lambda request, _: self._data.epoch_ends(request),
            MetadataRequest: lambda request, at: admin.metadata(
                request, at.version, self._listener(at)
            ),
            DescribeClusterRequest: lambda request, at: admin.describe_cluster(
                request, self._listener(at)
            ),
            **dict.fromkeys(
                self._member.requests & ADVERTISED, self._at_controller(self._member.decide)
            ),
            **self._quorum_requests.handlers(),
            DescribeQuorumRequest: self._at_controller(self._quorum_requests.describe),
            **topics.before(Finding(admin, metadata).handlers(self._listener)),
            **leaders.after(self._verification.before(durable.handlers())),
            **self._deletions.handlers(),
            **topics.before(self._publishing.handlers()),
            **topics.before(self._transacting.handlers()),
            **topics.before(self._groups.handlers(self._arm)),
            **ConfigRequests(self._directory, metadata).handlers(self._listener),
            **PartitionRequests(self._directory).handlers(),
            **TopicPages(metadata, internal_topics=internal).handlers(),
            **QuotaRequests(metadata).handlers(),
            **self._users.handlers(),
            **self._acls.handlers(),
        }

    def _fetch(
        self, request: FetchRequest, context: RequestContext, readable: Readable | None = None
    ) -> Message | asyncio.Future[Message]:
        """A follower's, which reads all that there is, or a reader's."""
        if is_of_a_follower(request) and about_quorum(request):
            return self._quorum_requests.ask(request)
        if is_of_a_follower(request):
            return self._replica_fetches.begin(request)
        return self._fetches.begin(request, context, readable)

    def _at_controller(
        self, here: Callable[[Any, int], Message | asyncio.Future[Message]]
    ) -> Callable[..., Answer]:
        """What the active controller answers: it is asked, unless another node asks this one."""

        def begin(request: Message, at: RequestContext) -> Message | asyncio.Future[Message]:
            if at.client_id == PEER_CLIENT_ID:
                return here(request, at.version)
            return self._member.submit(request, at.version, here)

        return begin

    def _begin(self) -> None:
        """Be what the metadata says, and load everything that coordinators know."""
        self._member.begin(
            self._partitions,
            self._replicas,
            Observers(
                leading=self._on_led,
                resigned=self._on_resigned,
                deleting=self._upkeep.wait,
                deleted=self._coordinator.forget_topic,
                settings=self._on_altered,
                users=self._users.on_changed,
                acls=self._acls.on_changed,
                damaged=self._member.on_damage,
            ),
        )
        self._coordinator.configure(self._directory.config.group)
        self._transactions.configure(self._directory.config.transaction)
        self._coordinator.load()
        self._transactions.load()

    def _on_led(self, topic: str, index: int) -> None:
        """This broker leads a partition from now on."""
        if topic == OFFSETS_TOPIC:
            self._coordinator.lead(index)
        elif topic == TRANSACTIONS_TOPIC:
            self._transactions.lead(index)

    def _on_resigned(self, topic: str, index: int) -> None:
        """It leads that one no more."""
        if topic == OFFSETS_TOPIC:
            self._coordinator.resign(index)
        elif topic == TRANSACTIONS_TOPIC:
            self._transactions.resign(index)

    def _leader_of(self, place: tuple[str, int]) -> int | None:
        """Who leads a partition, as far as is known here; None if there is no such partition."""
        topic = self._member.metadata.topic(place[0])
        partition = None if topic is None else topic.partitions.get(place[1])
        return None if partition is None else partition.leader

    def _listener(self, context: RequestContext) -> Reached:
        return context.listener or self._reached

    def _session_slots(self) -> int:
        return self._directory.config.connections.fetch_sessions_max

    def _on_altered(self) -> None:
        """The broker's settings have changed: those that were handed on are handed on again."""
        self._coordinator.configure(self._directory.config.group)
        self._transactions.configure(self._directory.config.transaction)
        self._member.on_settings()
        self._arm()

    def _arm(self) -> None:
        """See to it that the alarm rings at the earliest deadline."""
        if not self._is_open:
            return
        deadlines = (
            self._fetches.next_deadline_ms(),
            self._replica_fetches.next_deadline_ms(),
            self._coordinator.next_deadline_ms(),
            self._transactions.next_deadline_ms(),
            self._flush.next_deadline_ms(),
            self._marking.next_deadline_ms(),
            self._member.next_deadline_ms(),
        )
        due_ms = self._upkeep.next_deadline_ms()
        self._alarm.by(min([due_ms, *(each for each in deadlines if each is not None)]))


def api_versions(error_code: int = 0) -> ApiVersionsResponse:
    """What this broker speaks."""
    return ApiVersionsResponse(
        error_code=error_code,
        api_keys=[
            ApiVersion(api_key=api.key, min_version=api.min_version, max_version=api.max_version)
            for api in APIS.values()
        ],
    )


def _first_of(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """The error that has ended all other tasks."""
    first = group.exceptions[0]
    return _first_of(first) if isinstance(first, BaseExceptionGroup) else first
