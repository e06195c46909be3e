"""Damaged: a worker continues behind a batch that can't be read, if the app's policy allows it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from streamlog.processing.error_handling import DamagedInputs
from streamlog.record import TopicPartition

if TYPE_CHECKING:
    from streamlog.client.consumer import Consumer
    from streamlog.errors import DamagedBatch
    from streamlog.records.record_columns import RecordColumns
    from streamlog.worker.program import Program
    from streamlog.worker.tasks import WorkerTasks
    from streamlog.worker.worker_agents import WorkerAgents


async def passed(
    damaged: DamagedBatch,
    program: Program,
    tasks: WorkerTasks,
    agents: WorkerAgents,
    consumer: Consumer,
) -> dict[TopicPartition, RecordColumns]:
    """Go on behind a batch that can't be read; no records come of it.

    Raises:
        ProcessingError: the policy is `FAIL`.
    """
    agent_policies = [(agent.topic.name, agent.on_error) for agent in program.agents]
    outbox = DamagedInputs(program.topology, agent_policies).outbox(damaged)
    place = TopicPartition(damaged.topic, damaged.partition)
    consumer.seek(place, damaged.next_offset)
    for running in tasks.reading(place)[:1]:
        await tasks.took(running, outbox)
        return {}
    await agents.leave_out(outbox)
    return {}
