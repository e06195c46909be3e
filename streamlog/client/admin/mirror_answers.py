"""Answers about mirrors: what all brokers of a cluster tell, joined.

Links, states and seals are in the metadata, which all brokers have sooner or later; how far a
partition is, only its leader knows. Until a former leader hears of its successor, both answer: the
one of the higher leader epoch counts.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TypeAlias

from streamlog.client.admin.admin_area import check
from streamlog.client.cluster import Cluster
from streamlog.errors import StreamlogError
from streamlog.protocol.messages.mirror_messages import (
    DescribedMirror,
    DescribedMirrorPartition,
    DescribedSealPartition,
    DescribeMirrorsRequest,
    DescribeMirrorsResponse,
)

Answers: TypeAlias = dict[int, DescribeMirrorsResponse]
"""What brokers know, by broker."""
LeaderReports: TypeAlias = dict[int, tuple[int, DescribedMirrorPartition]]
"""The leader of each partition, and what it tells."""
SealReports: TypeAlias = dict[int, DescribedSealPartition]
"""What the leader of each partition that takes no records tells."""


async def mirror_answers(cluster: Cluster) -> tuple[Answers, dict[int, StreamlogError]]:
    """Return what brokers know, at least one, and why others have not answered.

    Raises:
        UnsupportedVersion: the brokers are not streamlog's.
        LogError: the user may not describe the cluster.
        ConnectionLost: no broker answers.
    """
    answers: Answers = {}
    failures: dict[int, StreamlogError] = {}

    async def question(node_id: int) -> None:
        try:
            answer = await cluster.call(node_id, DescribeMirrorsRequest(), DescribeMirrorsResponse)
            check("describe mirrors", answer.error_code, answer.error_message)
        except StreamlogError as error:
            failures[node_id] = error
        else:
            answers[node_id] = answer

    async def attempt() -> None:
        answers.clear()
        failures.clear()
        nodes = await cluster.nodes()
        async with asyncio.TaskGroup() as group:
            for node_id in nodes:
                group.create_task(question(node_id))
        # One answer is enough: it has the links and states, and the rest is named as silent.
        if not answers:
            raise next(iter(failures.values()))

    await cluster.retrying(attempt)
    return answers, failures


def freshest(answers: Mapping[int, DescribeMirrorsResponse]) -> DescribeMirrorsResponse:
    """Return the answer of the newest metadata."""
    # Brokers apply the metadata one after another, so one may not know yet what another one tells.
    return max(answers.values(), key=lambda each: each.metadata_offset)


def is_app_log(mirror: DescribedMirror) -> bool:
    """Whether it mirrors an internal topic, for a cut of apps: no topic that users have to do with.

    Links mirror no other internal topics.
    """
    return mirror.source_topic.startswith("__")


def leader_reports(answers: Mapping[int, DescribeMirrorsResponse]) -> dict[bytes, LeaderReports]:
    """Return what leaders know of each mirror partition, by topic id and number."""
    found: dict[bytes, LeaderReports] = {}
    parts = [
        (topic.topic_id, node_id, part)
        for node_id, answer in sorted(answers.items())
        for topic in answer.topics
        for part in topic.partitions
    ]
    for topic_id, node_id, part in parts:
        known = found.setdefault(topic_id, {})
        before = known.get(part.partition_index)
        if before is None or before[1].leader_epoch < part.leader_epoch:
            known[part.partition_index] = node_id, part
    return found


def seal_reports(answers: Mapping[int, DescribeMirrorsResponse]) -> dict[bytes, SealReports]:
    """Return what leaders know of each partition that takes no records, by topic id and number."""
    found: dict[bytes, SealReports] = {}
    parts = [
        (topic.topic_id, part)
        for _, answer in sorted(answers.items())
        for topic in answer.seals
        for part in topic.partitions
    ]
    for topic_id, part in parts:
        known = found.setdefault(topic_id, {})
        before = known.get(part.partition_index)
        if before is None or before.leader_epoch < part.leader_epoch:
            known[part.partition_index] = part
    return found
