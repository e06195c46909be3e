"""Task deps: the objects of a worker that its tasks use, and the checks before a worker starts.

The order of the checks: nothing is created or changed in the log until it is certain that no state
and no records would be lost, and that no other app would break. Not done here: the checks
themselves (`topics/`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from streamlog.client.consumer import Consumer
from streamlog.client.producer import Producer
from streamlog.clock import Clock, SystemClock
from streamlog.connect.declared_connectors import SourceConnector
from streamlog.log import EMBEDDED, Log
from streamlog.processing.task_progress import Era
from streamlog.worker.commit.commit import OnStep
from streamlog.worker.commit.exactly_once import Transactor
from streamlog.worker.engine import EngineThread
from streamlog.worker.global_reader import GlobalReader
from streamlog.worker.health.worker_metrics import WorkerMetrics
from streamlog.worker.inputs.source_watch import SourceWatch, compare_source_ids
from streamlog.worker.program import Program, WorkerStart
from streamlog.worker.record_traces import RecordTraces
from streamlog.worker.state.snapshot_uploads import AppSnapshots
from streamlog.worker.topics.app_topics import check_sources, ensure_topics
from streamlog.worker.topics.contract_log import check_contract, record_contract
from streamlog.worker.topics.savepoint_messages import SavepointCut
from streamlog.worker.topics.topic_schemas import TopicSchemas, has_schemas, registry_settings
from streamlog.worker.topics.version_log import (
    HandOver,
    OwnTopics,
    OwnTopicsLog,
    VersionLog,
    read_hand_overs,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskDeps:
    """The objects of the worker that its tasks use."""

    log: Log
    producer: Producer
    consumer: Consumer
    clock: Clock
    state_path: str
    """The app's state directory; each task has a directory of its own in it."""
    state_memory_bytes: int
    """The memory for the state of all tasks together."""
    background: asyncio.TaskGroup
    """Runs the opening of tasks."""
    metrics: WorkerMetrics
    """The worker's counters."""
    era: Era
    """The state that the app has given up."""
    engine: EngineThread
    """The thread on which tasks work."""
    transactor: Transactor | None
    """Writes commits as transactions; None with the guarantee at-least-once."""
    on_step: OnStep
    """Called with the steps of each commit."""
    reader: GlobalReader
    """Reads the global tables, which tasks may look up."""
    schemas: TopicSchemas | None = None
    """The schemas that a registry keeps; None: no topic has any."""
    source_connectors: Sequence[SourceConnector] = ()
    """The connectors that read from outside into topics."""
    traces: RecordTraces | None = None
    """The spans of records; None: the app has no traces."""
    hand_over: HandOver | None = None
    """The last hand-over, if the app's state has begun with a snapshot."""
    cut: SavepointCut | None = None
    """The cut at which tasks stop; None without a savepoint."""
    own_topics: OwnTopics
    """The recorded ids of the app's topics."""
    accept_state_loss: bool
    """Whether to continue with empty state if a changelog is not the one of the state on disk."""
    snapshots: AppSnapshots | None = None
    """The tasks' snapshots in object storage; None: the app has none."""
    sources: SourceWatch
    """Watches that inputs are the logs that were read."""


