"""Cluster-wide operations of our own Admin: brokers, log directories, elections, reassignments."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

from streamlog.client.admin import NewTopic
from streamlog.errors import LogError
from streamlog.log import Log
from streamlog.metrics import build_info
from streamlog.protocol.api_table import api_of
from streamlog.protocol.error_codes import ErrorCode
from streamlog.protocol.messages.cluster_metadata import MetadataRequest
from streamlog.record import TopicPartition

OpenLog = Callable[..., AbstractAsyncContextManager[Log]]
FIRST, SECOND, MISSING = (TopicPartition("t", number) for number in (0, 1, 2))


def code(error: LogError | None) -> int:
    return 0 if error is None else error.code


def test_describe_cluster_matches_the_metadata(open_log: OpenLog) -> None:
    async def main() -> None:
        async with open_log() as log, log.admin() as admin:
            found = await admin.describe_cluster()
            assert found.cluster_id == log.cluster_id
            (broker,) = found.brokers
            assert (broker.node_id, broker.host, broker.rack) == (1, "127.0.0.1", None)
            assert broker.port > 0
            assert found.controller == 1
            by_metadata = await admin._described_by_metadata()
            assert by_metadata == found

    asyncio.run(main())


def test_describe_log_dirs_returns_the_size_of_each_partition(open_log: OpenLog) -> None:
    async def main() -> None:
        async with open_log(t=2, u=1) as log, log.admin() as admin:
            async with log.producer() as producer:
                await (await producer.send("t", b"x" * 100, partition=1))
            (everything,) = await admin.describe_log_dirs()
            assert everything.error is None
            assert everything.path.endswith("data")
            assert set(everything.sizes) == {FIRST, SECOND, TopicPartition("u", 0)}
            assert everything.sizes[FIRST] == 0
            assert everything.sizes[SECOND] > 100
            (some,) = await admin.describe_log_dirs([SECOND, MISSING])
            assert some.sizes == {SECOND: everything.sizes[SECOND]}

    asyncio.run(main())


def test_api_versions_are_the_newest_that_both_sides_know(open_log: OpenLog) -> None:
    async def main() -> None:
        async with open_log() as log, log.admin() as admin:
            (versions,) = (await admin.describe_api_versions()).values()
            metadata = api_of(MetadataRequest)
            assert versions[metadata.key] == metadata.max_version

    asyncio.run(main())


def test_brokers_report_their_release_and_clock(open_log: OpenLog) -> None:
    async def main() -> None:
        async with open_log() as log, log.admin() as admin:
            found = await admin.describe_nodes()
            report = found.reports[1]
            assert report.version == build_info.release()
            assert report.interpreted is not None
            assert report.connections is not None
            assert report.clock_ahead_ms is not None
            # It is this machine's clock.
            assert abs(report.clock_ahead_ms) <= report.clock_error_ms + 1

    asyncio.run(main())


def test_electing_a_leader_with_one_replica_is_not_needed(open_log: OpenLog) -> None:
    async def main() -> None:
        async with open_log(t=2) as log, log.admin() as admin:
            found = await admin.elect_leaders([FIRST, MISSING])
            assert code(found[FIRST]) == ErrorCode.ELECTION_NOT_NEEDED
            assert code(found[MISSING]) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            assert await admin.elect_leaders() == {}
            unclean = await admin.elect_leaders([SECOND], unclean=True)
            assert code(unclean[SECOND]) == ErrorCode.ELECTION_NOT_NEEDED

    asyncio.run(main())


def test_reassignments_to_the_current_or_unknown_brokers_change_nothing(open_log: OpenLog) -> None:
    async def main() -> None:
        async with open_log(t=2) as log, log.admin() as admin:
            moved = await admin.alter_partition_reassignments({FIRST: [1], SECOND: [1, 2]})
            assert moved[FIRST] is None
            assert code(moved[SECOND]) == ErrorCode.INVALID_REPLICA_ASSIGNMENT
            assert "broker" in str(moved[SECOND])
            cancelled = await admin.alter_partition_reassignments({FIRST: None})
            assert code(cancelled[FIRST]) == ErrorCode.NO_REASSIGNMENT_IN_PROGRESS
            assert await admin.list_partition_reassignments() == {}
            assert await admin.list_partition_reassignments([FIRST]) == {}
            await admin.create_topics([NewTopic("still", 1)])

    asyncio.run(main())
