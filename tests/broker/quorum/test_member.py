from __future__ import annotations

import asyncio
import errno
from collections.abc import Awaitable, Callable
from random import Random

import pytest

from simulation.loop import SimulatedLoop, live
from simulation.quorum import OBSERVER, Cluster
from streamlog.broker.quorum.controller.decision import ControllerContext
from streamlog.broker.quorum.metadata.cluster_metadata import (
    ClusterMetadata,
    ConfigChanged,
    MetadataChange,
)
from streamlog.broker.quorum.quorum_member import QuorumMember
from streamlog.broker.quorum.raft.log_replica import REOPEN_MS
from streamlog.broker.quorum.raft.quorum_files import FOLDER
from streamlog.broker.storage.disk.files import read_file, write_whole
from streamlog.broker.storage.disk.memory_files import MemoryFiles
from streamlog.clock import ManualClock
from streamlog.errors import CorruptData, LogDirectoryFailed, LogDirectoryFull, LogError
from streamlog.protocol.error_codes import ErrorCode
from streamlog.protocol.messages.quorum_messages import VoteRequest
from streamlog.protocol.messages.topics_and_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)

YEAR_MS = 365 * 24 * 3_600_000


def setting(value: str) -> IncrementalAlterConfigsRequest:
    config = AlterableConfig(name="log.segment.bytes", config_operation=0, value=value)
    resource = AlterConfigsResource(resource_type=4, resource_name="", configs=[config])
    return IncrementalAlterConfigsRequest(resources=[resource])


def single_voter(
    files: MemoryFiles, clock: ManualClock | None = None, *, snapshot_interval_ms: int = 0
) -> QuorumMember:
    realm = ControllerContext(
        metadata=ClusterMetadata(), cluster_id="c", node_id=1, chance=Random(1)
    )
    return QuorumMember.open(
        files,
        "data",
        realm,
        voters=[1],
        clock=clock or ManualClock(),
        snapshot_interval_ms=snapshot_interval_ms,
    )


def value_of(member: QuorumMember) -> str | None:
    return member.metadata.config(4, "").get("log.segment.bytes")


# ---- a single voter ----


def test_a_single_voter_answers_at_once_and_keeps_its_decisions() -> None:
    files = MemoryFiles()
    member = single_voter(files)
    assert (member.is_active, member.controller_id) == (True, 1)
    answer = member.submit(setting("1000000"), 1)
    assert isinstance(answer, IncrementalAlterConfigsResponse)
    assert [each.error_code for each in answer.responses] == [0]
    files.crash()
    again = single_voter(files)
    assert value_of(again) == "1000000"
    assert again.epoch == member.epoch + 1


def test_watchers_are_called_before_the_response_is_sent() -> None:
    member = single_voter(MemoryFiles())
    heard: list[MetadataChange] = []
    member.watch(heard.extend)
    member.submit(setting("1000000"), 1)
    assert heard == [ConfigChanged(4, "", "log.segment.bytes", "1000000")]


def test_a_single_voter_restarts_from_its_snapshot() -> None:
    files = MemoryFiles()
    member = single_voter(files)
    member.submit(setting("1000000"), 1)
    member.write_snapshot()
    member.submit(setting("2000000"), 1)
    digest = member.metadata.digest()
    files.crash()
    again = single_voter(files)
    assert again.metadata.digest() == digest
    assert f"{member.applied_offset - 1:020d}.log" in files.list(f"data/{FOLDER}")


def test_a_failed_sync_stops_a_single_voter() -> None:
    files = MemoryFiles()
    member = single_voter(files)
    files.fail_next_sync(errno.EIO)
    with pytest.raises(LogDirectoryFailed):
        member.submit(setting("1000000"), 1)
    with pytest.raises(LogDirectoryFailed):
        member.submit(setting("1000000"), 1)


