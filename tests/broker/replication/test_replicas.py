"""Partitions that brokers replicate: acknowledgement, visibility, truncation and catching up."""

from __future__ import annotations

import asyncio
import errno
import gc
from collections.abc import Callable, Coroutine
from weakref import ReferenceType, ref

import pytest

from streamlog.broker.replication.partition_replica import PartitionReplica
from streamlog.broker.storage.data_directory import partition_folder
from streamlog.broker.storage.disk.files import read_file
from streamlog.broker.storage.log.recovery import LostOffsets
from streamlog.protocol.error_codes import ErrorCode
from streamlog.protocol.messages.cluster_metadata import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from streamlog.protocol.messages.produce_and_fetch import (
    FetchPartition,
    FetchResponse,
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
    PartitionData,
)
from streamlog.protocol.messages.topics_and_configs import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopic,
)
from tests.broker.node import ask, at, fetch_request
from tests.broker.replication.cluster import OTHER, TOPIC_ID, Cluster, ReplicatingNode
from tests.broker.storage.batches import overwrite


def story(
    body: Callable[[Cluster], Coroutine[object, object, None]],
) -> Callable[[], None]:
    """Return a test that runs `body` with a running cluster."""

    def test() -> None:
        async def main() -> None:
            async with Cluster() as cluster:
                await body(cluster)

        asyncio.run(main())

    test.__name__ = body.__name__
    return test


async def visible(node: ReplicatingNode) -> int:
    """Return the high watermark that a consumer sees."""
    response = await ask(node.broker, fetch_request(at(0)), FetchResponse)
    return response.responses[0].partitions[0].high_watermark


@story
async def test_acknowledged_records_are_on_all_in_sync_replicas(cluster: Cluster) -> None:
    leader, *followers = cluster.nodes
    answers = [await leader.produce(b"%d" % number) for number in range(5)]
    assert [(each.error_code, each.base_offset) for each in answers] == [(0, n) for n in range(5)]
    assert await visible(leader) == 5
    for node in followers:
        assert node.partition.log.synced.offset == 5
        assert node.content() == leader.content()
    await cluster.until(lambda: all(node.partition.high_watermark == 5 for node in followers))


@story
async def test_a_follower_refuses_clients_without_a_rack(cluster: Cluster) -> None:
    answer = await cluster.nodes[1].produce(b"a")
    assert answer.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    response = await ask(cluster.nodes[1].broker, fetch_request(at(0)), FetchResponse)
    code = response.responses[0].partitions[0].error_code
    assert code == ErrorCode.NOT_LEADER_OR_FOLLOWER


@story
async def test_acks_all_waits_for_the_disks_of_the_followers(cluster: Cluster) -> None:
    leader, follower, _ = cluster.nodes
    await leader.produce(b"first")
    for thread in follower.threads:
        thread.held = True
    answer = leader.produce(b"second")
    await cluster.until(lambda: follower.end == 2)
    assert not answer.done()
    assert await visible(leader) == 1
    for thread in follower.threads:
        thread.release()
    assert (await answer).error_code == 0


@story
async def test_a_fetch_waits_for_no_sync_of_a_moved_partition(
    cluster: Cluster,
) -> None:
    former, latter, follower = cluster.nodes
    cluster.lead_other(0)
    for thread in follower.threads:
        thread.held = True
    former.produce(b"on its way to the disk", acks=1)
    await cluster.until(lambda: follower.end == 1)
    cluster.elect(1)
    await former.produce(b"of the other partition", acks=1, number=OTHER)
    await cluster.until(lambda: follower.other.log.log_end_offset == 1)
    for thread in follower.threads:
        thread.release()
    await latter.produce(b"all is well")


@story
async def test_a_lagging_replica_leaves_the_isr_and_rejoins(cluster: Cluster) -> None:
    leader, _, follower = cluster.nodes
    await leader.produce(b"a")
    cluster.cut_off.add(2)
    answer = await leader.produce(b"b")
    assert answer.error_code == 0
    assert cluster.isr == (0, 1)
    cluster.cut_off.clear()
    cluster.commit()
    await cluster.until(lambda: cluster.isr == (0, 1, 2))
    assert follower.content() == leader.content()


