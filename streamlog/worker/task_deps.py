"""Surroundings: what the tasks of a worker are given by it."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from streamlog.client.consumer import Consumer
from streamlog.client.producer import Producer
from streamlog.clock import Clock
from streamlog.log import EMBEDDED, Log
from streamlog.processing.task_progress import Era
from streamlog.worker.commit.commit import OnStep
from streamlog.worker.commit.exactly_once import Transactor
from streamlog.worker.engine import EngineThread
from streamlog.worker.global_reader import GlobalReader
from streamlog.worker.health.worker_health import Figures
from streamlog.worker.inputs.source_watch import SourceWatch, compare_source_ids
from streamlog.worker.program import Program, WorkerStart
from streamlog.worker.topics.app_topics import ensure_topics
from streamlog.worker.topics.savepoint_messages import SavepointCut
from streamlog.worker.topics.version_log import (
    HandOver,
    OwnTopics,
    OwnTopicsLog,
    VersionLog,
    read_hand_overs,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskDeps:
    """What tasks need of their worker."""

    log: Log
    producer: Producer
    consumer: Consumer
    clock: Clock
    state_path: str
    """The app's state directory; each task has a directory of its own in it."""
    state_memory_bytes: int
    """For the state of all tasks together."""
    background: asyncio.TaskGroup
    """Owns the opening of tasks."""
    figures: Figures
    """Told what has been done."""
    era: Era
    """Which state the app has let go of."""
    engine: EngineThread
    """Does all that tasks do."""
    transactor: Transactor | None
    """Writes commits as transactions: exactly once. None: at least once."""
    on_step: OnStep
    """Told how far a commit is."""
    reader: GlobalReader
    """Of the global tables, which tasks may look into."""
    hand_over: HandOver | None = None
    """The last one, if the app's state has begun with a snapshot."""
    cut: SavepointCut | None = None
    """Where tasks are to stand still, if they are."""
    own_topics: OwnTopics
    """The app's own topics, by id."""
    accept_state_loss: bool
    """Go on with empty state if a changelog is not the one that the state on disk is of."""
    sources: SourceWatch
    """Sees that inputs still are the logs that were read."""


async def prepare_log(program: Program, log: Log, *, log_url: str, web: str | None) -> WorkerStart:
    """Make sure that no state would be lost, and that all topics are there.

    Raises:
        StateLost, SourceLost: state or records would be lost; nothing was changed.
        UnknownTopicOrPartition: a source is missing.
        TopologyError: partition counts contradict each other, or the state.
    """
    versions = VersionLog(log, program.topology)
    await versions.check(accept_state_loss=program.accept_state_loss)
    own_log = OwnTopicsLog(log, program.topology)
    own = await own_log.check(
        source_lost=program.source_lost, accept_state_loss=program.accept_state_loss
    )
    # On somebody's cluster, a source that is missing is more likely a wrong name.
    required = () if log_url.startswith(EMBEDDED) else program.sources
    counts = await ensure_topics(log, program.topology, program.topics, required=required)
    handed = await read_hand_overs(log, program.app_id)
    change = await versions.settle(accept_state_loss=program.accept_state_loss)
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
) -> TaskDeps:
    """What the tasks of a worker need; `cut` is where they are to stand still, if they are."""
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
        figures=reader.figures,
        engine=engine,
        transactor=transactor,
        on_step=program.on_step,
        reader=reader,
        hand_over=start.hand_over,
        cut=cut,
        sources=SourceWatch(consumer, clock, app_id=program.app_id, policy=program.source_policy),
        own_topics=start.own_topics,
        accept_state_loss=program.accept_state_loss,
    )