@pytest.mark.parametrize("taken_bytes", [0, 30])
def test_a_full_disk_fails_only_the_current_request(taken_bytes: int) -> None:
    files = MemoryFiles()
    member = single_voter(files)
    member.submit(setting("1000000"), 1)
    files.fail_next_write(after_bytes=taken_bytes)
    with pytest.raises(LogDirectoryFull, match="free some space"):
        member.submit(setting("2000000"), 1)
    assert value_of(member) == "1000000"
    assert not member.is_active
    member.submit(setting("3000000"), 1)
    assert value_of(member) == "3000000"
    member.close()
    files.crash()
    assert value_of(single_voter(files)) == "3000000"


def test_a_single_voter_resumes_when_its_disk_has_room_again() -> None:
    files, clock = MemoryFiles(), ManualClock()
    member = single_voter(files, clock)
    files.fail_next_write()
    with pytest.raises(LogDirectoryFull):
        member.submit(setting("1000000"), 1)
    files.fail_next_write()
    clock.advance(REOPEN_MS)
    member.tick()
    assert not member.is_active, "the disk is still full"
    assert member.next_deadline_ms() == clock.now_ms() + REOPEN_MS
    clock.advance(REOPEN_MS)
    member.tick()
    assert member.is_active


def test_a_snapshot_is_written_at_intervals_if_there_are_new_records() -> None:
    files, clock = MemoryFiles(), ManualClock(wall_ms=1_700_000_000_000)
    member = single_voter(files, clock, snapshot_interval_ms=60_000)
    member.submit(setting("1000000"), 1)

    def snapshots() -> list[str]:
        return [name for name in files.list(f"data/{FOLDER}") if name.endswith(".checkpoint")]

    clock.advance(59_999)
    member.tick()
    assert snapshots() == []
    clock.advance(1)
    member.tick()
    assert len(snapshots()) == 1
    clock.advance(600_000)
    member.tick()
    assert len(snapshots()) == 1
    member.close()
    clock.advance(600_000)
    again = single_voter(files, clock, snapshot_interval_ms=60_000)
    again.tick()
    assert len(snapshots()) == 1, "the new record was applied only now"
    clock.advance(60_000)
    again.tick()
    assert len(snapshots()) == 2


class JumpingClock(ManualClock):
    """A clock whose wall time jumps by `off_ms`."""

    off_ms = 0

    def wall_ms(self) -> int:
        return super().wall_ms() + self.off_ms


@pytest.mark.parametrize("written_ms", [-YEAR_MS, 0, YEAR_MS])
@pytest.mark.parametrize("looked_ms", [-YEAR_MS, 0, YEAR_MS])
def test_the_snapshot_interval_ignores_jumps_of_the_wall_clock(
    written_ms: int, looked_ms: int
) -> None:
    files, clock = MemoryFiles(), JumpingClock(wall_ms=1_700_000_000_000)
    member = single_voter(files, clock, snapshot_interval_ms=60_000)

    def snapshots() -> set[str]:
        return {name for name in files.list(f"data/{FOLDER}") if "checkpoint" in name}

    for already in range(3):
        before = snapshots()
        clock.off_ms = written_ms
        member.submit(setting(str(1_000_000 + already)), 1)
        clock.off_ms = looked_ms
        clock.advance(59_999)
        member.tick()
        assert snapshots() == before
        due_ms = member.next_deadline_ms()
        assert due_ms is not None
        assert due_ms <= clock.now_ms() + 1
        clock.advance(1)
        member.tick()
        assert max(snapshots()) > max(before, default="")


def test_a_snapshot_is_retried_after_a_full_disk() -> None:
    files, clock = MemoryFiles(), ManualClock()
    member = single_voter(files, clock)
    member.submit(setting("1000000"), 1)
    files.fail_next_write()
    member.write_snapshot()
    assert member.is_active
    assert [name for name in files.list(f"data/{FOLDER}") if "checkpoint" in name] == []
    member.write_snapshot()
    assert len([name for name in files.list(f"data/{FOLDER}") if "checkpoint" in name]) == 1


