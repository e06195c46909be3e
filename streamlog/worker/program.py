"""Program: an app in the form that a worker runs.

Rule: values only, without an event loop or a thread. Everything that follows from the declarations
alone is derived here: the topics that are read, the topics that one worker has to read together,
and the directory of the state. Not done here: the declarations (`app`, `dsl/`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, TypeAlias

from streamlog.blueprints.topic_patterns import matches, named, with_matches
from streamlog.blueprints.version_copy import copy_version
from streamlog.client.named_settings import NO_OPTIONS, ClientOptions
from streamlog.client.producer import Producer
from streamlog.connect.declared_connectors import Connector, SinkConnector, SourceConnector
from streamlog.contracts.contract import Contract, contract_of
from streamlog.dsl.agent import Agent, with_found_topics
from streamlog.dsl.app_runtime import GlobalAccess, RequestSender, SchemaAssigner, TableAccess
from streamlog.dsl.schedules import Crontab, Service, Timer
from streamlog.dsl.services import Command, WebPage
from streamlog.errors import TopologyError
from streamlog.http_access.access_settings import OPEN_ACCESS, HttpAccess
from streamlog.log import Log
from streamlog.nodes.topic_spec import SourceLostPolicy, TopicSpec
from streamlog.records.partitioners import Partitioner
from streamlog.registry_client import RegistrySettings
from streamlog.replace import replace
from streamlog.serdes.registered import SchemaAccess
from streamlog.snapshots import default_snapshot_store
from streamlog.snapshots.object_store import SnapshotSettings
from streamlog.tables.state.store_transaction import MEMORY_BYTES
from streamlog.topology import Topology
from streamlog.worker.assignment.rebalance_plan import Placement, Policy, merge_topic_sets
from streamlog.worker.commit.commit import OnStep, ignore_step
from streamlog.worker.health.loop_watch import Limits
from streamlog.worker.state.restore import STATE_CLEANUP_DELAY_MS
from streamlog.worker.topics.lost_sources import policy_of
from streamlog.worker.topics.topic_schemas import TopicSchemas
from streamlog.worker.topics.version_log import HandOver, OwnTopics, VersionChange

Guarantee: TypeAlias = Literal["exactly_once", "at_least_once"]
EXACTLY_ONCE: Final = "exactly_once"
COMMIT_INTERVAL_MS = 500
"""The default interval of commits. A crash repeats at most the work since the last commit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """An app in the form that a worker runs."""

    app_id: str
    topology: Topology
    topics: Mapping[str, TopicSpec]
    """The declared topics by name."""
    state_dir: str
    """The directory that holds a state directory for each app."""
    agents: Sequence[Agent[Any, Any]] = ()
    timers: Sequence[Timer] = ()
    crontabs: Sequence[Crontab] = ()
    tasks: Sequence[Service] = ()
    """The services that each worker runs once."""
    pages: Sequence[WebPage] = ()
    """The app's pages on the worker's HTTP server."""
    connectors: Sequence[Connector] = ()
    """The sources and sinks that stand at the app's topics."""
    commands: Sequence[Command] = ()
    """The app's commands, which may send while no worker runs."""
    state_cleanup_delay_ms: int = STATE_CLEANUP_DELAY_MS
    state_memory_bytes: int = MEMORY_BYTES
    snapshots: SnapshotSettings | None = None
    """Where workers snapshot the state of their tasks; None: nowhere."""
    histories: str | None = None
    """Where histories keep their snapshots; None: beside the log, or the state."""
    commit_interval_ms: int = COMMIT_INTERVAL_MS
    guarantee: Guarantee = EXACTLY_ONCE
    on_step: OnStep = ignore_step
    """Called with the steps of each commit; for tests that kill the process there."""
    policy: Policy = field(default_factory=Policy)
    """The limits on moves of tasks, and the number of standbys."""
    web: str | None = None
    """HOST:PORT of the worker's HTTP server; None for none."""
    web_access: HttpAccess = OPEN_ACCESS
    """Who may use the HTTP server, and its certificates."""
    limits: Limits = field(default_factory=Limits)
    """The limits of the watchdog."""
    trace_ratio: float | None = None
    """Of the records without a trace, the share that begins one; None: no traces."""
    otel_metrics: bool = False
    """Whether workers export their metrics by OTLP."""
    source_lost: SourceLostPolicy | None = None
    """What to do if a source is not the log that was read (see `lost_sources`)."""
    accept_state_loss: bool = False
    """Whether to continue without state that this program can't use (see `version_log`)."""
    accept_contract_breaks: bool = False
    """Whether to start although other apps' types do not fit (see `contract_log`)."""
    schema_registry: RegistrySettings | None = None
    """The schema registry; None: the one that the log serves."""
    clients: ClientOptions = NO_OPTIONS
    """Settings of the worker's clients that the app replaces."""
    schemas: SchemaAccess = field(default_factory=SchemaAccess)
    """The source of the schemas that the serdes of topics use."""
    bind_schemas: Callable[[SchemaAssigner], None] = field(default=lambda _schemas: None)
    """Called with what registers the schema of a topic that is sent to."""
    bind: Callable[[Producer], None] = field(default=lambda _producer: None)
    """Called with the producer that `Topic.send` uses."""
    bind_tables: Callable[[TableAccess], None] = field(default=lambda _tables: None)
    """Called with the access to the rows of tables."""
    bind_global_tables: Callable[[GlobalAccess], None] = field(default=lambda _tables: None)
    """Called with the access to the rows of global tables."""
    bind_requests: Callable[[RequestSender], None] = field(default=lambda _sender: None)
    """Called with the sender of `AgentRef.ask`."""

    origin: Topology | None = None
    """For a version, the topology of the app."""
    declared: Topology | None = None
    """The topology before its patterns were resolved; None if it has none."""
    found: Sequence[str] = ()
    """The topics that match its patterns, since they were resolved."""
    renamed: Mapping[str, str] = field(default_factory=dict)
    """For a version, the app's name of a topic to the version's name, where they differ."""

    @property
    def partitioners(self) -> dict[str, Partitioner]:
        """The partitioner of each topic, for producers."""
        return {name: spec.partitioner for name, spec in self.topics.items()}

    def as_version(self, version: str) -> Program:
        """Return a version of the program, with an id and output topics of its own.

        A version has streams and tables only. Agents, timers, crontabs and connectors have effects
        that must happen once, so they stay with the app.

        Raises:
            TopologyError: the version can't be a part of a topic's name.
        """
        topology, names = copy_version(self.topology, version)
        topics = {
            # Sources keep their names, as a version reads those of the app.
            names.get(name, name): replace(spec, name=names.get(name, name))
            for name, spec in self.topics.items()
        }
        return replace(
            self,
            app_id=topology.app_id,
            topology=topology,
            topics=topics,
            agents=(),
            timers=(),
            crontabs=(),
            tasks=(),
            connectors=(),
            commands=(),
            origin=self.topology,
            renamed=names,
        )

    @property
    def patterns(self) -> dict[str, TopicSpec]:
        """The patterns of topics that streams, tables and agents read, by their names."""
        specs = [*self.topology.topics.values(), *(agent.topic.spec for agent in self.agents)]
        return {spec.name: spec for spec in specs if spec.pattern is not None}

    def match(self, names: Iterable[str]) -> dict[str, list[str]]:
        """Return, for each pattern, which of the names match, sorted."""
        apps = {self.app_id, self.app_id if self.origin is None else self.origin.app_id}
        return matches(self.patterns.values(), names, apps)

    def resolved(self, matched: Mapping[str, Sequence[str]]) -> Program:
        """Return the program with the topics that its patterns stand for, by their names.

        Raises:
            TopologyError: two patterns stand for one topic.
        """
        specs = {each: self.patterns[name] for name in matched for each in matched[name]}
        found = {name: named(spec, name) for name, spec in specs.items()}
        return replace(
            self,
            declared=self.topology,
            found=sorted(found),
            topology=with_matches(self.topology, matched),
            topics={**self.topics, **found},
            agents=with_found_topics(self.agents, matched, found),
        )

    def refuse_patterns(self, doing: str) -> None:
        """Raise if the program has patterns, for what needs all topics by their names.

        Raises:
            TopologyError: it has; the message begins with `doing`.
        """
        for name, spec in self.patterns.items():
            raise TopologyError(
                f"{doing} needs the names of all topics that are read, but {name!r} of app "
                f"{self.app_id!r} stands for those that match {spec.pattern}: declare them with "
                "app.topic"
            )

    @property
    def contract(self) -> Contract:
        """The topics that the app writes and reads, with their types."""
        functions: dict[str, Callable[..., object]] = {
            **{timer.name: timer.run for timer in self.timers},
            **{crontab.name: crontab.run for crontab in self.crontabs},
            **{service.name: service.run for service in self.tasks},
            **{page.path: page.run for page in self.pages},
            **{command.name: command.run for command in self.commands},
        }
        return contract_of(self.topology, self.topics, agents=self.agents, functions=functions)

    @property
    def is_transactional(self) -> bool:
        """Whether commits are transactions; an app with agents only has nothing to write in one."""
        writes = bool(self.topology.subtopologies or self.source_connectors)
        return self.guarantee == EXACTLY_ONCE and writes

    @property
    def source_connectors(self) -> list[SourceConnector]:
        """The connectors that read from outside into topics."""
        return [each for each in self.connectors if isinstance(each, SourceConnector)]

    @property
    def sink_connectors(self) -> list[SinkConnector]:
        """The connectors that write topics to the outside."""
        return [each for each in self.connectors if isinstance(each, SinkConnector)]

    def source_policy(self, topic: str) -> SourceLostPolicy:
        """Return the policy for a source that is not the log that was read."""
        spec = self.topics.get(topic)
        own = None if spec is None else spec.source_lost
        return policy_of(own or self.source_lost, has_state=self.has_state(topic))

    def source_settings(self, topics: Sequence[TopicSpec]) -> dict[str, SourceLostPolicy]:
        """Return what the program says about topics that are not the logs that were read."""
        own = {each.name: self.topics.get(each.name, each).source_lost for each in topics}
        found = {name: policy or self.source_lost for name, policy in own.items()}
        return {name: policy for name, policy in found.items() if policy is not None}

    def with_source_lost(self, policy: SourceLostPolicy) -> Program:
        """Return the program with this policy for every topic."""
        # A topic's own policy would win otherwise (`source_policy`).
        topics = {name: replace(spec, source_lost=None) for name, spec in self.topics.items()}
        return replace(self, source_lost=policy, topics=topics)

    def has_state(self, topic: str) -> bool:
        """Return whether tasks, or agents with tables, make state from a topic's records."""
        subs = self.topology.subtopologies_of(topic)
        return any(sub.changelog_topic is not None for sub in subs)

    @property
    def global_memory_bytes(self) -> int:
        """The bytes for global tables on disk: a quarter of the memory for state; 0 without any."""
        on_disk = any(table.backend == "rocksdb" for table in self.topology.global_tables)
        return self.state_memory_bytes // 4 if on_disk else 0

    @property
    def state_path(self) -> str:
        """The app's own state directory."""
        return f"{self.state_dir}/{self.app_id}"

    def histories_url(self, log_url: str) -> str:
        """Return where the histories of the app over a log keep their snapshots."""
        return self.histories or default_snapshot_store(log_url, self.state_dir)

    @property
    def sources(self) -> list[str]:
        """The topics that the app reads, internal ones included."""
        read = {topic for sub in self.topology.subtopologies for topic in sub.inputs}
        return sorted(read | {topic.name for agent in self.agents for topic in agent.topics})

    @property
    def outputs(self) -> dict[str, bool]:
        """The topics that the app writes and does not read; whether they are sinks of agents."""
        sinks = {agent.sink.name for agent in self.agents if agent.sink is not None}
        specs = [topic for node in self.topology.nodes for topic in node.writes]
        specs += [topic for each in self.source_connectors for topic in each.topics.values()]
        written = {topic.name for topic in specs if not topic.is_managed} | sinks
        return {name: name in sinks for name in written - {*self.sources}}

    @property
    def outer_sources(self) -> list[str]:
        """The topics that the app reads and does not create itself."""
        topics = self.topology.topics
        return [name for name in self.sources if name not in topics or not topics[name].is_managed]

    @property
    def placement(self) -> Placement:
        """The topics that one worker has to read together, with their tasks."""
        tasks = {sub.number: sub.inputs for sub in self.topology.subtopologies}
        # An agent reads one topic. If tasks read it as well, one worker has both, as a consumer
        # reads a partition once.
        agents = [(topic.name,) for agent in self.agents for topic in agent.topics]
        stateful = [sub.number for sub in self.topology.subtopologies if sub.changelog_topic]
        sets = tuple(merge_topic_sets([*tasks.values(), *agents]))
        # Workers find a new topic of a pattern one after another.
        return Placement(sets, tasks, stateful, is_exact=self.declared is not None)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerStart:
    """The facts that a worker starts with, before it joins its group."""

    program: Program
    log: Log
    log_url: str
    counts: Mapping[str, int]
    """The partition count of every topic that the app reads or writes."""
    tasks: int
    """The number of tasks of the app, over all workers."""
    web: str | None = None
    """HOST:PORT of the worker's HTTP server; None for none."""
    change: VersionChange
    """The difference between the topology and the version that ran before."""
    own_topics: OwnTopics = field(default_factory=OwnTopics)
    """The recorded ids of the app's topics."""
    hand_over: HandOver | None = None
    """The last hand-over, if the app's state has begun with a snapshot."""
    schemas: TopicSchemas | None = None
    """The schemas that a registry keeps; None: no topic has any."""