@story
async def test_too_few_in_sync_replicas_refuse_acks_all(cluster: Cluster) -> None:
    leader = cluster.nodes[0]
    await leader.produce(b"a")
    cluster.cut_off |= {1, 2}
    waiting = leader.produce(b"b")
    await cluster.until(lambda: cluster.isr == (0,))
    assert (await leader.produce(b"c")).error_code == ErrorCode.NOT_ENOUGH_REPLICAS
    kept = await leader.produce(b"d", acks=1)
    assert kept.error_code == 0
    assert await visible(leader) == 1
    assert (await waiting).error_code == ErrorCode.REQUEST_TIMED_OUT


@story
async def test_an_old_leader_truncates_what_it_alone_had(
    cluster: Cluster,
) -> None:
    old, new, third = cluster.nodes
    await old.produce(b"a")
    await old.produce(b"b")
    cluster.cut_off.add(0)
    waiting = old.produce(b"lost")
    assert (await old.produce(b"alone", acks=1)).base_offset == 3
    cluster.elect(1, isr=(1, 2))
    answer = await new.produce(b"c")
    assert (answer.error_code, answer.base_offset) == (0, 2)
    cluster.cut_off.clear()
    cluster.commit()
    assert (await waiting).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    await cluster.until(lambda: cluster.isr == (0, 1, 2))
    assert old.content() == new.content() == third.content()
    assert old.end == 3
    assert [old.partition.log.epochs.at(offset) for offset in range(3)] == [0, 0, 1]


@story
async def test_a_truncation_that_fails_on_a_full_disk_is_tried_again(
    cluster: Cluster,
) -> None:
    """A failed truncation has lowered the synced offset; the fetcher must not wait for a sync."""
    old, new, third = cluster.nodes
    await old.produce(b"a")
    cluster.cut_off.add(0)
    waiting = old.produce(b"lost")
    cluster.elect(1, isr=(1, 2))
    assert (await new.produce(b"b")).error_code == 0
    await cluster.until(lambda: old.partition.log.synced.offset == 2)
    old.files.fail_next_write(errno.ENOSPC)
    cluster.cut_off.clear()
    cluster.commit()
    assert (await waiting).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    await cluster.until(lambda: old.partition.log.truncation.generation > 0)
    await cluster.until(lambda: cluster.isr == (0, 1, 2))
    assert old.content() == new.content() == third.content()


@story
async def test_a_broker_returns_as_a_follower_after_a_power_cut(cluster: Cluster) -> None:
    leader, follower, _ = cluster.nodes
    for number in range(3):
        await leader.produce(b"%d" % number)
    await leader.stop(power_cut=True)
    cluster.elect(1, isr=(1, 2))
    await follower.produce(b"next")
    cluster.start(leader)
    await cluster.until(lambda: cluster.isr == (0, 1, 2))
    assert leader.content() == follower.content()
    cluster.elect(0)
    assert (await leader.produce(b"back")).base_offset == 4


@story
async def test_a_fetch_to_a_broker_that_lost_power_is_abandoned(cluster: Cluster) -> None:
    """A power cut closes no connection, and `replica.socket.timeout.ms` is 30 seconds."""
    leader = cluster.nodes[0]
    await leader.produce(b"first")
    await leader.stop(power_cut=True)
    cluster.elect(1, isr=(1, 2))
    cluster.start(leader)
    await cluster.until(lambda: cluster.isr == (0, 1, 2))
    cluster.elect(0)
    async with asyncio.timeout(20):
        assert (await leader.produce(b"second")).base_offset == 1
    assert cluster.isr == (0, 1, 2)


@story
async def test_removing_a_partition_refuses_pending_produces(cluster: Cluster) -> None:
    leader = cluster.nodes[0]
    cluster.cut_off |= {1, 2}
    waiting = leader.produce(b"a")
    await cluster.until(lambda: leader.end == 1)
    await asyncio.sleep(0)
    leader.replicas.drop("t", 0)
    assert (await waiting).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER


