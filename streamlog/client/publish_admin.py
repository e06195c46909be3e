"""PublishAdmin: has what a job has staged begin to count, all at once and once.

The part of `Admin` that is about publications, which only brokers of streamlog know; see
`broker.publishing`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from streamlog.assignors import TopicPartition
from streamlog.client.admin_room import AdminRoom, M, check
from streamlog.client.offset_metadata import Offsets, with_metadata
from streamlog.errors import LogError
from streamlog.protocol.apis import api_of
from streamlog.protocol.error_codes import ErrorCode, error_for
from streamlog.protocol.messages.cluster import DescribeClusterRequest, DescribeClusterResponse
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
from streamlog.protocol.schema import Message
from streamlog.records.staged import StagedSegment

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


class PublishAdmin(AdminRoom):
    """Publishes jobs."""

    async def is_streamlog(self) -> bool:
        """Whether the log's brokers are those of streamlog, and not of Kafka.

        Asked once: for who goes on without the answer if no broker can be reached.
        """
        key = api_of(PublishRequest).key
        try:
            return await self._cluster.speaks(await self._cluster.controller(), key, 0)
        except LogError as error:
            if error.code == ErrorCode.UNSUPPORTED_VERSION:
                return False
            raise

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