def test_a_single_voter_with_a_damaged_log_does_not_start() -> None:
    files = MemoryFiles()
    single_voter(files).close()
    path = f"data/{FOLDER}/{0:020d}.log"
    file = files.open(path, writable=True)
    write_whole(file, bytes([read_file(files, path)[80] ^ 1]), 80)
    with pytest.raises(CorruptData, match="the metadata log in data/__cluster_metadata-0"):
        single_voter(files)


def test_a_request_of_another_cluster_is_refused() -> None:
    with pytest.raises(LogError, match="is meant for cluster x, this is c"):
        single_voter(MemoryFiles()).handle(VoteRequest(cluster_id="x"))


# ---- three voters ----

Story = Callable[[Cluster], Awaitable[None]]


def run_cluster(story: Story, **options: object) -> None:
    async def life(loop: SimulatedLoop) -> None:
        cluster = Cluster(loop, **options)  # type: ignore[arg-type]
        cluster.start()
        await story(cluster)
        assert cluster.failures == []
        for node in cluster.nodes.values():
            await node.stop()

    assert live(life, 1).errors == ()


def test_three_voters_elect_a_leader_and_replicate_its_decisions() -> None:
    async def story(cluster: Cluster) -> None:
        leader = await cluster.elected()
        assert await cluster.put("log.segment.bytes", "1000000")
        await cluster.agreed(leader.applied_offset)
        assert {value_of(each) for each in cluster.members} == {"1000000"}
        assert {each.controller_id for each in cluster.members} == {leader.controller_id}
        assert len({each.metadata.digest() for each in cluster.members}) == 1

    run_cluster(story, observers=(OBSERVER,))


@pytest.mark.parametrize("power", [False, True])
def test_another_voter_leads_after_the_leader_is_killed(power: bool) -> None:
    async def story(cluster: Cluster) -> None:
        leader = await cluster.elected()
        assert await cluster.put("log.segment.bytes", "1000000")
        gone = cluster.nodes[leader.controller_id or 0]
        await gone.kill(power=power)
        assert await cluster.put("log.segment.bytes", "2000000")
        second = await cluster.elected()
        assert second.epoch > leader.epoch
        gone.start()
        await cluster.agreed(second.applied_offset)
        assert {value_of(each) for each in cluster.members} == {"2000000"}

    run_cluster(story)


def test_a_clean_stop_of_the_leader_elects_another_at_once() -> None:
    async def story(cluster: Cluster) -> None:
        leader = await cluster.elected()
        await cluster.agreed(leader.applied_offset)
        began_s = cluster.loop.time()
        await cluster.nodes[leader.controller_id or 0].stop()
        second = await cluster.elected()
        assert second.epoch > leader.epoch
        assert cluster.loop.time() - began_s < 0.2, "no timeout has passed"

    run_cluster(story)


def test_only_the_active_controller_decides() -> None:
    async def story(cluster: Cluster) -> None:
        leader = await cluster.elected()
        await cluster.agreed(leader.applied_offset)
        other = next(each for each in cluster.members if not each.is_active)
        with pytest.raises(LogError, match="is not the active controller: node") as refused:
            other.submit(setting("1"), 1)
        assert refused.value.code == ErrorCode.NOT_CONTROLLER

    run_cluster(story)


def test_a_leader_without_a_majority_commits_nothing() -> None:
    async def story(cluster: Cluster) -> None:
        leader = await cluster.elected()
        await cluster.agreed(leader.applied_offset)
        own = leader.controller_id or 0
        cluster.cut |= {(own, each) for each in cluster.voters} | {
            (each, own) for each in cluster.voters
        }
        answer = leader.submit(setting("1000000"), 1)
        assert isinstance(answer, asyncio.Future)
        with pytest.raises(LogError) as refused:
            await answer
        assert refused.value.code == ErrorCode.NOT_CONTROLLER
        assert value_of(leader) is None
        cluster.cut.clear()
        assert await cluster.put("log.segment.bytes", "2000000")
        await cluster.agreed((await cluster.elected()).applied_offset)
        assert {value_of(each) for each in cluster.members} == {"2000000"}

    run_cluster(story)


