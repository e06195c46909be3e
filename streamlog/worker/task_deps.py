"""Surroundings: what the tasks of a worker are given by it."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from streamlog.client.consumer import Consumer
from streamlog.client.producer import Producer
from streamlog.clock import Clock
from streamlog.log import Log
from streamlog.processing.task_progress import Era
from streamlog.worker.commit.commit import OnStep
from streamlog.worker.commit.exactly_once import Transactor
from streamlog.worker.engine import EngineThread
from streamlog.worker.global_reader import GlobalReader
from streamlog.worker.health.worker_figures import Figures
from streamlog.worker.inputs.source_watch import Sources
from streamlog.worker.topics.hand_over_log import HandOver
from streamlog.worker.topics.own_topics import OwnTopics
from streamlog.worker.topics.savepoint_messages import SavepointCut


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
    sources: Sources
    """Sees that inputs still are the logs that were read."""
