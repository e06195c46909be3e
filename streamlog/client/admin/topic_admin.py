"""Admin requests about topics: create, grow, delete, read offsets and leader epochs, publish.

Leader epochs (KIP-320) tell a log from another one with the same offsets. A broker that does not
have the request knows no epochs: no log is reported as truncated then.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from streamlog.client.admin.admin_area import ADMIN_TIMEOUT_MS, AdminArea, M, check, raise_refused
from streamlog.client.cluster import TopicMetadata
from streamlog.client.offset_lookup import EARLIEST, by_leader, list_epoch_ends, list_offsets
from streamlog.client.offset_metadata import Offsets, with_metadata
from streamlog.errors import UnsupportedVersion
from streamlog.protocol.api_table import api_of
from streamlog.protocol.error_codes import ErrorCode, error_for
from streamlog.protocol.messages.cluster_metadata import (
    DescribeClusterRequest,
    DescribeClusterResponse,
)
from streamlog.protocol.messages.partitions_and_replicas import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
)
from streamlog.protocol.messages.publishing import (
    DropStagedRequest,
    DropStagedResponse,
    PublishGroup,
    PublishOffset,
    PublishOffsetTopic,
    PublishPartition,
    PublishRequest,
    PublishResponse,
    PublishSegment,
    PublishTopic,
    StageRequest,
    StageResponse,
)
from streamlog.protocol.messages.topics_and_configs import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopic,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicState,
)
from streamlog.protocol.schema import Message
from streamlog.record import TopicPartition
from streamlog.records.epoch_chains import (
    EpochChain,
    EpochQuestion,
    find_divergence,
    learn_chain,
    rounds_of,
)
from streamlog.records.staged_segment import StagedSegment

T = TypeVar("T")


class EpochAdmin(AdminArea):
    """Tells logs from others at the same offsets."""

    async def leader_epochs(
        self,
        offsets: Mapping[TopicPartition, int],
        known: Mapping[TopicPartition, EpochChain] | None = None,
    ) -> dict[TopicPartition, EpochChain]:
        """The last leader epochs of the records before each offset; empty where nobody knows.

        Args:
            offsets: by partition.
            known: what this told of earlier offsets; spares requests.

        Raises:
            UnknownTopicOrPartition: there is no such partition.
        """
        await self._cluster.retrying(
            lambda: self._cluster.refresh(sorted({at.topic for at in offsets}))
        )
        before = known or {}
        return await self._answered(
            {
                at: learn_chain(offset, self._cluster.leader_epoch(at), before.get(at, ()))
                for at, offset in offsets.items()
            },
            unknown=(),
        )

    async def divergences(
        self, places: Mapping[TopicPartition, tuple[int, EpochChain]]
    ) -> dict[TopicPartition, int]:
        """The partitions that are not the logs any more that had these epochs before an offset.

        Returns:
            Up to where each still is that log; -1 if nobody knows.

        Raises:
            UnknownTopicOrPartition: there is no such partition.
        """
        asked = {at: place for at, place in places.items() if place[1]}
        for _ in range(2):
            # Again: a log whose beginning was moved meanwhile has forgotten epochs.
            begins = await list_offsets(self._cluster, dict.fromkeys(asked, EARLIEST))
            found = await self._answered(
                {at: find_divergence(*place, begins[at].offset) for at, place in asked.items()},
                unknown=None,
            )
            asked = {at: asked[at] for at, offset in found.items() if offset is not None}
        return {at: offset for at, offset in found.items() if offset is not None}

    async def _answered(
        self, askings: Mapping[TopicPartition, EpochQuestion[T]], *, unknown: T
    ) -> dict[TopicPartition, T]:
        rounds = rounds_of(askings)
        try:
            wanted = next(rounds)
            while True:
                wanted = rounds.send(await list_epoch_ends(self._cluster, wanted))
        except StopIteration as end:
            found: dict[TopicPartition, T] = end.value
            return found
        except UnsupportedVersion:
            return dict.fromkeys(askings, unknown)


PUBLISH_TIMEOUT_MS = 15 * 60 * 1_000
"""How long a broker may take: a transaction may not be open for longer."""
STAGE_PIECE_BYTES = 1024 * 1024


@dataclass(frozen=True, slots=True)
class PublishedRange:
    """Where the records of a job stand in a partition."""

    base_offset: int
    """Of the first one; -1 if there is none."""
    last_offset: int
    record_count: int


@dataclass(frozen=True, slots=True)
class Publication:
    """What was published."""

    is_repeated: bool
    """Whether an earlier call has done it; then nothing was done now."""
    ranges: Mapping[TopicPartition, PublishedRange]


class PublishAdmin(AdminArea):
    """Publishes jobs."""

    async def is_streamlog(self) -> bool:
        """Whether the log's brokers are those of streamlog, and not of Kafka.

        Asked once: for who goes on without the answer if no broker can be reached.
        """
        key = api_of(PublishRequest).key
        return await self._cluster.speaks(await self._cluster.controller(), key, 0)

    async def can_publish(self) -> bool:
        """Whether the log takes what is staged: one broker of streamlog leads everything.

        Where there are more, those that do not live just now included, a job is written in a
        transaction of a producer (`Log.publish`): it is to be told in one way only whether it was.
        """
        return await self._cluster.retrying(self._is_alone)

    async def _is_alone(self) -> bool:
        if not await self.is_streamlog():
            return False
        request = DescribeClusterRequest(include_fenced_brokers=True)
        response = await self._cluster.call_controller(request, DescribeClusterResponse)
        check("count the brokers", response.error_code, response.error_message)
        if not response.brokers:
            raise error_for(ErrorCode.LEADER_NOT_AVAILABLE, "no broker is registered (yet)")
        return len(response.brokers) == 1

    async def publish(
        self,
        job_id: str,
        *,
        staged_by: str = "",
        segments: Iterable[StagedSegment] = (),
        records: Mapping[TopicPartition, bytes] | None = None,
        offsets: Mapping[str, Offsets] | None = None,
    ) -> Publication:
        """Have all of it count, or nothing. A job that was published before changes nothing.

        Args:
            job_id: a name that no other job has, and the job again when it is repeated. It is
                the transactional id, too.
            staged_by: under which name its segments were staged; empty: the job's id.
            segments: files that were staged for this job, in the order of their records.
            records: record batches that go behind those.
            offsets: by group, where it goes on. It may have no members.

        Raises:
            LogError: with Kafka's code: a segment is not what it should be (INVALID_REQUEST,
                INVALID_RECORD), a group has members (NON_EMPTY_GROUP), ...; nothing counts.
                UNSUPPORTED_VERSION says that the broker is none of streamlog's. INVALID_REQUEST
                comes, too, if another broker leads a partition: see `can_publish`.
            RequestTimedOut: nobody knows whether it was published: call again.
        """
        request = PublishRequest(
            job_id=job_id,
            staged_by=staged_by,
            topics=_topics(segments, records or {}),
            groups=[_group(name, places) for name, places in (offsets or {}).items()],
        )

        async def attempt() -> Publication:
            response = await self._cluster.call(
                await self._cluster.controller(),
                request,
                PublishResponse,
                timeout_ms=PUBLISH_TIMEOUT_MS,
            )
            check(f"publish job {job_id}", response.error_code, response.error_message)
            return Publication(
                response.is_repeated,
                {
                    TopicPartition(topic.name, each.partition_index): PublishedRange(
                        each.base_offset, each.last_offset, each.record_count
                    )
                    for topic in response.topics
                    for each in topic.partitions
                },
            )

        return await self._cluster.retrying(attempt)

    async def stage(self, job_id: str, name: str, data: bytes | memoryview) -> None:
        """Send a file of whole record batches to the broker, for this job.

        Raises:
            LogError: a name can't be one, or the disk refused.
        """
        view, position = memoryview(data), 0
        while position == 0 or position < len(view):
            piece = view[position : position + STAGE_PIECE_BYTES]
            end = position + len(piece)
            request = StageRequest(
                job_id=job_id,
                name=name,
                position=position,
                is_last=end >= len(view),
                records=piece,
            )
            response = await self._ask_one(request, StageResponse)
            check(f"stage {name} of job {job_id}", response.error_code, response.error_message)
            position = end
            if not len(piece):
                return

    async def drop_staged(self, job_id: str) -> None:
        """Forget what the job has staged; nothing happens if it has nothing staged.

        Raises:
            LogError: the disk refused.
        """
        response = await self._ask_one(DropStagedRequest(job_id=job_id), DropStagedResponse)
        check(f"drop what job {job_id} has staged", response.error_code, response.error_message)

    async def _ask_one(self, request: Message, kind: type[M]) -> M:
        async def attempt() -> M:
            return await self._cluster.call_controller(request, kind)

        return await self._cluster.retrying(attempt)


def _topics(
    segments: Iterable[StagedSegment], records: Mapping[TopicPartition, bytes]
) -> list[PublishTopic]:
    topics: dict[str, dict[int, PublishPartition]] = {}

    def place(topic: str, index: int) -> PublishPartition:
        partitions = topics.setdefault(topic, {})
        return partitions.setdefault(index, PublishPartition(partition_index=index))

    for each in segments:
        place(each.topic, each.partition).segments.append(
            PublishSegment(
                name=each.name,
                size_bytes=each.size_bytes,
                record_count=each.record_count,
                crc32c=each.crc32c,
            )
        )
    for partition, data in records.items():
        place(*partition).records = data
    return [
        PublishTopic(name=name, partitions=list(partitions.values()))
        for name, partitions in topics.items()
    ]


def _group(name: str, places: Offsets) -> PublishGroup:
    topics: dict[str, list[PublishOffset]] = {}
    for (topic, index), place in with_metadata(places).items():
        topics.setdefault(topic, []).append(
            PublishOffset(
                partition_index=index,
                committed_offset=place.offset,
                committed_metadata=place.metadata,
            )
        )
    return PublishGroup(
        group_id=name,
        topics=[
            PublishOffsetTopic(name=topic, partitions=found) for topic, found in topics.items()
        ],
    )


HIGH_WATERMARK = -1
"""In `delete_records`: everything that consumers can see."""
PARTITIONS_DEFAULT = -1
"""In `NewTopic`: as many as the broker gives a topic that does not say."""
REPLICAS_DEFAULT = -1
"""Likewise; one copy on a cluster of many brokers is lost with one disk."""


@dataclass(frozen=True, slots=True)
class NewTopic:
    """A topic to create."""

    name: str
    partitions: int
    replication_factor: int = REPLICAS_DEFAULT
    """Copies of each partition; without a number as many as the cluster gives to any topic."""
    configs: Mapping[str, str] = field(default_factory=dict)
    """Kafka's topic settings by name, such as `retention.ms`."""


