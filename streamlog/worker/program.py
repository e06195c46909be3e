"""Program: what a worker runs, as an app declares it; Start: what the worker says of it.

Values without a loop or a thread. What follows from the declaration alone is worked out here: the
topics that are read, who has to read which of them together, where the state is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal, TypeAlias

from streamlog.blueprints.version_copy import copy_version
from streamlog.client.producer import Producer
from streamlog.dsl.agent import Agent
from streamlog.dsl.app_runtime import GlobalAccess, RequestSender, TableAccess
from streamlog.dsl.schedule_times import Crontab, Service, Timer
from streamlog.dsl.services import WebPage
from streamlog.log import Log
from streamlog.nodes.topic_spec import SourceLostPolicy, TopicSpec
from streamlog.records.partitioners import Partitioner
from streamlog.tables.state.store_transaction import MEMORY_BYTES
from streamlog.topology import Topology
from streamlog.worker.assignment.rebalance_plan import Placement, Policy, merge_topic_sets
from streamlog.worker.commit.commit import OnStep, ignore_step
from streamlog.worker.health.loop_watch import Limits
from streamlog.worker.state.restore import STATE_CLEANUP_DELAY_MS
from streamlog.worker.topics.lost_sources import policy_of
from streamlog.worker.topics.version_log import HandOver, OwnTopics, VersionChange

Guarantee: TypeAlias = Literal["exactly_once", "at_least_once"]
EXACTLY_ONCE: Final = "exactly_once"
COMMIT_INTERVAL_MS = 500
"""Default. What a crash repeats; exactly once, sinks are written by then, at least once at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """What a worker runs: an app, ready-made."""

    app_id: str
    topology: Topology
    topics: Mapping[str, TopicSpec]
    """Declared ones, by name."""
    state_dir: str
    """Each app has a directory of its own in it."""
    agents: Sequence[Agent[Any, Any]] = ()
    timers: Sequence[Timer] = ()
    crontabs: Sequence[Crontab] = ()
    tasks: Sequence[Service] = ()
    """What each worker runs once."""
    pages: Sequence[WebPage] = ()
    """What its HTTP server answers beside its own."""
    state_cleanup_delay_ms: int = STATE_CLEANUP_DELAY_MS
    state_memory_bytes: int = MEMORY_BYTES
    commit_interval_ms: int = COMMIT_INTERVAL_MS
    guarantee: Guarantee = EXACTLY_ONCE
    on_step: OnStep = ignore_step
    """Told how far each commit is; for tests that end the process there."""
    policy: Policy = field(default_factory=Policy)
    """How tasks move between workers."""
    web: str | None = None
    """HOST:PORT of the worker's HTTP server, if it is to have one."""
    limits: Limits = field(default_factory=Limits)
    """Of the watchdog."""
    source_lost: SourceLostPolicy | None = None
    """What to do if a source is not the log that was read (see `lost_sources`)."""
    accept_state_loss: bool = False
    """Go on without state that this program can't use (see `versions`)."""
    bind: Callable[[Producer], None] = field(default=lambda _producer: None)
    """Told which producer `Topic.send` is to use."""
    bind_tables: Callable[[TableAccess], None] = field(default=lambda _tables: None)
    """Told what the rows of tables are asked through."""
    bind_global_tables: Callable[[GlobalAccess], None] = field(default=lambda _tables: None)
    """Told what the rows of global tables are asked through."""
    bind_asker: Callable[[RequestSender], None] = field(default=lambda _asker: None)
    """Told what `AgentRef.ask` goes through."""

    origin: Topology | None = None
    """Of a version that runs beside its app: the topology as the app has it."""
    renamed: Mapping[str, str] = field(default_factory=dict)
    """Of a version: what the app's topics are called here, if they have other names."""

    @property
    def partitioners(self) -> dict[str, Partitioner]:
        """How each topic's keys are partitioned, for whoever sends to it."""
        return {name: spec.partitioner for name, spec in self.topics.items()}

    def beside(self, version: str) -> Program:
        """A version of the program, under an id of its own and with topics of its own to write to.

        Streams and tables only: agents, timers and crontabs do to the world what is to be done
        once, so they stay with the app.

        Raises:
            TopologyError: the version can't be a part of a topic's name.
        """
        topology, names = copy_version(self.topology, version)
        topics = {
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
            origin=self.topology,
            renamed=names,
        )

    @property
    def is_transactional(self) -> bool:
        """Whether commits are transactions: agents alone have nothing to write in one."""
        return self.guarantee == EXACTLY_ONCE and bool(self.topology.subtopologies)

    def source_policy(self, topic: str) -> SourceLostPolicy:
        """What to do if a topic that is read is not the log that was read."""
        spec = self.topics.get(topic)
        own = None if spec is None else spec.source_lost
        return policy_of(own or self.source_lost, has_state=self.has_state(topic))

    def with_source_lost(self, policy: SourceLostPolicy) -> Program:
        """The program with this choice for every topic."""
        topics = {name: replace(spec, source_lost=None) for name, spec in self.topics.items()}
        return replace(self, source_lost=policy, topics=topics)

    def has_state(self, topic: str) -> bool:
        """Whether state is made of the records of a topic: by a task, or by agents with tables."""
        subs = self.topology.subtopologies_of(topic)
        return any(sub.changelog_topic is not None for sub in subs)

    @property
    def global_memory_bytes(self) -> int:
        """What global tables on disk take of the memory for state: a quarter, if there are any."""
        on_disk = any(table.backend == "rocksdb" for table in self.topology.global_tables)
        return self.state_memory_bytes // 4 if on_disk else 0

    @property
    def state_path(self) -> str:
        """The app's own state directory."""
        return f"{self.state_dir}/{self.app_id}"

    @property
    def sources(self) -> list[str]:
        """The topics that are read, internal ones included."""
        read = {topic for sub in self.topology.subtopologies for topic in sub.inputs}
        return sorted(read | {agent.topic.name for agent in self.agents})

    @property
    def outer_sources(self) -> list[str]:
        """Those of the topics that are read which the app does not make itself."""
        topics = self.topology.topics
        return [name for name in self.sources if name not in topics or not topics[name].is_managed]

    @property
    def placement(self) -> Placement:
        """Which topics one worker has to read together, and for which tasks."""
        tasks = {sub.number: sub.inputs for sub in self.topology.subtopologies}
        agents = [(agent.topic.name,) for agent in self.agents]
        stateful = [sub.number for sub in self.topology.subtopologies if sub.changelog_topic]
        return Placement(tuple(merge_topic_sets([*tasks.values(), *agents])), tasks, stateful)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerStart:
    """What a worker says of itself before it joins its group."""

    program: Program
    log: Log
    log_url: str
    counts: Mapping[str, int]
    """Partitions of every topic that the app reads or writes."""
    tasks: int
    """Of the whole app: all its workers share them."""
    web: str | None = None
    """HOST:PORT at which this worker answers, if it does."""
    change: VersionChange
    """Of the topology, since the version that ran before."""
    own_topics: OwnTopics = field(default_factory=OwnTopics)
    """The app's own topics, by id."""
    hand_over: HandOver | None = None
    """The last one, if the app's state has begun with a snapshot."""