async def prepare_log(
    program: Program, log: Log, *, log_url: str, web: str | None, clock: Clock | None = None
) -> WorkerStart:
    """Check that no state would be lost, and create missing topics.

    Args:
        program: the program to run.
        log: the log.
        log_url: the URL of the log.
        web: HOST:PORT of the worker's HTTP server, or None.
        clock: for time-outs; by default the system's.

    Raises:
        StateLost, SourceLost: state or records would be lost; nothing was changed.
        ContractBroken: types do not fit those of other apps; nothing was changed.
        UnknownTopicOrPartition: a source is missing.
        TopologyError: partition counts contradict each other, or the existing state.
    """
    # Before the resolution of patterns: a new topic that matches makes no new version.
    versions = VersionLog(log, program.declared or program.topology, program.connectors)
    await versions.check(accept_state_loss=program.accept_state_loss)
    own_log = OwnTopicsLog(log, program.topology)
    # 1. A changelog was deleted while no worker ran.
    # 2. `ensure_topics` would create it, empty, and the tasks would begin without their state.
    # 3. Compared before that, its recorded id shows the loss.
    own = await own_log.check(
        source_lost=program.source_lost, accept_state_loss=program.accept_state_loss
    )
    contract = program.contract
    contracts = await check_contract(log, contract, accept_breaks=program.accept_contract_breaks)
    # On a cluster, a missing source is more likely a wrong name than a topic to create. Checked
    # before schemas are registered, so that such a start changes nothing.
    # A topic that matched a pattern a moment ago is never created: it was deleted.
    required = program.found if log_url.startswith(EMBEDDED) else program.sources
    await check_sources(log, program.topics, required=required)
    schemas = await prepare_schemas(program, log, clock or SystemClock())
    counts = await ensure_topics(log, program.topology, program.topics, required=required)
    handed = await read_hand_overs(log, program.app_id)
    # Recorded last: a start that fails before leaves the former version in force.
    change = await versions.settle(accept_state_loss=program.accept_state_loss)
    await record_contract(log, contract, contracts)
    return WorkerStart(
        program=program,
        log=log,
        log_url=log_url,
        counts=counts,
        tasks=sum(sub.tasks(counts) for sub in program.topology.subtopologies),
        web=web,
        change=change,
        own_topics=await own_log.note(own, await compare_source_ids(log, program, own)),
        hand_over=handed[-1] if handed else None,
        schemas=schemas,
    )


async def prepare_schemas(program: Program, log: Log, clock: Clock) -> TopicSchemas | None:
    """Register the schemas of the app's topics; returns None if no topic has one in a registry.

    Raises:
        ConfigError: there is no registry.
        SchemaIncompatible: a schema breaks compatibility; nothing was changed.
        StreamlogError: the registry can't be used.
    """
    if not has_schemas(program.topics):
        return None
    settings = registry_settings(program.schema_registry, program.topics, log.registry_url)
    schemas = TopicSchemas(program.contract, program.topics, settings, clock)
    program.schemas.use(schemas.book)
    await schemas.prepare()
    program.bind_schemas(schemas)
    return schemas


def snapshots_of(start: WorkerStart) -> AppSnapshots | None:
    """Return the tasks' snapshots in object storage, if the app has any.

    Raises:
        ConfigError: obstore is not installed, or does not take the URL.
    """
    program = start.program
    if program.snapshots is None:
        return None
    return AppSnapshots(
        program.snapshots,
        program.topology,
        start.counts,
        cluster_id=start.log.cluster_id,
        own_topics=start.own_topics,
    )


def task_deps_of(
    start: WorkerStart,
    cut: SavepointCut | None,
    *,
    clock: Clock,
    consumer: Consumer,
    producer: Producer,
    transactor: Transactor | None,
    reader: GlobalReader,
    background: asyncio.TaskGroup,
    engine: EngineThread,
    traces: RecordTraces | None,
) -> TaskDeps:
    """Collect the objects that the tasks of a worker use."""
    program = start.program
    return TaskDeps(
        log=start.log,
        producer=producer,
        consumer=consumer,
        clock=clock,
        state_path=program.state_path,
        state_memory_bytes=program.state_memory_bytes - program.global_memory_bytes,
        era=start.change.era,
        background=background,
        metrics=reader.metrics,
        engine=engine,
        transactor=transactor,
        on_step=program.on_step,
        reader=reader,
        schemas=start.schemas,
        source_connectors=program.source_connectors,
        traces=traces,
        hand_over=start.hand_over,
        cut=cut,
        snapshots=snapshots_of(start),
        sources=SourceWatch(consumer, clock, app_id=program.app_id, policy=program.source_policy),
        own_topics=start.own_topics,
        accept_state_loss=program.accept_state_loss,
    )
