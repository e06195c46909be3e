"""Links and mirrors as our own Admin sees them: pure joins of answers, and two real brokers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from streamlog.broker.storage.disk.memory_files import MemoryFiles
from streamlog.client.admin import Admin, MirrorDescription, MirrorStatus, NewTopic
from streamlog.client.admin.mirror_admin import LAGGING_MS, SILENT_MS, join_answers
from streamlog.errors import LogError
from streamlog.log import Log
from streamlog.protocol.messages.mirror_messages import (
    DescribedLink,
    DescribedMirror,
    DescribedMirrorPartition,
    DescribeMirrorsResponse,
)
from tests.broker.mirroring.test_mirrors import serving

NOW_MS = 1_700_000_000_000
LINK, TOPIC = b"link-id-of-16-by", b"topic-id-16-byte"
WITHIN_S = 120


def part(index: int = 0, **more: int | str) -> DescribedMirrorPartition:
    """Return a partition that has everything, or what is given."""
    known: dict[str, object] = {
        "leader_epoch": 3,
        "log_start_offset": 0,
        "log_end_offset": 10,
        "source_end_offset": 10,
        "silent_ms": 5,
        "lag_bytes": 0,
        "lag_ms": 0,
    }
    return DescribedMirrorPartition(partition_index=index, **(known | more))


def told(
    *parts: DescribedMirrorPartition, state: int = 0, trouble: str = "", partitions: int = 1
) -> DescribeMirrorsResponse:
    """Return the answer of a broker that leads these partitions."""
    return DescribeMirrorsResponse(
        cluster_id="here",
        links=[DescribedLink(name="east", link_id=LINK, source_cluster_id="e", trouble=trouble)],
        topics=[
            DescribedMirror(
                name="t",
                topic_id=TOPIC,
                link_id=LINK,
                source_topic="t",
                state=state,
                reason="",
                since_ms=NOW_MS - 60_000,
                num_partitions=partitions,
                partitions=list(parts),
            )
        ],
    )


def seen(*answers: DescribeMirrorsResponse) -> MirrorDescription:
    (found,) = join_answers(dict(enumerate(answers)), {}, NOW_MS).mirrors
    return found


@pytest.mark.parametrize(
    ("answer", "status", "since_ms"),
    [
        (told(part()), MirrorStatus.ACTIVE, NOW_MS - 60_000),
        (told(part(silent_ms=-1, source_end_offset=-1)), MirrorStatus.INITIAL, NOW_MS - 60_000),
        (told(part(), partitions=2), MirrorStatus.INITIAL, NOW_MS - 60_000),
        (
            told(trouble="refused"),
            MirrorStatus.SOURCE_UNAVAILABLE,
            NOW_MS - 60_000,
        ),
        (
            told(part(silent_ms=SILENT_MS + 1)),
            MirrorStatus.SOURCE_UNAVAILABLE,
            NOW_MS - SILENT_MS - 1,
        ),
        (
            told(part(silent_ms=-1, source_end_offset=-1, refusal="no right")),
            MirrorStatus.SOURCE_UNAVAILABLE,
            NOW_MS - 60_000,
        ),
        (told(part(lag_ms=LAGGING_MS + 7)), MirrorStatus.LAGGING, NOW_MS - LAGGING_MS - 7),
        (told(part(lag_ms=LAGGING_MS)), MirrorStatus.ACTIVE, NOW_MS - 60_000),
        (told(part(trouble="no common end")), MirrorStatus.DIVERGED, NOW_MS),
        (told(part(silent_ms=99_999), state=1), MirrorStatus.PAUSED, NOW_MS - 60_000),
        (told(part(), state=2), MirrorStatus.STOPPED, NOW_MS - 60_000),
        (told(part(), state=3), MirrorStatus.PROMOTED, NOW_MS - 60_000),
    ],
)
def test_a_state_follows_from_what_was_decided_and_from_what_leaders_see(
    answer: DescribeMirrorsResponse, status: MirrorStatus, since_ms: int
) -> None:
    found = seen(answer)
    assert (found.status, found.since_ms) == (status, since_ms)


def test_a_refusal_of_the_source_is_the_reason_unless_it_can_not_be_reached() -> None:
    refused = part(silent_ms=20_000, refusal="CORRUPT_MESSAGE (2): damaged")
    assert seen(told(part(1), refused)).reason == (
        "the source has sent nothing for 20 s: the source refuses t-0: CORRUPT_MESSAGE (2): damaged"
    )
    assert seen(told(refused, trouble="no route")).reason == (
        "the source has sent nothing for 20 s: no route"
    )


def test_the_answers_of_all_brokers_are_joined_and_the_newest_leader_is_believed() -> None:
    old = part(0, leader_epoch=2, log_end_offset=3)
    new = part(0, leader_epoch=4, log_end_offset=8, lag_bytes=200, lag_ms=40)
    other = part(1, log_end_offset=7, source_end_offset=10, lag_bytes=300, lag_ms=90)
    for answers in ((told(new, other), told(old)), (told(old), told(new), told(other))):
        found = seen(*(each for each in answers))
        assert [each.log_end_offset for each in found.partitions] == [8, 7]
        assert (found.lag_records, found.lag_bytes, found.lag_ms) == (5, 500, 90)


def test_links_and_states_are_those_of_the_newest_metadata_though_an_older_one_had_more() -> None:
    older, newer = told(part(), state=0), told(state=1)
    older.metadata_offset, newer.metadata_offset = 41, 42
    older.links.append(DescribedLink(name="gone", link_id=b"gone-id-of-16-by", trouble="refused"))
    for answers in ((older, newer), (newer, older)):
        found = join_answers(dict(enumerate(answers)), {}, NOW_MS)
        assert [each.name for each in found.links] == ["east"]
        (mirror,) = found.mirrors
        assert mirror.status is MirrorStatus.PAUSED
        # What the leader says of its partition counts all the same.
        assert [each.log_end_offset for each in mirror.partitions] == [10]


@asynccontextmanager
async def two() -> AsyncIterator[tuple[Log, Log, str]]:
    """Yield clients of a source and of a target, and the address of the source."""
    async with (
        serving(MemoryFiles()) as (_, source),
        serving(MemoryFiles()) as (_, target),
        Log.open(f"kafka://{source}") as there,
        Log.open(f"kafka://{target}") as here,
    ):
        yield there, here, source


async def until(admin: Admin, holds: Callable[[MirrorDescription], bool]) -> MirrorDescription:
    """Return the first description of the only mirror for which a condition holds."""
    async with asyncio.timeout(WITHIN_S):
        while True:
            mirrors = (await admin.describe_mirrors()).mirrors
            if mirrors and holds(mirrors[0]):
                return mirrors[0]
            await asyncio.sleep(0.02)


def test_a_link_is_created_described_altered_paused_resumed_and_deleted() -> None:
    async def story() -> None:
        async with two() as (there, here, address):
            await there.admin().create_topics([NewTopic("orders", 2)])
            admin = here.admin()
            settings = {"bootstrap.servers": address, "refresh.topics.interval.ms": "50"}
            with pytest.raises(LogError, match="did you mean 'topics'"):
                await admin.create_link("east", {"topcs": "x"}, source_cluster_id=there.cluster_id)
            for only in (True, False):
                await admin.create_link(
                    "east", settings, source_cluster_id=there.cluster_id, validate_only=only
                )
                assert len((await admin.describe_mirrors()).links) == (not only)
            await admin.alter_link("east", {"topics": "orders"})
            async with there.producer() as producer:
                for number in range(20):
                    await producer.send("orders", value=b"x" * number)
            mirror = await until(admin, lambda each: each.status is MirrorStatus.ACTIVE)
            assert (mirror.link, mirror.num_partitions) == ("east", 2)
            mirror = await until(
                admin, lambda each: sum(p.log_end_offset for p in each.partitions) == 20
            )
            mirror = await until(admin, lambda each: each.lag_records == 0)
            assert (mirror.lag_bytes, mirror.lag_ms) == (0, 0)
            await admin.pause_mirrors(["orders"])
            await until(admin, lambda each: each.status is MirrorStatus.PAUSED)
            with pytest.raises(LogError, match="'nothing'"):
                await admin.pause_mirrors(["nothing"])
            with pytest.raises(LogError, match="promote or delete them first"):
                await admin.delete_link("east")
            await admin.resume_mirrors(["orders"])
            await until(admin, lambda each: each.status is MirrorStatus.ACTIVE)
            await admin.create_link("idle", settings, source_cluster_id=there.cluster_id)
            await admin.delete_link("idle")
            assert [each.name for each in (await admin.describe_mirrors()).links] == ["east"]

    asyncio.run(story())
