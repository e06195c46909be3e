"""Broker: wires the parts of one node; `handle` is its entry point.

A request arrives as a typed message, from the TCP server or from inside the process; its type
selects the handler. Most requests are answered at once. Those that wait get a future from `begin`,
not a task. One deadline timer is set to the earliest of all deadlines. Everything runs in one event
loop, and nothing outside it touches the state.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Self, TypeVar

from streamlog.broker.apis.delete_records import DeleteRecordsRequests
from streamlog.broker.apis.fetch import FetchRequests
from streamlog.broker.apis.internal_topics import INTERNAL_NAMES
from streamlog.broker.apis.list_offsets import OffsetRequests
from streamlog.broker.apis.metadata import MetadataRequests
from streamlog.broker.apis.produce import ProduceRequests, WritablePartitions, when_flushed
from streamlog.broker.apis.publish import Coordinators, PublishRequests
from streamlog.broker.apis.replica_fetch import ReplicaFetches
from streamlog.broker.apis.schema_registry import RegistryAccess
from streamlog.broker.apis.security import AclRequests, RequestAuthorization, UserRequests
from streamlog.broker.apis.table import (
    FETCH_ENDPOINTS_VERSION,
    LeaderEndpoints,
    Parts,
    table_of,
)
from streamlog.broker.apis.telemetry import TelemetryRequests
from streamlog.broker.broker_state import purgatory_metrics, status_metrics, throttle_metrics
from streamlog.broker.cluster.background import BackgroundTasks
from streamlog.broker.cluster.metadata_publisher import Observers, collector_paused
from streamlog.broker.cluster.node import ClusterNode
from streamlog.broker.cluster.peers import peer_credentials, peer_principals
from streamlog.broker.config.broker import FLUSH_ALWAYS, BrokerConfig
from streamlog.broker.config.connections import AdvertisedEndpoint
from streamlog.broker.config.resources import GROUP_RESOURCE
from streamlog.broker.config.security import PLAINTEXT
from streamlog.broker.coordinator.group.group_requests import GroupRequests
from streamlog.broker.coordinator.group.group_runtime import OFFSETS_TOPIC, CoordinatorRuntime
from streamlog.broker.coordinator.transaction.partition_verification import PartitionVerification
from streamlog.broker.coordinator.transaction.producer_ids import ProducerIds
from streamlog.broker.coordinator.transaction.transaction_requests import TransactionRequests
from streamlog.broker.coordinator.transaction.transaction_runtime import (
    TRANSACTIONS_TOPIC,
    TransactionRuntime,
)
from streamlog.broker.deadline_timer import DeadlineTimer
from streamlog.broker.handlers import Handlers
from streamlog.broker.lag.lag_metrics import lag_metrics
from streamlog.broker.lag.lag_requests import LagRequests
from streamlog.broker.lag.lag_rounds import LagRounds
from streamlog.broker.lag.leader_questions import LeaderQuestions
from streamlog.broker.lag.next_records import NextRecords
from streamlog.broker.log_maintenance import LogMaintenance
from streamlog.broker.metrics.coordinator_metrics import group_metrics, transaction_metrics
from streamlog.broker.metrics.log_metrics import disk_metrics, log_metrics, maintenance_metrics
from streamlog.broker.mirroring.lost_and_found import LostAndFound
from streamlog.broker.mirroring.mirror_figures import mirror_metrics
from streamlog.broker.mirroring.mirror_requests import MirrorRequests
from streamlog.broker.mirroring.mirrors import Mirrors
from streamlog.broker.quorum.metadata.cluster_metadata import ClusterTopics
from streamlog.broker.replication.group_flush import flush_of
from streamlog.broker.replication.partition import Partitions
from streamlog.broker.replication.replicas import Replicas
from streamlog.broker.request_metrics import RequestMetrics
from streamlog.broker.security.acl_authorizer import Authorizer
from streamlog.broker.security.principals import IN_PROCESS, RequestContext
from streamlog.broker.security.users import Users
from streamlog.broker.storage.disk.offload import Threads, os_thread
from streamlog.broker.storage.disk.os_files import OsFiles, shares_now
from streamlog.broker.storage.log_directory import LogDirectory
from streamlog.broker.time_marks import TimeMarks
from streamlog.broker.turn import Turn
from streamlog.clock import Clock, SystemClock
from streamlog.errors import ConnectionLost, UsageError
from streamlog.metrics.loop_metrics import LoopMetrics
from streamlog.metrics.registry import Kind, Look, Metric, at_once, kafka_timer, number, timer
from streamlog.protocol.api_table import APIS, api_of
from streamlog.protocol.fetch_patterns import FoundRecords
from streamlog.protocol.messages.broker_registration import RegisteredListener as BrokerListener
from streamlog.protocol.schema import Message

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from streamlog.broker.apis.fetch import RepeatAnswer
    from streamlog.broker.apis.produce import Pieces, RecordChecks
    from streamlog.broker.cluster.figures import BrokerStatus
    from streamlog.broker.handlers import AnyAnswer
    from streamlog.broker.storage.disk.files import Files
    from streamlog.protocol.fetch_patterns import FetchAlike
    from streamlog.protocol.messages.produce_and_fetch import (
        FetchRequest,
        ListOffsetsResponse,
        ProduceRequest,
    )
    from streamlog.protocol.produce_runs import ProduceRun

ADVERTISED = frozenset(api.request for api in APIS.values())
"""The requests that clients may send."""
T = TypeVar("T")
STOPPED = "the broker was stopped"
INCARNATION_BITS = 62
"""Random bits of the number that identifies this run of the broker."""


class Broker:
    """One node over one data directory. Create it with `open`; an async context manager."""

    def __init__(
        self, directory: LogDirectory, member: ClusterNode, *, clock: Clock, threads: Threads
    ) -> None:
        self._local_endpoint = AdvertisedEndpoint(PLAINTEXT, "127.0.0.1", 0)
        """The endpoint for clients in this process; see `listens`. Port 0: there is none."""
        self._directory, self._clock = directory, clock
        self.request_metrics = RequestMetrics(directory.metrics)
        """What is measured of the requests of connections."""
        self._is_open = self._closed = False
        self._tasks = BackgroundTasks(threads)
        self._member, metadata = member, member.metadata
        self._timer = alarm = DeadlineTimer(clock, self.tick)
        self.turn = Turn()
        """What is left to the end of an event's handling; the connections handle events in it."""
        self._flush = flush_of(directory, threads, self.turn)
        self._time_marks = TimeMarks(clock=clock, alarm=alarm)
        self._fetches = self._make_fetches()
        self._partitions = Partitions(
            directory,
            topics=ClusterTopics(metadata),
            listener=self._fetches.delayed,
            flush=self._flush,
            mode=directory.config.flush,
        )
        self._replicas, self._replica_fetches = self._make_replicas()
        self._coordinator, self._transactions = self._make_coordinators()
        self._mirrors, mirrors = self._make_mirrors(threads)
        self._groups, self._verification, self._transacting = self._make_requests()
        self._metadata_requests = self._make_metadata_requests()
        self._leaders = LeaderEndpoints(self._metadata_requests, self._listener)
        self._produce = self._make_produce(threads)
        self.shares = shares_now()
        """How many of the process's descriptors connections and files may use."""
        self._users, self._acls = self._make_security()
        self._authorization = RequestAuthorization(self._acls, self._partitions)
        self._maintenance = LogMaintenance(
            directory, self._partitions, clock=clock, threads=threads, on_job_done=self._arm
        )
        directory.metrics.collect(self._state_metrics)
        self._next_records = NextRecords(threads)
        self._lag = self._make_lag()
        self._deletions = DeleteRecordsRequests(self._metadata_requests, self._maintenance)
        coordinators = Coordinators(self._transacting, self._groups, self._produce.checks)
        self._publishing = PublishRequests(
            directory, self._partitions, coordinators, internal_topics=INTERNAL_NAMES, clock=clock
        )
        self._telemetry = TelemetryRequests(directory, metadata, clock, spawn=self._tasks.spawn)
        self.registry_access = self._make_registry_access()
        """What a schema registry on this broker needs of it."""
        self._handlers = table_of(self._parts()) | self._own_handlers(mirrors)

    def _make_fetches(self) -> FetchRequests:
        return FetchRequests(
            lambda: self._partitions,
            slots=self._session_slots,
            clock=self._clock,
            alarm=self._timer,
            want_mark=self._time_marks.want,
            turn=self.turn,
        )

    def _make_mirrors(self, threads: Threads) -> tuple[Mirrors, MirrorRequests]:
        member, clock, cluster_id = self._member, self._clock, self._directory.cluster_id
        mirrors = Mirrors(
            member.metadata,
            self._partitions,
            ask=member.ask,
            identity=member.identity,
            cluster_id=cluster_id,
            clock=clock,
            security=self._directory.config.security,
            lost_and_found=LostAndFound(self._directory, threads=threads),
            groups=self._coordinator,
            here=self._handle_own,
            ask_leader=member.ask_leader,
        )
        return mirrors, MirrorRequests(
            member.metadata, mirrors, self._partitions, cluster_id=cluster_id, clock=clock
        )

    def _own_handlers(self, mirrors: MirrorRequests) -> Handlers:
        """Return the handlers of requests that Kafka does not have."""
        return self._lag.handlers() | self.registry_access.handlers() | mirrors.handlers()

    def _parts(self) -> Parts:
        return Parts(
            directory=self._directory,
            member=self._member,
            partitions=self._partitions,
            produce=self._produce,
            offsets=self._make_offsets(),
            fetches=self._fetches,
            replicas=self._replicas,
            replica_fetches=self._replica_fetches,
            groups=self._groups,
            verification=self._verification,
            transacting=self._transacting,
            admin=self._metadata_requests,
            deletions=self._deletions,
            moves=self._maintenance.moves,
            publishing=self._publishing,
            users=self._users,
            acls=self._acls,
            telemetry=self._telemetry,
            leaders=self._leaders,
            clock=self._clock,
            listener=self._listener,
            on_deadline=self._arm,
        )

    def _make_offsets(self) -> OffsetRequests:
        def flushed(
            answer: Callable[[], ListOffsetsResponse],
        ) -> asyncio.Future[ListOffsetsResponse]:
            return when_flushed(self._flush, answer, lambda _: answer())

        return OffsetRequests(self._partitions, when_flushed=flushed)

    def _make_security(self) -> tuple[UserRequests, AclRequests]:
        config, metadata = self._directory.config, self._member.metadata
        users = UserRequests(metadata, peer_credentials(config))
        return users, AclRequests(metadata, config.security, peers=peer_principals(config))

    def _make_registry_access(self) -> RegistryAccess:
        return RegistryAccess(
            self._directory,
            self._member,
            self._partitions,
            security=(self._users, self._acls),
            clock=self._clock,
            spawn=self._tasks.spawn,
        )

    def _make_lag(self) -> LagRequests:
        partitions, clock, metrics = self._partitions, self._clock, self._directory.metrics
        leaders = LeaderQuestions(self._member.ask_leader, clock=clock)
        rounds = LagRounds(
            self._coordinator,
            partitions,
            self._next_records,
            leaders,
            node_id=self._directory.node_id,
            clock=clock,
        )
        metrics.prepare_by(rounds.look)
        metrics.collect(lambda: lag_metrics(rounds.latest))
        return LagRequests(rounds, self._next_records, partitions, spawn=self._tasks.spawn)

    def _make_produce(self, threads: Threads) -> ProduceRequests:
        return ProduceRequests(
            WritablePartitions(self._partitions, internal_topics=INTERNAL_NAMES),
            check_transaction=self._verification.check,
            flush=self._flush,
            clock=self._clock,
            alarm=self._timer,
            threads=threads,
            complete=self._leaders.complete,
        )

    def _make_metadata_requests(self) -> MetadataRequests:
        member = self._member
        return MetadataRequests(
            self._directory,
            member.metadata,
            self._partitions,
            internal_topics=INTERNAL_NAMES,
            submit=member.submit,
            controller_id=lambda: member.quorum.controller_id,
        )

    def _make_replicas(self) -> tuple[Replicas, ReplicaFetches]:
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
            turn=self.turn,
        )
        return replicas, ReplicaFetches(
            replicas, self._partitions, clock=self._clock, alarm=self._timer, turn=self.turn
        )

    def _make_coordinators(self) -> tuple[CoordinatorRuntime, TransactionRuntime]:
        config, partitions, clock = self._directory.config, self._partitions, self._clock
        metadata = self._member.metadata
        groups = CoordinatorRuntime(
            partitions,
            config=config.group,
            clock=clock,
            overrides=lambda group_id: metadata.config(GROUP_RESOURCE, group_id),
        )
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

    def _make_requests(self) -> tuple[GroupRequests, PartitionVerification, TransactionRequests]:
        groups = GroupRequests(self._coordinator)
        verification = PartitionVerification(
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
        others: Sequence[str] = (),
        config: BrokerConfig | None = None,
        clock: Clock | None = None,
        files: Files | None = None,
        threads: Threads = os_thread,
    ) -> Self:
        """Open or create the data directory, recover its logs, and load the groups.

        `others` are further directories, on other disks. `clock`, `files` and `threads` default to
        the machine's.

        Raises:
            LogDirectoryLocked: another process serves it; the message has its address.
            LogDirectoryLost: it belongs to another node.
            CorruptData: a file in it is damaged.
        """
        config = config or BrokerConfig()
        clock = clock or SystemClock()
        allowed = shares_now()
        files = files or OsFiles(allowed)
        with collector_paused(), ExitStack() as if_it_fails:
            opened = LogDirectory.open(
                directory, others=others, files=files, config=config, wall_ms=clock.wall_ms()
            )
            if_it_fails.callback(opened.close)
            member = ClusterNode.open(
                opened, files=files, clock=clock, internal_topics=INTERNAL_NAMES
            )
            if_it_fails.callback(member.close)
            broker = cls(opened, member, clock=clock, threads=threads)
            broker.shares = allowed
            broker._begin()
            if_it_fails.pop_all()
        return broker

    @property
    def cluster_id(self) -> str:
        """The id of the cluster, which is stored in the directory."""
        return self._directory.cluster_id

    @property
    def directory(self) -> LogDirectory:
        """The data directory."""
        return self._directory

    @property
    def users(self) -> Users:
        """The users with a SCRAM credential."""
        return self._users.users

    @property
    def authorizer(self) -> Authorizer | None:
        """Decides what clients may do; None if they may do everything."""
        return self._acls.authorizer

    def status(self) -> BrokerStatus:
        """Return the state of this broker."""
        return at_once(self._look())

    @property
    def copy_bytes_read(self) -> int:
        """Bytes read here from partitions that other brokers lead, since the start (KIP-392)."""
        return self._partitions.copy_bytes_read

    def _look(self) -> Look[BrokerStatus]:
        return self._member.status(self._replicas.follower_lag())

    def _state_metrics(self) -> Iterator[Metric | None]:
        yield from status_metrics((yield from self._look()))
        yield from purgatory_metrics(
            fetches=self._fetches.delayed.count_waiting() + self._replica_fetches.delayed,
            produces=self._produce.delayed,
        )
        yield from throttle_metrics(*self._replicas.throttled_rates())
        yield kafka_timer(
            "kafka_controller_controllerstats_leaderelectionrateandtimems",
            "Time of an election decided by this controller.",
            self._member.elections,
        )
        yield from group_metrics(self._coordinator.served())
        yield from transaction_metrics(self._transactions.served(), self._clock.wall_ms())
        yield from log_metrics(self._directory)
        yield from disk_metrics(self._directory.volumes)
        yield from maintenance_metrics(self._maintenance, self._clock.now_ms())
        yield from mirror_metrics(self._mirrors, self._member.metadata, self._clock.now_ms())
        yield from timer(
            "kafka_log_logflushstats_logflushrateandtimems",
            "streamlog_log_flush_seconds",
            "Time of syncs of one log to disk.",
            self._flush.times,
        )
        yield number(
            "streamlog_follower_read_bytes_total",
            "Bytes read from this broker of partitions that other brokers lead (KIP-392).",
            self.copy_bytes_read,
            kind=Kind.COUNTER,
        )

    @property
    def partition_turnover(self) -> tuple[int, int]:
        """How many partitions have a replica here, and how many were dropped since the start."""
        return self._replicas.turnover

    @property
    def clock(self) -> Clock:
        """The clock."""
        return self._clock

    @property
    def advertised(self) -> tuple[str, int]:
        """Host and port of the last listener. Port 0: there is none."""
        return self._local_endpoint.host, self._local_endpoint.port

    def listens(self, host: str, port: int, *, listener: str = PLAINTEXT) -> None:
        """Write the endpoint for processes that find the directory in use.

        Raises:
            LogDirectoryError: the disk refused.
        """
        self._local_endpoint = AdvertisedEndpoint(listener, host, port)
        self._directory.write_listener(host, port)

    def listens_at(self, listeners: Sequence[BrokerListener]) -> None:
        """Register the endpoints of all listeners, which are open, with the cluster."""
        self._member.listens_at(listeners)

    async def __aenter__(self) -> Self:
        self._is_open = True
        await self._tasks.begin()
        self._directory.metrics.collect(LoopMetrics(asyncio.get_running_loop()).metrics)
        if not self._member.is_alone:
            thread = self._tasks.start_thread()
            spawn = self._tasks.spawn
            self._member.start(spawn, thread, self._arm)
            spawn(self._replicas.run())
            self._transactions.markers.begin(self._call, spawn)
        self._verification.begin(self._call_coordinator, self._tasks.spawn)
        self._tasks.spawn(self._mirrors.run())
        self._arm()
        return self

    async def _call(self, node_id: int, request: Message, timeout_ms: int) -> Message:
        return await self._member.call(node_id, request, timeout_ms=timeout_ms)

    async def _call_coordinator(self, node_id: int, request: Message, timeout_ms: int) -> Message:
        if node_id != self._directory.node_id:
            return await self._member.call_coordinator(node_id, request, timeout_ms)
        answer = await self._handle_own(request, api_of(type(request)).max_version)
        if answer is None:
            raise ConnectionLost("this broker does not answer as a coordinator")
        return answer

    async def _handle_own(self, request: Message, version: int) -> Message | None:
        """Answer a request of this broker itself. Raises what `handle` raises."""
        context = RequestContext(version, "streamlog-mirror", "", principal=IN_PROCESS)
        return await self.handle(request, context)

    async def leave(self) -> None:
        """Hand leadership over to other brokers while the listeners are open.

        A broker that is alone has nothing to hand over.
        """
        if not self._closed:
            await self._member.leave()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Stop the broker.

        Raises:
            StreamlogError: the error that has ended the broker; its user was cancelled.
        """
        try:
            if kind is None:
                await self.leave()
            await self._tasks.end(error if kind is asyncio.CancelledError else None)
            await self._member.close_connections()
        finally:
            self.close()

    def close(self) -> None:
        """Fail requests that wait, flush the logs, and release the directory."""
        # In this order: waiting requests fail first, then the components that would answer them
        # stop, and last the directory closes, which all of them use.
        if self._closed:
            return
        self._closed = True
        self._timer.close()
        gone = ConnectionLost(STOPPED)
        self._fetches.stop(gone)
        self._replica_fetches.stop(gone)
        self._deletions.stop(gone)
        self._publishing.stop(gone)
        self._produce.stop(gone)
        self._flush.close()
        self._coordinator.stop(gone)
        self._transactions.stop(gone)
        self._maintenance.close()
        self._next_records.close()
        try:
            self._member.close()
        finally:
            self._directory.close()

    # Requests.

    async def handle(self, request: Message, context: RequestContext) -> Message | None:
        """Answer a request; None if it expects no response.

        Raises:
            LogError: a Produce with acks=0 was refused.
            ConnectionLost: the broker was stopped before the response.
        """
        answer = self.begin(request, context)
        return await answer if isinstance(answer, asyncio.Future) else answer

    def begin(self, request: Message, context: RequestContext) -> AnyAnswer:
        """Begin to handle a request. Raises what `handle` raises."""
        if self._closed:
            raise ConnectionLost(STOPPED)
        handler = self._handlers.get(type(request))
        if handler is None:
            raise UsageError(f"a broker does not answer {type(request).__name__}")
        if self._acls.authorizer is None:
            return handler(request, context)
        return self._authorization.begin(request, context, handler)

    def begin_run(
        self, run: ProduceRun, context: RequestContext
    ) -> Pieces | asyncio.Future[Pieces] | None:
        """Append the requests of a run, from the first on, that the principal may make.

        The run is cut before the first that it may not make; that one takes the full way, `begin`,
        where it is refused. Returns the responses, or where they will be; None if no request is
        left.

        Raises:
            ConnectionLost: the broker was stopped.
        """
        if self._closed:
            raise ConnectionLost(STOPPED)
        # Most brokers have no authorizer: a run is then whole, without a question.
        if self._acls.authorizer is not None:
            run.cut(self._authorization.count_allowed(run, context))
        return self._produce.begin_run(run, context) if run.requests else None

    def begin_repeat(
        self, alike: FetchAlike, context: RequestContext
    ) -> RepeatAnswer | asyncio.Future[RepeatAnswer] | None:
        """Answer a Fetch that repeats another; None if the principal may not make it.

        In that case it takes the full way, `begin`, where it is refused.

        Raises:
            ConnectionLost: the broker was stopped.
        """
        if self._closed:
            raise ConnectionLost(STOPPED)
        if self._acls.authorizer is not None and not self._authorization.allows_repeat(
            alike.pattern.request, context
        ):
            return None
        answer = self._fetches.begin_repeat(alike, context)
        if context.version >= FETCH_ENDPOINTS_VERSION and not isinstance(answer, FoundRecords):
            self._leaders.complete_when_done(answer, context, FETCH_ENDPOINTS_VERSION)
        return answer

    def allows_repeat(
        self, request: ProduceRequest | FetchRequest, context: RequestContext
    ) -> bool:
        """Return whether the principal may make every part of a request."""
        return self._authorization.allows_repeat(request, context)

    @property
    def checks(self) -> RecordChecks:
        """The Produce requests whose records are being checked."""
        return self._produce.checks

    def tick(self) -> None:
        """Run all components whose deadlines may have passed; the deadline timer calls it."""
        self._timer.clear()
        try:
            self._fetches.tick(self._clock.now_ms())
            self._replica_fetches.tick(self._clock.now_ms())
            self._coordinator.tick()
            self._transactions.tick()
            self._time_marks.tick(self._clock.now_ms())
            self._member.tick()
            self._flush.on_tick(self._clock.now_ms())
            self._maintenance.tick()
            self._maintenance.clean()
        finally:
            self._arm()

    # Events.

    def _begin(self) -> None:
        """Apply the metadata, and load the coordinators."""
        self._member.begin(
            self._partitions,
            self._replicas,
            Observers(
                leading=self._on_leadership,
                resigned=self._on_resignation,
                deleting=self._maintenance.wait,
                deleted=self._coordinator.on_deletion,
                settings=self._on_altered,
                users=self._users.on_changed,
                acls=self._acls.on_changed,
                damaged=self._member.on_damage,
                offline=self._member.on_offline,
                mirrors=self._mirrors.on_metadata,
            ),
        )
        self._coordinator.configure(self._directory.config.group)
        self._transactions.configure(self._directory.config.transaction)
        self._coordinator.load()
        self._transactions.load()

    def _on_leadership(self, topic: str, index: int) -> None:
        """Coordinate the keys of an internal topic's partition that this broker now leads."""
        if topic == OFFSETS_TOPIC:
            self._coordinator.lead(index)
        elif topic == TRANSACTIONS_TOPIC:
            self._transactions.lead(index)

    def _on_resignation(self, topic: str, index: int) -> None:
        """Stop coordinating the keys of a partition that this broker no longer leads."""
        if topic == OFFSETS_TOPIC:
            self._coordinator.resign(index)
        elif topic == TRANSACTIONS_TOPIC:
            self._transactions.resign(index)

    def _leader_of(self, partition_key: tuple[str, int]) -> int | None:
        """Return a partition's leader, as far as is known; None if there is no such partition."""
        topic = self._member.metadata.topic(partition_key[0])
        partition = None if topic is None else topic.partitions.get(partition_key[1])
        return None if partition is None else partition.leader

    def _listener(self, context: RequestContext) -> AdvertisedEndpoint:
        return context.listener or self._local_endpoint

    def _session_slots(self) -> int:
        return self._directory.config.connections.fetch_sessions_max

    def _on_altered(self) -> None:
        """Pass altered settings of the broker on to the components that hold some."""
        self._coordinator.configure(self._directory.config.group)
        self._transactions.configure(self._directory.config.transaction)
        self._replicas.limit(self._directory.config.replication)
        self._member.on_settings()
        self._arm()

    def _arm(self) -> None:
        """Set the timer to the earliest deadline."""
        if not self._is_open:
            return
        deadlines = (
            self._fetches.next_deadline_ms(),
            self._replica_fetches.next_deadline_ms(),
            self._coordinator.next_deadline_ms(),
            self._transactions.next_deadline_ms(),
            self._flush.next_deadline_ms(),
            self._time_marks.next_deadline_ms(),
            self._member.next_deadline_ms(),
        )
        due_ms = self._maintenance.next_deadline_ms()
        self._timer.by(min([due_ms, *(each for each in deadlines if each is not None)]))