def forget(node: ReplicatingNode) -> ReferenceType[PartitionReplica]:
    """Remove the partition from a node, as the deletion of its topic does."""
    replica = node.replicas.get("t", 0)
    assert replica is not None
    node.replicas.drop("t", 0)
    node.partition.replica = None  # In a broker, its own replicas do this.
    return ref(replica)


async def gone(cluster: Cluster, *forgotten: ReferenceType[PartitionReplica]) -> None:
    """Wait until all of these are garbage-collected."""

    def are_gone() -> bool:
        gc.collect()
        return all(each() is None for each in forgotten)

    await cluster.until(are_gone)


@story
async def test_a_removed_partition_is_garbage_collected(cluster: Cluster) -> None:
    await cluster.nodes[0].produce(b"a")
    await gone(cluster, *map(forget, cluster.nodes))


@story
async def test_a_removed_partition_is_collected_after_an_outage(
    cluster: Cluster,
) -> None:
    leader, cut_off, _ = cluster.nodes
    await leader.produce(b"a")
    cluster.cut_off.add(cut_off.id)
    assert (await leader.produce(b"b")).error_code == 0  # The in-sync set has shrunk.
    cluster.cut_off.clear()
    cluster.commit()
    await cluster.until(lambda: len(cluster.isr) == len(cluster.nodes))
    await gone(cluster, *map(forget, cluster.nodes))


@story
async def test_the_high_watermark_survives_a_restart(cluster: Cluster) -> None:
    leader = cluster.nodes[0]
    await leader.produce(b"a")
    await leader.stop()
    cluster.cut_off |= {1, 2}
    cluster.elect(0)
    cluster.start(leader)
    assert leader.partition.high_watermark == 1


@story
async def test_records_that_replace_lost_ones_are_not_committed(
    cluster: Cluster,
) -> None:
    leader, _, late = cluster.nodes
    cluster.cut_off.add(2)
    for number in range(3):
        await leader.produce(b"%d" % number)
    for thread in late.threads:
        thread.held = True
    cluster.cut_off.discard(2)
    cluster.commit()
    await cluster.until(lambda: late.partition.high_watermark == 3)
    late.broker.directory.write_checkpoints()
    await late.stop(power_cut=True)
    cluster.cut_off |= {0, 1}
    cluster.start(late)
    assert late.end == 0
    cluster.elect(2)  # An unclean election: the broker isn't in sync.
    waiting = late.produce(b"other")
    await cluster.until(lambda: late.partition.log.synced.offset == 1)
    assert late.partition.high_watermark == 0
    assert not waiting.done()


@story
async def test_a_follower_behind_the_log_start_restarts_there(
    cluster: Cluster,
) -> None:
    leader, _, late = cluster.nodes
    await leader.produce(b"a")
    cluster.cut_off.add(2)
    for number in range(5):
        await leader.produce(b"%d" % number)
    leader.partition.delete_before(4)
    cluster.cut_off.clear()
    cluster.commit()
    await cluster.until(lambda: cluster.isr == (0, 1, 2))
    assert late.partition.log.log_start_offset == 4
    assert late.end == leader.end == 6


@story
async def test_the_end_offset_waits_until_earlier_commits_are_known(cluster: Cluster) -> None:
    old, new, _ = cluster.nodes
    await old.produce(b"a")
    cluster.cut_off |= {0, 2}
    cluster.elect(1, isr=(1, 2))
    request = ListOffsetsRequest(
        replica_id=-1,
        topics=[
            ListOffsetsTopic(
                name="t", partitions=[ListOffsetsPartition(partition_index=0, timestamp=-1)]
            )
        ],
    )
    if new.partition.high_watermark < 1:
        response = await ask(new.broker, request, ListOffsetsResponse)
        assert response.topics[0].partitions[0].error_code == ErrorCode.OFFSET_NOT_AVAILABLE
    cluster.cut_off.clear()
    cluster.commit()
    await cluster.until(lambda: new.partition.high_watermark == 1)
    response = await ask(new.broker, request, ListOffsetsResponse)
    assert response.topics[0].partitions[0].offset == 1