@dataclass(frozen=True, slots=True)
class TopicDescription:
    """A topic as the log knows it."""

    name: str
    topic_id: bytes
    partitions: int
    replication_factor: int
    is_internal: bool
    leaders: Mapping[int, int]
    """Partition to broker; -1 while nobody leads it."""


class TopicAdmin(AdminArea):
    """Manages topics."""

    async def create_topics(
        self, topics: Iterable[NewTopic], *, validate_only: bool = False
    ) -> None:
        """Create topics; those that could be created are, even if others are refused.

        With `validate_only` nothing is created, and what would be refused is.

        Raises:
            TopicExists: one of them is there already.
            LogError: a name, a number or a setting is not allowed.
        """
        wanted = list(topics)

        def read(response: CreateTopicsResponse) -> None:
            outcomes = [
                (each.name, each.error_code, each.error_message) for each in response.topics
            ]
            raise_refused("create topic", outcomes, retriable=len(wanted) == 1)

        request = CreateTopicsRequest(
            topics=[_creatable(topic) for topic in wanted],
            timeout_ms=ADMIN_TIMEOUT_MS,
            validate_only=validate_only,
        )
        await self._ask_controller(request, CreateTopicsResponse, read)

    async def create_partitions(
        self, topic: str, partitions: int, *, validate_only: bool = False
    ) -> None:
        """Give a topic so many partitions in all. Records with keys may go elsewhere from then on.

        Raises:
            UnknownTopicOrPartition: it does not exist.
            LogError: it has as many already, or can't have so many.
        """

        def read(response: CreatePartitionsResponse) -> None:
            raise_refused(
                "add partitions to",
                [(each.name, each.error_code, each.error_message) for each in response.results],
            )
            self._cluster.forget([topic])

        request = CreatePartitionsRequest(
            topics=[CreatePartitionsTopic(name=topic, count=partitions, assignments=None)],
            timeout_ms=ADMIN_TIMEOUT_MS,
            validate_only=validate_only,
        )
        await self._ask_controller(request, CreatePartitionsResponse, read)

    async def delete_topics(self, names: Collection[str]) -> None:
        """Delete topics with all their records.

        Raises:
            UnknownTopicOrPartition: one of them does not exist.
        """
        wanted = list(names)

        def read(response: DeleteTopicsResponse) -> None:
            raise_refused(
                "delete topic",
                [(each.name, each.error_code, each.error_message) for each in response.responses],
            )

        request = DeleteTopicsRequest(
            topics=[DeleteTopicState(name=name) for name in wanted],
            topic_names=wanted,
            timeout_ms=ADMIN_TIMEOUT_MS,
        )
        await self._ask_controller(request, DeleteTopicsResponse, read)
        self._cluster.forget(wanted)

    async def list_topics(self, *, internal: bool = False) -> list[TopicDescription]:
        """All topics, by name; those that the log keeps for itself only if they are asked for."""
        found = await self._cluster.retrying(self._cluster.describe)
        return [
            _description(topic) for topic in _by_name(found) if internal or not topic.is_internal
        ]

    async def describe_topics(self, names: Collection[str]) -> list[TopicDescription]:
        """These topics, by name.

        Raises:
            UnknownTopicOrPartition: one of them does not exist.
        """
        await self._cluster.retrying(lambda: self._cluster.refresh(names))
        found = await self._cluster.retrying(lambda: self._cluster.describe(names))
        return [_description(topic) for topic in _by_name(found)]

    async def find_topics(self, names: Collection[str]) -> list[TopicDescription]:
        """Those of these topics that exist, by name; for who looks again and again."""
        found = await self._cluster.retrying(lambda: self._cluster.survey(names))
        return [_description(topic) for topic in _by_name(found.values())]

    async def delete_records(
        self, offsets: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, int]:
        """Delete the records before an offset, per partition; -1 stands for all there are.

        Returned is where each partition begins now.

        Raises:
            UnknownTopicOrPartition: a partition does not exist.
            LogError: an offset is beyond the end, or the topic is only compacted.
        """

        async def attempt() -> dict[TopicPartition, int]:
            begins: dict[TopicPartition, int] = {}
            for leader, wanted in (await by_leader(self._cluster, offsets)).items():
                response = await self._cluster.call(
                    leader, _deletion(wanted), DeleteRecordsResponse
                )
                begins |= self._begins(response)
            return begins

        return await self._cluster.retrying(attempt)

    def _begins(self, response: DeleteRecordsResponse) -> dict[TopicPartition, int]:
        found: dict[TopicPartition, int] = {}
        for topic in response.topics:
            for each in topic.partitions:
                if each.error_code:
                    self._cluster.forget([topic.name])
                    where = f"delete records of {topic.name}-{each.partition_index}"
                    raise error_for(each.error_code, where)
                found[TopicPartition(topic.name, each.partition_index)] = each.low_watermark
        return found


