"""ThrottleAdmin: how much the copying of partitions that move may take (KIP-73).

The part of `Admin` that sets and removes throttles as Kafka's tool for moves does: a rate for each
broker that takes part, and on each topic which replicas it holds for: those that there were as
leaders, those that are added as followers. A list that says `*` is somebody's own, and stays.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Final

from streamlog.assignors import TopicPartition
from streamlog.client.admin_room import raise_refused
from streamlog.client.cluster_descriptions import PartitionDescription
from streamlog.client.config_admin import TOPIC_RESOURCE, Append, Change, ConfigAdmin
from streamlog.client.replica_admin import Reassignment, ReplicaAdmin
from streamlog.errors import UsageError
from streamlog.protocol.messages.admin import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResponse,
)

LEADER_RATE: Final = "leader.replication.throttled.rate"
FOLLOWER_RATE: Final = "follower.replication.throttled.rate"
LEADER_REPLICAS: Final = "leader.replication.throttled.replicas"
FOLLOWER_REPLICAS: Final = "follower.replication.throttled.replicas"
EVERY: Final = "*"
NOTHING: Final[Mapping[TopicPartition, Sequence[int] | None]] = MappingProxyType({})


class ThrottleAdmin(ConfigAdmin, ReplicaAdmin):
    """Bounds what moves of partitions take from brokers."""

    async def throttle_moves(
        self,
        bytes_per_s: int,
        moves: Mapping[TopicPartition, Sequence[int] | None] = NOTHING,
    ) -> list[int]:
        """Have each broker send, and fetch, so much at most for `moves` and those on their way.

        To be called before the moves begin, and again for another rate. It has to be more than
        what is written to the partitions meanwhile, or they never end. Returned are the brokers
        that it holds for; none if nothing is copied.

        Raises:
            NotAuthorized: this is not for everybody to do.
        """
        if bytes_per_s <= 0:
            raise UsageError(f"{bytes_per_s} bytes a second move nothing: name a positive rate")
        places = await self.describe_partitions()
        copies = copied(places, await self.list_partition_reassignments(), moves)
        set_before = await self._throttled({each.topic for each in copies})
        for topic, lists in listed(copies).items():
            before = set_before.get(topic, {})
            changes: dict[str, Change] = {
                name: Append(",".join(replicas))
                for name, replicas in lists.items()
                if before.get(name) != EVERY
            }
            if changes:
                await self.alter_configs(changes, topic=topic)
        brokers = sorted({each for pair in copies.values() for side in pair for each in side})
        rate = str(bytes_per_s)
        for broker in brokers:
            await self.alter_configs({LEADER_RATE: rate, FOLLOWER_RATE: rate}, broker=broker)
        return brokers

    async def remove_throttles(self) -> list[str]:
        """Take the throttles away that `throttle_moves` has set; returns from which topics.

        Nothing should be on its way any more. While a topic has a list that says `*`, that
        stays, and so do the rates.

        Raises:
            NotAuthorized: this is not for everybody to do.
        """
        topics = {each.topic for each in await self.describe_partitions()}
        throttled = await self._throttled(topics)
        ours = {
            topic: [name for name, replicas in lists.items() if replicas != EVERY]
            for topic, lists in throttled.items()
        }
        if not any(EVERY in lists.values() for lists in throttled.values()) and any(ours.values()):
            # First, for who finds no lists has nothing to do.
            for broker in (await self.describe_cluster()).brokers:
                await self.alter_configs(
                    {LEADER_RATE: None, FOLLOWER_RATE: None}, broker=broker.node_id
                )
        freed = sorted(topic for topic, names in ours.items() if names)
        for topic in freed:
            await self.alter_configs(dict.fromkeys(ours[topic]), topic=topic)
        return freed

    async def _throttled(self, topics: Collection[str]) -> dict[str, dict[str, str]]:
        """The lists of throttled replicas that are set, by topic and name."""
        request = DescribeConfigsRequest(
            resources=[
                DescribeConfigsResource(
                    resource_type=TOPIC_RESOURCE,
                    resource_name=topic,
                    configuration_keys=[LEADER_REPLICAS, FOLLOWER_REPLICAS],
                )
                for topic in sorted(topics)
            ]
        )

        def read(response: DescribeConfigsResponse) -> dict[str, dict[str, str]]:
            raise_refused(
                "describe settings of",
                [
                    (each.resource_name, each.error_code, each.error_message)
                    for each in response.results
                ],
            )
            return {
                result.resource_name: {
                    each.name: each.value for each in result.configs if each.value
                }
                for result in response.results
            }

        if not topics:
            return {}
        return await self._ask_controller(request, DescribeConfigsResponse, read)


def copied(
    places: Iterable[PartitionDescription],
    under_way: Mapping[TopicPartition, Reassignment],
    moves: Mapping[TopicPartition, Sequence[int] | None],
) -> dict[TopicPartition, tuple[list[int], list[int]]]:
    """From which brokers partitions are copied, and to which, by moves now and those to come."""
    copies: dict[TopicPartition, tuple[list[int], list[int]]] = {}
    for place in places:
        partition = TopicPartition(place.topic, place.partition)
        move = under_way.get(partition)
        coming = () if move is None else move.adding
        sources = [each for each in place.replicas if each not in coming]
        wanted = moves.get(partition, coming)
        targets = [each for each in wanted or () if each not in sources]
        if targets:
            copies[partition] = sources, targets
    return copies


def listed(
    copies: Mapping[TopicPartition, tuple[Sequence[int], Sequence[int]]],
) -> dict[str, dict[str, list[str]]]:
    """The lists of throttled replicas that this makes, by topic and name."""
    lists: dict[str, dict[str, list[str]]] = {}
    for (topic, number), (sources, targets) in sorted(copies.items()):
        of_topic = lists.setdefault(topic, {LEADER_REPLICAS: [], FOLLOWER_REPLICAS: []})
        of_topic[LEADER_REPLICAS] += (f"{number}:{broker}" for broker in sources)
        of_topic[FOLLOWER_REPLICAS] += (f"{number}:{broker}" for broker in targets)
    return lists