@pytest.mark.parametrize("count", [1])
def test_a_single_replica_restarts_with_its_high_watermark(count: int) -> None:
    async def main() -> None:
        async with Cluster(count=count, min_insync=1) as cluster:
            (node,) = cluster.nodes
            assert node.partition.is_alone
            assert (await node.produce(b"a")).error_code == 0
            assert await visible(node) == 1
            await node.stop()
            cluster.elect(0)
            cluster.start(node)
            assert node.partition.high_watermark == 1
            assert (await node.produce(b"b")).base_offset == 1

    asyncio.run(main())


@story
async def test_a_fetch_with_an_old_epoch_learns_the_new_leader(cluster: Cluster) -> None:
    follower = cluster.nodes[1]
    answer = await follower.produce(b"a")
    assert answer.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    cluster.elect(2)
    leader = cluster.nodes[2]
    request = fetch_request(at(0, epoch=0))
    response = await ask(leader.broker, request, FetchResponse)
    found = response.responses[0].partitions[0]
    assert found.error_code == ErrorCode.FENCED_LEADER_EPOCH
    assert found.current_leader is not None
    assert (found.current_leader.leader_id, found.current_leader.leader_epoch) == (2, 1)


@story
async def test_reading_between_the_high_watermark_and_the_end_is_no_error(cluster: Cluster) -> None:
    leader = cluster.nodes[0]
    await leader.produce(b"a")
    cluster.cut_off |= {1, 2}
    assert (await leader.produce(b"b", acks=1)).base_offset == 1
    response = await ask(leader.broker, fetch_request(at(2)), FetchResponse)
    found = response.responses[0].partitions[0]
    assert (found.error_code, found.high_watermark, found.records) == (0, 1, b"")
    response = await ask(leader.broker, fetch_request(at(3)), FetchResponse)
    assert response.responses[0].partitions[0].error_code == ErrorCode.OFFSET_OUT_OF_RANGE


def deletion(offset: int, timeout_ms: int = 20_000) -> DeleteRecordsRequest:
    partition = DeleteRecordsPartition(partition_index=0, offset=offset)
    return DeleteRecordsRequest(
        topics=[DeleteRecordsTopic(name="t", partitions=[partition])], timeout_ms=timeout_ms
    )


@story
async def test_a_deletion_waits_for_all_replicas(cluster: Cluster) -> None:
    leader, *followers = cluster.nodes
    for number in range(4):
        await leader.produce(b"%d" % number)
    response = await ask(leader.broker, deletion(3), DeleteRecordsResponse)
    (found,) = response.topics[0].partitions
    assert (found.error_code, found.low_watermark) == (0, 3)
    assert [node.partition.log.log_start_offset for node in followers] == [3, 3]


@story
async def test_a_deletion_times_out_while_a_follower_lacks_it(
    cluster: Cluster,
) -> None:
    leader = cluster.nodes[0]
    for number in range(4):
        await leader.produce(b"%d" % number)
    cluster.cut_off.add(2)
    response = await ask(leader.broker, deletion(3, timeout_ms=50), DeleteRecordsResponse)
    (found,) = response.topics[0].partitions
    assert found.error_code == ErrorCode.REQUEST_TIMED_OUT
    cluster.cut_off.clear()
    response = await ask(leader.broker, deletion(3), DeleteRecordsResponse)
    assert response.topics[0].partitions[0].low_watermark == 3


@story
async def test_a_follower_adopts_a_log_start_within_a_batch(cluster: Cluster) -> None:
    leader, _, late = cluster.nodes
    await leader.produce(b"a")
    cluster.cut_off.add(2)
    await leader.produce(b"b", b"c", b"d", b"e")
    leader.partition.delete_before(3)
    cluster.cut_off.clear()
    cluster.commit()
    await cluster.until(lambda: cluster.isr == (0, 1, 2))
    assert late.partition.log.log_start_offset == 3
    assert (late.end, late.partition.log.read(3, max_bytes=1000)) == (
        5,
        leader.partition.log.read(3, max_bytes=1000),
    )


