"""Fail back: a cluster follows the one that was promoted, and keeps aside what only it had."""

from __future__ import annotations

import asyncio

import pytest

from streamlog.broker.broker import Broker
from streamlog.broker.mirroring.lost_and_found import LostAndFound, file_name
from streamlog.broker.quorum.metadata.mirror_topics import MirrorState
from streamlog.broker.replication.partition import Partition
from streamlog.broker.storage.disk.files import read_file
from streamlog.broker.storage.disk.memory_files import MemoryFiles
from streamlog.errors import LogDirectoryFailed
from streamlog.protocol.error_codes import ErrorCode
from streamlog.protocol.messages.mirror_messages import (
    CreatableMirror,
    DescribeMirrorsRequest,
    DescribeMirrorsResponse,
    FailBackRequest,
    FailBackResponse,
)
from streamlog.records.batch import split_batches
from tests.broker.mirroring.test_mirrors import alter, content, link, mirror, serving, until
from tests.broker.node import ask, batch, create, produce

FOLDER = "data/lost-and-found"


async def fail_back(old: Broker, new: Broker) -> None:
    """Let topic t of the old cluster follow that of the new one."""
    described = await ask(new, DescribeMirrorsRequest(), DescribeMirrorsResponse)
    (topic,) = described.topics
    asked = CreatableMirror(
        name="t",
        source_topic="t",
        source_topic_id=topic.topic_id,
        num_partitions=1,
        eras=topic.eras,
    )
    request = FailBackRequest(link="back", topics=[asked])
    (result,) = (await ask(old, request, FailBackResponse)).topics
    assert not result.error_code, result.error_message


def kept(files: MemoryFiles) -> dict[str, list[bytes]]:
    """Return the values in each file of what was cut off."""
    try:
        names = sorted(files.list(FOLDER))
    except FileNotFoundError:
        return {}
    return {
        name: [
            record.value or b""
            for each in split_batches(read_file(files, f"{FOLDER}/{name}"))
            for record in each.records()
        ]
        for name in names
    }


def test_an_old_cluster_follows_the_new_one_and_keeps_what_only_it_had() -> None:
    async def story() -> None:
        there, here = MemoryFiles(), MemoryFiles()
        async with (
            serving(there) as (old, old_address),
            serving(here) as (new, new_address),
        ):
            create(old)
            await produce(old, batch(b"1", b"2"))
            await mirror(new, await link(new, old_address, old), old)
            await until(lambda: content(new) == content(old))
            await alter(new, MirrorState.PROMOTED)
            await produce(old, batch(b"late"))
            await produce(old, batch(b"later", b"last"))
            await produce(new, batch(b"3"))
            shared = content(new)

            await link(old, new_address, new, "back")
            await fail_back(old, new)
            await until(lambda: content(old) == content(new) == shared)
            assert kept(there) == {"t-0-2.log": [b"late", b"later", b"last"]}
            refused = await produce(old, batch(b"own"))
            assert refused.error_code == ErrorCode.POLICY_VIOLATION
            await produce(new, batch(b"4"))
            await until(lambda: content(old) == content(new))

            # And back: nothing that was written since is cut in either.
            await alter(old, MirrorState.PROMOTED)
            assert (await produce(old, batch(b"5"))).error_code == 0
            assert content(old).startswith(content(new))
            assert kept(here) == {}
        there.crash(keep_bytes=None)
        assert kept(there) == {"t-0-2.log": [b"late", b"later", b"last"]}

    asyncio.run(story())


def test_a_log_is_kept_whole_if_the_source_has_deleted_what_tells_where_they_part() -> None:
    async def story() -> None:
        there = MemoryFiles()
        async with (
            serving(there) as (old, old_address),
            serving(MemoryFiles()) as (new, new_address),
        ):
            create(old)
            await produce(old, batch(b"1"))
            await mirror(new, await link(new, old_address, old), old)
            await until(lambda: content(new) == content(old))
            await alter(new, MirrorState.PROMOTED)
            await produce(old, batch(b"late"))
            await produce(new, batch(b"2", b"3"))
            new._partitions.get("t", 0).delete_before(3)
            await produce(new, batch(b"4"))
            await link(old, new_address, new, "back")
            await fail_back(old, new)
            await until(lambda: content(old) == content(new) != b"")
            assert kept(there) == {"t-0-0.log": [b"1", b"late"]}

    asyncio.run(story())


