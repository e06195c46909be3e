"""Source ids: sources that were deleted and created again while no worker ran.

State knows which topic it was made of. A task or an agent without state has nothing but the group's
offsets, and brokers delete these together with the topic: what is left looks like a topic that was
never read. So the ids of all sources are written down beside those of the app's own topics, and a
worker that starts compares them. Not done here: offsets that are still there (`starts`), and tasks
with state (`task_positions`).
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from streamlog import repeated
from streamlog.client.admin import TopicDescription
from streamlog.errors import SourceLost
from streamlog.log import Log
from streamlog.protocol.schema import ZERO_UUID, id_text
from streamlog.record import TopicPartition
from streamlog.worker.program import Program
from streamlog.worker.topics.lost_sources import ADVICE, FAIL, LATEST
from streamlog.worker.topics.own_topics import OwnTopics

logger = repeated.logger(__name__)


async def compared(log: Log, program: Program, before: OwnTopics) -> OwnTopics:
    """What is to be written down of the sources, after a line about each that is another topic.

    Raises:
        SourceLost: one is, and the app wants the worker to end then.
    """
    found = await log.admin().find_topics(program.outer_sources)
    topics = {each.name: each for each in found if each.topic_id != ZERO_UUID}
    others = [
        name
        for name, topic in sorted(topics.items())
        if before.sources.get(name, topic.topic_id) != topic.topic_id
    ]
    begins = {name: at for name, at in before.begins.items() if name not in others}
    for name in await _unread(log, program, others):
        old_id, new_id = before.sources[name], topics[name].topic_id
        text = (
            f"{name}: this is another topic than the one that app {program.app_id!r} read: it was"
            f" deleted and created again since (id {id_text(old_id)}, now {id_text(new_id)}), and"
            " the app's offsets went with the old one"
        )
        policy = program.source_policy(name)
        if policy == FAIL:
            raise SourceLost(f"{text}. {ADVICE}", topic=name, ids=(old_id, new_id))
        if policy == LATEST:
            begins[name] = await _ends(log, topics[name])
        where = "end" if policy == LATEST else "beginning"
        logger.warning("%s. Reading from its %s, as source_lost is %r", text, where, policy)
    sources = {name: topic.topic_id for name, topic in topics.items()}
    return replace(before, sources=sources, begins=begins)


async def _unread(log: Log, program: Program, names: Collection[str]) -> list[str]:
    """Those of which the app has committed nothing, and that no state is made of."""
    without_state = [name for name in names if not program.has_state(name)]
    if not without_state:
        return []
    committed = await log.admin().group_places(program.app_id)
    read = {part.topic for part in committed}
    return [name for name in without_state if name not in read]


async def _ends(log: Log, topic: TopicDescription) -> tuple[int, ...]:
    partitions = [TopicPartition(topic.name, number) for number in range(topic.partitions)]
    async with log.consumer() as consumer:
        ends = await consumer.end_offsets(partitions)
    return tuple(ends[part] for part in partitions)