@pytest.mark.parametrize("start", [3, 4, 5])
def test_an_old_leader_gives_up_its_tail_over_which_the_new_log_starts(start: int) -> None:
    async def main() -> None:
        async with Cluster() as cluster:
            old, new, _ = cluster.nodes
            await old.produce(b"a")
            await old.produce(b"b")
            cluster.cut_off.add(0)
            await old.produce(b"alone", b"alone too", acks=1)
            assert old.end == 4
            cluster.elect(1, isr=(1, 2))
            # From 2 on the two have other records, and the new log starts in the midst of them.
            await new.produce(b"c", b"d", b"e", b"f")
            new.partition.delete_before(start)
            cluster.cut_off.clear()
            cluster.commit()
            await cluster.until(lambda: cluster.isr == (0, 1, 2))
            logs = [each.partition.log for each in (old, new)]
            assert {each.log_start_offset for each in logs} == {start}
            mine, its = (each.read(start, max_bytes=1_000) for each in logs)
            assert mine == its

    asyncio.run(main())


@story
async def test_a_follower_refetches_a_damaged_batch(cluster: Cluster) -> None:
    leader, _, follower = cluster.nodes
    for number in range(3):
        await leader.produce(b"%d" % number)
    follower.broker.directory.write_checkpoints()
    await follower.stop(power_cut=True)
    path = f"data/{partition_folder(TOPIC_ID, 0)}/{'0' * 20}.log"
    content = bytearray(read_file(follower.files, path))
    content[100] ^= 1
    overwrite(follower.files, path, bytes(content))
    cluster.isr = (0, 1)
    cluster.start(follower)
    assert follower.partition.log.damage
    replica = follower.partition.replica
    assert replica is not None
    replica.refetch_damage()
    await cluster.until(lambda: cluster.isr == (0, 1, 2))
    assert not follower.partition.log.damage
    assert follower.content() == leader.content()


@story
async def test_a_follower_cuts_nothing_for_a_leader_whose_end_is_damaged(cluster: Cluster) -> None:
    leader, _, follower = cluster.nodes
    for number in range(3):
        await leader.produce(b"%d" % number)
    whole = follower.content()
    leader.broker.directory.write_checkpoints()
    await leader.stop(power_cut=True)
    path = f"data/{partition_folder(TOPIC_ID, 0)}/{'0' * 20}.log"
    content = bytearray(read_file(leader.files, path))
    content[-1] ^= 1
    overwrite(leader.files, path, bytes(content))
    cluster.isr = (0,)  # The only complete replica leads, damaged or not.
    cluster.start(leader)
    cluster.elect(0)
    assert leader.end == 2
    replica = follower.partition.replica
    assert replica is not None
    machine = replica.machine
    asked = machine.follower.next_fetch_id[1] if machine.follower else 0
    await cluster.until(
        lambda: machine.follower is not None and machine.follower.next_fetch_id[1] > asked + 2
    )
    assert follower.content() == whole


@story
async def test_a_repaired_log_refetches_from_its_first_lost_offset(cluster: Cluster) -> None:
    leader, _, follower = cluster.nodes
    for number in range(6):
        await leader.produce(b"%d" % number)
    await follower.stop(power_cut=True)
    LostOffsets(follower.files, f"data/{partition_folder(TOPIC_ID, 0)}").add(2, 4)
    cluster.isr = (0, 1)
    cluster.start(follower)
    replica = follower.partition.replica
    assert replica is not None
    assert follower.partition.log.lacks_records
    replica.refetch_damage()
    assert (follower.partition.log.log_start_offset, follower.end) == (0, 2)
    replica.refetch_damage()  # The second call changes nothing.
    await cluster.until(lambda: cluster.isr == (0, 1, 2))
    assert not follower.partition.log.lacks_records
    assert follower.content() == leader.content()


