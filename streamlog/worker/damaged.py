"""Damaged: a worker continues behind a batch that can't be read, if the app's policy allows it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from streamlog.assignors import TopicPartition
from streamlog.processing.damaged_inputs import DamagedInputs

if TYPE_CHECKING:
    from streamlog.client.consumer import Consumer
    from streamlog.errors import DamagedBatch
    from streamlog.records.columns import RecordColumns
    from streamlog.worker.agents import Agents
    from streamlog.worker.program import Program
    from streamlog.worker.tasks import Tasks


async def passed(
    damaged: DamagedBatch, program: Program, tasks: Tasks, agents: Agents, consumer: Consumer
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