def test_a_mirror_keeps_nothing_of_what_its_source_deletes() -> None:
    async def story() -> None:
        here = MemoryFiles()
        async with serving(MemoryFiles()) as (source, address), serving(here) as (target, _):
            create(source)
            await produce(source, batch(b"1"))
            await mirror(target, await link(target, address, source), source)
            await until(lambda: content(target) == content(source))
            await alter(target, MirrorState.PAUSED)
            await produce(source, batch(b"2", b"3"))
            source._partitions.get("t", 0).delete_before(2)
            await alter(target, MirrorState.ACTIVE)
            await until(lambda: content(target) == content(source))
            assert kept(here) == {}

    asyncio.run(story())


def test_what_is_kept_twice_is_one_file_and_no_file_is_overwritten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tried = 0
    keep = LostAndFound.keep

    async def interrupted(self: LostAndFound, partition: Partition, offset: int) -> str:
        nonlocal tried
        tried += 1
        path = await keep(self, partition, offset)
        if tried < 3:
            raise LogDirectoryFailed("the power fails after the file, before the cut")
        return path

    monkeypatch.setattr(LostAndFound, "keep", interrupted)

    async def story() -> None:
        there = MemoryFiles()
        there.make_directory("data")
        there.make_directory(FOLDER)
        other = there.open(f"{FOLDER}/t-0-1.log", writable=True)
        other.write(batch(b"of an earlier fail back"), 0)
        other.close()
        async with (
            serving(there) as (old, old_address),
            serving(MemoryFiles()) as (new, new_address),
        ):
            create(old)
            await produce(old, batch(b"1"))
            await mirror(new, await link(new, old_address, old), old)
            await until(lambda: content(new) == content(old))
            await alter(new, MirrorState.PROMOTED)
            await produce(old, batch(b"late"))
            await link(old, new_address, new, "back")
            await fail_back(old, new)
            await until(lambda: content(old) == content(new))
            assert tried == 3
            assert kept(there) == {
                "t-0-1-2.log": [b"late"],
                "t-0-1.log": [b"of an earlier fail back"],
            }

    asyncio.run(story())


def test_names_of_files_fit_whatever_the_topic_is_called() -> None:
    topics = ["t", "t" * 200, *("t" * 248 + each for each in "ab")]
    names = [file_name(each) for each in topics]
    assert names[:2] == topics[:2]
    assert len({*names}) == len(names)
    longest = f"{names[2]}-{10**9}-{2**63 - 1}-{10**6}.log"
    assert len(longest) <= 255


def test_a_chain_follows_a_cluster_that_takes_its_promotion_back() -> None:
    async def story() -> None:
        async with (
            serving(MemoryFiles()) as (first, first_address),
            serving(MemoryFiles()) as (middle, middle_address),
            serving(MemoryFiles()) as (last, _),
        ):
            create(first)
            await produce(first, batch(b"1"))
            await mirror(middle, await link(middle, first_address, first, "back"), first)
            await until(lambda: content(middle) == content(first))
            await mirror(last, await link(last, middle_address, middle), middle)
            await alter(middle, MirrorState.PROMOTED)
            await produce(middle, batch(b"mistake", b"of two"))
            await until(lambda: content(last) == content(middle) != content(first))
            # A topic that was never a mirror has no history of others.
            topic = CreatableMirror(
                name="t",
                source_topic="t",
                source_topic_id=first.directory.topics["t"].topic_id,
                num_partitions=1,
            )
            request = FailBackRequest(link="back", topics=[topic])
            (result,) = (await ask(middle, request, FailBackResponse)).topics
            assert not result.error_code, result.error_message
            await produce(first, batch(b"2"))
            await until(lambda: content(last) == content(middle) == content(first))

    asyncio.run(story())