def test_a_voter_that_lags_behind_receives_a_snapshot() -> None:
    async def story(cluster: Cluster) -> None:
        leader = await cluster.elected()
        await cluster.agreed(leader.applied_offset)
        away = next(each for each in cluster.voters if each != leader.controller_id)
        behind = cluster.nodes[away].member
        assert behind is not None
        heard: list[MetadataChange] = []
        behind.watch(heard.extend)
        image = behind.metadata
        cluster.cut |= {(away, each) for each in cluster.voters} | {
            (each, away) for each in cluster.voters
        }
        for number in range(30):
            assert await cluster.put("log.segment.bytes", str(1_000_000 + number))
        leader.write_snapshot()
        await asyncio.sleep(0.1)
        cluster.cut.clear()
        await cluster.agreed(leader.applied_offset)
        assert behind.metadata is image, "holders of the image see the changes"
        assert value_of(behind) == "1000029"
        assert ConfigChanged(4, "", "log.segment.bytes", "1000029") in heard
        assert behind.metadata.digest() == leader.metadata.digest()

    run_cluster(story)


def test_a_voter_with_a_new_disk_rejoins() -> None:
    async def story(cluster: Cluster) -> None:
        leader = await cluster.elected()
        assert await cluster.put("log.segment.bytes", "1000000")
        node = cluster.nodes[next(e for e in cluster.voters if e != leader.controller_id)]
        await node.kill(power=True)
        node.files = MemoryFiles()
        member = node.start(rejoins=True)
        assert member.is_rejoining
        await cluster.agreed(leader.applied_offset)
        assert not member.is_rejoining
        assert value_of(member) == "1000000"

    run_cluster(story)


def test_a_voter_with_a_damaged_log_rejoins() -> None:
    async def story(cluster: Cluster) -> None:
        leader = await cluster.elected()
        assert await cluster.put("log.segment.bytes", "1000000")
        await cluster.agreed(leader.applied_offset)
        node = cluster.nodes[next(e for e in cluster.voters if e != leader.controller_id)]
        await node.kill(power=False)
        path = f"data/{FOLDER}/{0:020d}.log"
        file = node.files.open(path, writable=True)
        write_whole(file, bytes([read_file(node.files, path)[80] ^ 1]), 80)
        member = node.start()
        assert member.is_rejoining
        await cluster.agreed(leader.applied_offset)
        assert value_of(member) == "1000000"

    run_cluster(story)


def test_the_quorum_recovers_from_full_disks() -> None:
    async def story(cluster: Cluster) -> None:
        leader = await cluster.elected()
        await cluster.agreed(leader.applied_offset)
        for node in cluster.nodes.values():
            node.files.fail_next_write()
        await cluster.put("log.segment.bytes", "1000000")
        while any(each.controller_id is None for each in cluster.members):  # noqa: ASYNC110
            await asyncio.sleep(0.1)
        assert await cluster.put("log.segment.bytes", "2000000")
        await cluster.agreed((await cluster.elected()).applied_offset)
        assert {value_of(each) for each in cluster.members} == {"2000000"}

    run_cluster(story)


def test_a_failed_sync_stops_only_its_own_node() -> None:
    async def story(cluster: Cluster) -> None:
        leader = await cluster.elected()
        await cluster.agreed(leader.applied_offset)
        node = cluster.nodes[leader.controller_id or 0]
        node.files.fail_next_sync(errno.EIO)
        await cluster.put("log.segment.bytes", "1000000")
        while node.member is not None:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        assert [each.split(":")[0] for each in cluster.failures] == [f"node {node.node_id}"]
        cluster.failures.clear()
        assert await cluster.put("log.segment.bytes", "2000000")

    run_cluster(story)