def _deletion(offsets: Mapping[TopicPartition, int]) -> DeleteRecordsRequest:
    topics: dict[str, list[DeleteRecordsPartition]] = {}
    for partition, offset in offsets.items():
        wanted = DeleteRecordsPartition(partition_index=partition.partition, offset=offset)
        topics.setdefault(partition.topic, []).append(wanted)
    return DeleteRecordsRequest(
        topics=[DeleteRecordsTopic(name=name, partitions=many) for name, many in topics.items()],
        timeout_ms=ADMIN_TIMEOUT_MS,
    )


def _creatable(topic: NewTopic) -> CreatableTopic:
    return CreatableTopic(
        name=topic.name,
        num_partitions=topic.partitions,
        replication_factor=topic.replication_factor,
        configs=[
            CreatableTopicConfig(name=name, value=value) for name, value in topic.configs.items()
        ],
    )


def _by_name(topics: Iterable[TopicMetadata]) -> list[TopicMetadata]:
    return sorted(topics, key=lambda topic: topic.name)


def _description(topic: TopicMetadata) -> TopicDescription:
    return TopicDescription(
        name=topic.name,
        topic_id=topic.topic_id,
        partitions=len(topic.leaders),
        replication_factor=max((len(nodes) for nodes in topic.replicas.values()), default=0),
        is_internal=topic.is_internal,
        leaders=topic.leaders,
    )
