"""Admin requests about topics: create, grow, delete, compare leader epochs, publish jobs.

Leader epochs (KIP-320) distinguish a log from another log with the same offsets. On a broker that
does not serve OffsetForLeaderEpoch, no log is reported as truncated.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import TypeVar

import msgspec

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
    """Detects logs that were truncated, by their leader epochs (KIP-320)."""

    async def leader_epochs(
        self,
        offsets: Mapping[TopicPartition, int],
        known: Mapping[TopicPartition, EpochChain] | None = None,
    ) -> dict[TopicPartition, EpochChain]:
        """Return the last leader epochs of the records before each offset.

        Args:
            offsets: partition to offset.
            known: earlier results for lower offsets, which save requests.

        Returns:
            Partition to its chain of epochs; empty if the brokers don't know.

        Raises:
            UnknownTopicOrPartition: a partition does not exist.
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
        self, ends: Mapping[TopicPartition, tuple[int, EpochChain]]
    ) -> dict[TopicPartition, int]:
        """Return the partitions whose log no longer has these epochs before an offset.

        Args:
            ends: partition to (offset, chain), as `leader_epochs` returned the chain.

        Returns:
            Partition to the offset up to which the log is unchanged; -1 if it is unknown.

        Raises:
            UnknownTopicOrPartition: a partition does not exist.
        """
        asked = {at: end for at, end in ends.items() if end[1]}
        for _ in range(2):
            # Twice, for a log whose start moves between the two requests:
            # 1. The log start offset is 100; retention then deletes the records up to 200.
            # 2. The epochs below 200 are gone, so the log looks truncated at 100.
            # 3. The second round compares from 200 on, and finds the log unchanged.
            begins = await list_offsets(self._cluster, dict.fromkeys(asked, EARLIEST))
            found = await self._answered(
                {at: find_divergence(*end, begins[at].offset) for at, end in asked.items()},
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
"""How long a broker may take to publish: the longest that it keeps a transaction open."""
STAGE_PIECE_BYTES = 1024 * 1024


class PublishedRange(msgspec.Struct, frozen=True):
    """The offsets of a job's records in one partition."""

    base_offset: int
    """Offset of the first record; -1 if the job has none here."""
    last_offset: int
    record_count: int


class Publication(msgspec.Struct, frozen=True):
    """The result of `publish`."""

    is_repeated: bool
    """Whether an earlier call published the job; then this call has changed nothing."""
    ranges: Mapping[TopicPartition, PublishedRange]


class PublishAdmin(AdminArea):
    """Publishes jobs: staged records that become visible together (decision 010)."""

    async def is_streamlog(self) -> bool:
        """Whether the log's brokers are streamlog's, and not Kafka's.

        This call does not retry.

        Raises:
            ConnectionLost: no broker can be reached.
        """
        key = api_of(PublishRequest).key
        return await self._cluster.speaks(await self._cluster.controller(), key, 0)

    async def can_publish(self) -> bool:
        """Whether the log can publish staged records: its one broker is a streamlog broker.

        With several brokers, fenced ones included, `Log.publish` writes a job in a producer's
        transaction. Fenced brokers count, so that a job that runs again looks for the receipt of
        its publication in the same place.
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
        """Make all records and offsets of a job visible at once, or none.

        A job that was published before changes nothing.

        Args:
            job_id: the job's unique id, and the same id when the job runs again. It is also the
                transactional id.
            staged_by: the id under which the segments were staged; empty for `job_id`.
            segments: the staged files, in the order of their records.
            records: partition to record batches that follow the segments.
            offsets: group to the offsets to commit for it. The group must have no members.

        Raises:
            LogError: nothing is published. The code is Kafka's: INVALID_REQUEST or INVALID_RECORD
                for a segment that differs from what was staged, NON_EMPTY_GROUP for a group with
                members, UNSUPPORTED_VERSION from Kafka's brokers, and INVALID_REQUEST if another
                broker leads a partition (`can_publish`).
            RequestTimedOut: the outcome is unknown; call again.
        """
        request = PublishRequest(
            job_id=job_id,
            staged_by=staged_by,
            topics=_topics(segments, records or {}),
            groups=[_group(name, committed) for name, committed in (offsets or {}).items()],
        )

        # A repetition is harmless: a job that was published changes nothing.
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
        """Send a file of whole record batches to the broker, to be published with this job.

        Raises:
            LogError: the name is invalid, or the broker can't write the file.
        """
        # An empty file takes one request too.
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
        """Delete the files that the job has staged, if any.

        Raises:
            LogError: the broker can't delete a file.
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

    def partition_of(topic: str, index: int) -> PublishPartition:
        partitions = topics.setdefault(topic, {})
        return partitions.setdefault(index, PublishPartition(partition_index=index))

    for each in segments:
        partition_of(each.topic, each.partition).segments.append(
            PublishSegment(
                name=each.name,
                size_bytes=each.size_bytes,
                record_count=each.record_count,
                crc32c=each.crc32c,
            )
        )
    for partition, data in records.items():
        partition_of(*partition).records = data
    return [
        PublishTopic(name=name, partitions=list(partitions.values()))
        for name, partitions in topics.items()
    ]


def _group(name: str, offsets: Offsets) -> PublishGroup:
    topics: dict[str, list[PublishOffset]] = {}
    for (topic, index), committed in with_metadata(offsets).items():
        topics.setdefault(topic, []).append(
            PublishOffset(
                partition_index=index,
                committed_offset=committed.offset,
                committed_metadata=committed.metadata,
            )
        )
    return PublishGroup(
        group_id=name,
        topics=[
            PublishOffsetTopic(name=topic, partitions=found) for topic, found in topics.items()
        ],
    )


HIGH_WATERMARK = -1
"""In `delete_records`: delete all records below the high watermark."""
PARTITIONS_DEFAULT = -1
"""In `NewTopic`: the broker's num.partitions."""
REPLICAS_DEFAULT = -1
"""In `NewTopic`: the broker's default.replication.factor. It is the default here, too: a topic with
one replica on a cluster of many brokers is lost with one disk."""


class NewTopic(msgspec.Struct, frozen=True):
    """A topic to create."""

    name: str
    partitions: int
    replication_factor: int = REPLICAS_DEFAULT
    """Replicas of each partition; by default the cluster's default.replication.factor."""
    configs: Mapping[str, str] = msgspec.field(default_factory=dict)
    """Topic settings by Kafka's names, such as `retention.ms`."""


class TopicDescription(msgspec.Struct, frozen=True):
    """A topic with its partitions and leaders."""

    name: str
    topic_id: bytes
    partitions: int
    replication_factor: int
    is_internal: bool
    leaders: Mapping[int, int]
    """Partition to the id of its leader; -1 while it has none."""


class TopicAdmin(AdminArea):
    """Creates, grows, deletes and describes topics."""

    async def create_topics(
        self, topics: Iterable[NewTopic], *, validate_only: bool = False
    ) -> None:
        """Create topics; the valid ones are created even if others are refused.

        Args:
            topics: the topics to create.
            validate_only: check the request, and create nothing.

        Raises:
            TopicExists: a topic exists already.
            LogError: a name, a number or a setting is invalid; `refusals` has all errors by name.
        """
        wanted = list(topics)

        def read(response: CreateTopicsResponse) -> None:
            outcomes = [
                (each.name, each.error_code, each.error_message) for each in response.topics
            ]
            # Several topics can't be retried as one: those that were created would be refused.
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
        """Add partitions to a topic; keys may map to other partitions from then on.

        Args:
            topic: the topic's name.
            partitions: the new total number of partitions.
            validate_only: check the request, and change nothing.

        Raises:
            UnknownTopicOrPartition: the topic does not exist.
            LogError: the topic has at least that many partitions, or the number is too large.
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
            UnknownTopicOrPartition: a topic does not exist; the others are deleted.
        """
        wanted = list(names)

        def read(response: DeleteTopicsResponse) -> None:
            raise_refused(
                "delete topic",
                [(each.name, each.error_code, each.error_message) for each in response.responses],
            )

        # Version 6 of the request has `topics` (KIP-516), older versions have `topic_names`.
        request = DeleteTopicsRequest(
            topics=[DeleteTopicState(name=name) for name in wanted],
            topic_names=wanted,
            timeout_ms=ADMIN_TIMEOUT_MS,
        )
        await self._ask_controller(request, DeleteTopicsResponse, read)
        self._cluster.forget(wanted)

    async def list_topics(self, *, internal: bool = False) -> list[TopicDescription]:
        """Return all topics, sorted by name; internal ones only with `internal=True`."""
        found = await self._cluster.retrying(self._cluster.describe)
        return [
            _description(topic) for topic in _by_name(found) if internal or not topic.is_internal
        ]

    async def describe_topics(self, names: Collection[str]) -> list[TopicDescription]:
        """Return the topics of these names, sorted by name.

        Raises:
            UnknownTopicOrPartition: a topic does not exist.
        """
        # `refresh` first: it waits a moment for topics that were just created.
        await self._cluster.retrying(lambda: self._cluster.refresh(names))
        found = await self._cluster.retrying(lambda: self._cluster.describe(names))
        return [_description(topic) for topic in _by_name(found)]

    async def find_topics(
        self, names: Collection[str], *, hidden: set[str] | None = None
    ) -> list[TopicDescription]:
        """Return the topics of these names that exist, sorted by name; use it to poll for them.

        Args:
            names: the topics to look for.
            hidden: where to add the names that the principal may not describe. A broker does not
                say whether they exist, so they are not returned.
        """
        found = await self._cluster.retrying(lambda: self._cluster.survey(names, hidden=hidden))
        return [_description(topic) for topic in _by_name(found.values())]

    async def delete_records(
        self, offsets: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, int]:
        """Delete the records before an offset (KIP-107).

        Args:
            offsets: partition to the first offset to keep; `HIGH_WATERMARK` (-1) deletes all
                records that consumers can see.

        Returns:
            Partition to its new log start offset.

        Raises:
            UnknownTopicOrPartition: a partition does not exist.
            LogError: an offset is above the high watermark, or the topic's cleanup.policy is
                compact alone.
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
        # During a reassignment, partitions of a topic differ in their number of replicas.
        replication_factor=max((len(nodes) for nodes in topic.replicas.values()), default=0),
        is_internal=topic.is_internal,
        leaders=topic.leaders,
    )