@story
async def test_a_reader_beyond_a_new_leaders_watermark_keeps_its_position(
    cluster: Cluster,
) -> None:
    old, new, _ = cluster.nodes
    for number in range(3):
        await old.produce(b"%d" % number)
    await cluster.until(lambda: new.end == 3)
    cluster.cut_off |= {0, 2}
    replica = new.partition.replica
    assert replica is not None
    replica.facts.high_watermark = 1  # Its next fetch would raise it to 3.
    cluster.elect(1, isr=(1, 2))
    wanted = FetchPartition(
        partition=0, fetch_offset=3, last_fetched_epoch=0, partition_max_bytes=1000
    )
    response = await ask(new.broker, fetch_request(wanted), FetchResponse)
    found = response.responses[0].partitions[0]
    assert (found.error_code, found.diverging_epoch, found.records) == (0, None, b"")
    assert found.high_watermark == 1
    epoch_request = OffsetForLeaderEpochRequest(
        topics=[
            OffsetForLeaderTopic(
                topic="t", partitions=[OffsetForLeaderPartition(partition=0, leader_epoch=0)]
            )
        ]
    )
    ends = await ask(new.broker, epoch_request, OffsetForLeaderEpochResponse)
    assert ends.topics[0].partitions[0].end_offset == 3


def test_a_former_leader_writes_no_time_mark() -> None:
    async def main() -> None:
        async with Cluster(**{"mark.quiet.ms": "1"}) as cluster:
            old = cluster.nodes[0]
            await old.produce(b"a")
            partition, now_ms = old.partition, old.broker.clock.now_ms()
            assert partition.quiet_ms(now_ms) is not None
            cluster.elect(1)
            partition.mark_time(now_ms=now_ms + 60_000)
            assert old.end == 1

    asyncio.run(main())


async def read_copy(
    node: ReplicatingNode, offset: int, *, epoch: int = -1, last_epoch: int = -1, rack: str = "b"
) -> PartitionData:
    """Return what a broker answers a reader with a rack."""
    wanted = FetchPartition(
        partition=0,
        fetch_offset=offset,
        current_leader_epoch=epoch,
        last_fetched_epoch=last_epoch,
        partition_max_bytes=1000,
    )
    request = fetch_request(wanted)
    request.rack_id = rack
    return (await ask(node.broker, request, FetchResponse)).responses[0].partitions[0]


@story
async def test_a_follower_serves_readers_with_a_rack_up_to_its_watermark(
    cluster: Cluster,
) -> None:
    leader, follower, other = cluster.nodes
    await leader.produce(b"a")
    await cluster.until(lambda: follower.partition.high_watermark == 1)
    cluster.cut_off.add(other.id)
    waiting = leader.produce(b"b")
    await cluster.until(lambda: follower.end == 2)
    found = await read_copy(follower, 0, epoch=0)
    assert (found.error_code, found.high_watermark) == (0, 1)
    assert found.records == follower.partition.log.read(0, max_bytes=1000)[: len(found.records)]
    at_end = await read_copy(follower, 2, last_epoch=0)
    assert (at_end.error_code, at_end.records) == (0, b""), "it may be committed at any moment"
    for offset, last_epoch in ((3, -1), (3, 0), (1, 7)):
        beyond = await read_copy(follower, offset, last_epoch=last_epoch)
        assert beyond.error_code == ErrorCode.OFFSET_NOT_AVAILABLE, "the leader may know better"
        assert beyond.diverging_epoch is None
    assert (await read_copy(follower, 0, epoch=9)).error_code == ErrorCode.UNKNOWN_LEADER_EPOCH
    nowhere = await read_copy(follower, 0, rack="")
    assert nowhere.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert (await waiting).error_code == 0


@story
async def test_a_follower_serves_readers_only_while_it_hears_its_leader(cluster: Cluster) -> None:
    leader, follower, _ = cluster.nodes
    await leader.produce(b"a")
    await cluster.until(lambda: follower.partition.high_watermark == 1)
    follower.partition.delete_before(1)
    assert (await read_copy(follower, 0)).error_code == ErrorCode.OFFSET_OUT_OF_RANGE
    cluster.cut_off.add(follower.id)
    await cluster.until(lambda: not follower.partition.is_copy)
    assert (await read_copy(follower, 1)).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    cluster.cut_off.clear()
    cluster.commit()
    await cluster.until(lambda: follower.partition.is_copy)
    cluster.elect(2)
    assert not follower.partition.is_copy, "it has not heard from the new leader yet"
