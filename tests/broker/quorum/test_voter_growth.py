"""One voter becomes three: nothing is lost at any step, even if a node starts too early."""

from __future__ import annotations

import asyncio
import copy
import errno
from collections.abc import Awaitable, Callable, Mapping
from random import Random

import pytest

from simulation.loop import SimulatedLoop, live
from simulation.quorum import Cluster
from streamlog.broker.quorum.controller.decision import ControllerContext
from streamlog.broker.quorum.metadata.cluster_metadata import ClusterMetadata
from streamlog.broker.quorum.metadata.metadata_records import encode_record
from streamlog.broker.quorum.quorum_member import QuorumMember
from streamlog.broker.quorum.raft.quorum_files import FOLDER, QuorumFiles, read_state, write_state
from streamlog.broker.quorum.voter_growth import PARTIAL_SUFFIX, VoterGrowth
from streamlog.broker.storage.catalog import LOCK, Catalog
from streamlog.broker.storage.data_directory import format_directory
from streamlog.broker.storage.disk.files import (
    Files,
    make_durable_directory,
    read_file,
    replace_file,
)
from streamlog.broker.storage.disk.memory_files import MemoryFiles
from streamlog.clock import ManualClock
from streamlog.errors import (
    ConfigError,
    LogDirectoryFailed,
    LogDirectoryLocked,
    LogDirectoryLost,
    StreamlogError,
    UsageError,
)
from streamlog.protocol.messages.metadata_log import RegisterBrokerRecord
from tests.broker.quorum.test_member import setting, value_of
from tests.broker.storage.log.test_swap import Killed, MortalFiles

HOMES = {1: "data", 2: "broker-2", 3: "broker-3"}
FIVE = {number: f"broker-{number}" for number in (1, 2, 3, 4, 5)}
LONG_S = 60.0
"""Longer than any election takes, in seconds."""


def single_voter(files: MemoryFiles) -> QuorumMember:
    realm = ControllerContext(
        metadata=ClusterMetadata(), cluster_id="cluster", node_id=1, chance=Random(1)
    )
    return QuorumMember.open(files, "data", realm, voters=[1], clock=ManualClock())


def single_voter_disk(value: str = "1000000", *, has_snapshot: bool = True) -> MemoryFiles:
    """Return the disk of a stopped single voter."""
    files = MemoryFiles()
    format_directory("data", node_id=1, cluster_id="cluster", files=files)
    member = single_voter(files)
    member.submit(setting("900000"), 1)
    if has_snapshot:
        member.write_snapshot()
    member.submit(setting(value), 1)
    member.close()
    files.sync_directory("")
    return files


def open_growth(files: Files, homes: Mapping[int, str] = HOMES) -> VoterGrowth:
    return VoterGrowth.open("data", homes, draw=Random(7).randrange, files=files)


def grow(files: Files, homes: Mapping[int, str] = HOMES) -> None:
    with open_growth(files, homes) as growth:
        if not growth.is_done:
            growth.make_newcomers()
            growth.commit()
        assert growth.is_done


def copy_to_machine(files: MemoryFiles, home: str) -> MemoryFiles:
    """Return the disk of a new machine with a copy of the directory `home`."""
    machine = MemoryFiles()
    for folder in ("", f"/{FOLDER}"):
        make_durable_directory(machine, f"data{folder}")
        for name in files.list(f"{home}{folder}"):
            if name != FOLDER:
                content = read_file(files, f"{home}{folder}/{name}")
                replace_file(machine, f"data{folder}/{name}", content)
    return machine


def rejoining_nodes(files: MemoryFiles, homes: Mapping[int, str] = HOMES) -> dict[int, bool]:
    """Return, for each existing directory but the first, whether its node has yet to rejoin."""
    found = {}
    for number, home in homes.items():
        if number != 1 and home in files.list(""):
            state = read_state(files, f"{home}/{FOLDER}")
            identity = Catalog(files, home).identity()
            assert state is not None
            assert identity is not None
            assert (identity.node_id, identity.cluster_id) == (number, "cluster")
            assert state.voters == tuple(homes)
            found[number] = bool(state.rejoin_id)
    return found


def check_copies(files: MemoryFiles) -> None:
    """Check that all three have one snapshot and identical entries after it."""
    first, *others = (QuorumFiles(files, HOMES[number]) for number in (1, 2, 3))
    assert first.log.end_offset > first.snapshot.end_offset
    entries = first.log.read(first.log.start_offset, max_bytes=1 << 30)
    for each in others:
        assert each.damage is None
        assert (each.snapshot, each.values) == (first.snapshot, first.values)
        assert each.log.read(each.log.start_offset, max_bytes=1 << 30) == entries
        each.close()
    first.close()


def run_cluster(story: Callable[[Cluster], Awaitable[None]]) -> None:
    """Run a story with three machines that are off; the story fills their disks."""

    async def life(loop: SimulatedLoop) -> None:
        cluster = Cluster(loop)
        await story(cluster)
        assert cluster.failures == []
        for node in cluster.nodes.values():
            await node.stop()

    assert live(life, 1).errors == ()


def install_disks(cluster: Cluster, files: MemoryFiles) -> None:
    cluster.nodes[1].files = files
    for number in (2, 3):
        cluster.nodes[number].files = copy_to_machine(files, HOMES[number])


# ---- the grown quorum ----


def test_three_voters_continue_the_log_and_survive_the_loss_of_one() -> None:
    async def story(cluster: Cluster) -> None:
        files = single_voter_disk()
        grow(files)
        install_disks(cluster, files)
        cluster.start()
        leader = await cluster.elected()
        await cluster.agreed(leader.applied_offset)
        assert {value_of(each) for each in cluster.members} == {"1000000"}
        assert await cluster.put("log.segment.bytes", "2000000")
        await cluster.agreed((await cluster.elected()).applied_offset)
        await cluster.nodes[1].kill(power=True)
        assert await cluster.put("log.segment.bytes", "3000000")
        cluster.nodes[1].start()
        await cluster.agreed((await cluster.elected()).applied_offset)
        assert {value_of(each) for each in cluster.members} == {"3000000"}

    run_cluster(story)


def test_new_voters_decide_nothing_without_the_original_one() -> None:
    async def story(cluster: Cluster) -> None:
        files = single_voter_disk()
        grow(files)
        install_disks(cluster, files)
        newcomers = [cluster.nodes[number].start() for number in (2, 3)]
        await asyncio.sleep(LONG_S)
        assert [each.is_active for each in newcomers] == [False, False]
        assert [each.controller_id for each in newcomers] == [None, None]
        cluster.nodes[1].start()
        await cluster.agreed((await cluster.elected()).applied_offset)
        assert {value_of(each) for each in cluster.members} == {"1000000"}

    run_cluster(story)


def test_a_voter_started_too_early_loses_nothing() -> None:
    """The original voter continues alone; the new ones fetch from it and decide nothing."""

    async def story(cluster: Cluster) -> None:
        files = single_voter_disk()
        with open_growth(files) as growth:
            growth.make_newcomers()
        install_disks(cluster, files)
        newcomers = [cluster.nodes[number].start() for number in (2, 3)]
        cluster.voters = (1,)
        first = cluster.nodes[1].start()
        assert await cluster.put("log.segment.bytes", "2000000")
        await asyncio.sleep(LONG_S)
        assert newcomers[1].is_rejoining
        assert newcomers[1].applied_offset == first.applied_offset, "it has fetched the whole log"
        await cluster.nodes[1].kill(power=False)
        await asyncio.sleep(LONG_S)
        assert [each.is_active for each in newcomers] == [False, False]
        again = cluster.nodes[1].start()
        assert again.is_active
        assert await cluster.put("log.segment.bytes", "3000000")
        await cluster.nodes[1].stop()
        grow(files)
        cluster.voters = (1, 2, 3)
        cluster.nodes[1].start()
        await cluster.agreed((await cluster.elected()).applied_offset)
        assert {value_of(each) for each in cluster.members} == {"3000000"}

    run_cluster(story)


def test_a_broker_that_does_not_vote_follows_the_growth() -> None:
    async def life(loop: SimulatedLoop) -> None:
        cluster = Cluster(loop, observers=(4,))
        files = single_voter_disk()
        cluster.voters = (1,)
        cluster.nodes[1].files = files
        for number in (1, 4):
            cluster.nodes[number].start()
        assert await cluster.put("log.segment.bytes", "2000000")
        await asyncio.sleep(1)
        for number in (4, 1):
            await cluster.nodes[number].stop()
        grow(files)
        cluster.voters = (1, 2, 3)
        install_disks(cluster, files)
        cluster.start()
        assert await cluster.put("log.segment.bytes", "3000000")
        await cluster.agreed((await cluster.elected()).applied_offset)
        assert {value_of(each) for each in cluster.members} == {"3000000"}
        assert cluster.failures == []
        for node in cluster.nodes.values():
            await node.stop()

    assert live(life, 1).errors == ()


def test_growth_to_five_lets_two_new_voters_vote_at_once() -> None:
    files = single_voter_disk()
    grow(files, FIVE)
    assert rejoining_nodes(files, FIVE) == {2: False, 3: False, 4: True, 5: True}
    with open_growth(files, FIVE) as growth:
        assert growth.first == (1, 2, 3)


# ---- interruptions ----


@pytest.mark.parametrize("has_snapshot", [True, False], ids=["snapshot", "log alone"])
@pytest.mark.parametrize("keep_bytes", [None, 0, 50], ids=["kill", "power cut", "torn"])
def test_an_interruption_at_any_step_leaves_one_or_three_voters(
    keep_bytes: int | None, has_snapshot: bool
) -> None:
    done_at: set[bool] = set()
    for left in range(1000):
        files = single_voter_disk(has_snapshot=has_snapshot)
        try:
            grow(MortalFiles(files, left))
        except Killed:
            files.crash(keep_bytes=keep_bytes)
        else:
            break
        state = read_state(files, f"data/{FOLDER}")
        assert state is not None
        is_done = state.voters == (1, 2, 3)
        done_at.add(is_done)
        made = rejoining_nodes(files)
        assert [is_out for is_out in made.values() if not is_out] in ([], [False])
        if is_done:
            assert made == {2: False, 3: True}
        else:
            assert value_of(single_voter(copy.deepcopy(files))) == "1000000", "it starts as before"
        grow(files)
        files.crash()
        assert rejoining_nodes(files) == {2: False, 3: True}
        check_copies(files)
        with open_growth(files) as growth:
            assert growth.is_done
    assert left > 30
    assert done_at == ({False, True} if keep_bytes is None else {False}), "its last step is a sync"


def test_directories_from_an_earlier_attempt_are_kept() -> None:
    files = single_voter_disk()
    with open_growth(files) as growth:
        growth.make_newcomers()
    before = [Catalog(files, HOMES[number]).identity() for number in (2, 3)]
    grow(files)
    assert [Catalog(files, HOMES[number]).identity() for number in (2, 3)] == before
    assert not any(name.endswith(PARTIAL_SUFFIX) for name in files.list(""))


def test_a_failed_sync_is_raised_and_leaves_the_single_voter_intact() -> None:
    files = single_voter_disk()
    with open_growth(files) as growth:
        files.fail_next_sync(errno.EIO)
        with pytest.raises(LogDirectoryFailed):
            growth.make_newcomers()
    assert value_of(single_voter(files)) == "1000000"


# ---- refusals ----


@pytest.mark.parametrize(
    ("homes", "message"),
    [
        ({2: "b", 3: "c", 4: "d"}, "directory of node 1, .* to be one of the voters"),
        ({1: "a", 2: "b"}, "number of voters is 2: use three or five"),
        ({1: "a", 2: "b", 3: "c", 4: "d"}, "number of voters is 4: "),
        ({1: "a"}, "number of voters is 1: "),
    ],
    ids=range(4),
)
def test_invalid_voter_sets_are_refused(homes: dict[int, str], message: str) -> None:
    files = single_voter_disk()
    with pytest.raises(UsageError, match=message):
        open_growth(files, homes)
    assert value_of(single_voter(files)) == "1000000"


def test_only_a_single_voter_can_grow() -> None:
    files = single_voter_disk()
    grow(files)
    with pytest.raises(UsageError, match="is that of nodes 1, 2, 3: only a quorum of one voter"):
        open_growth(files, FIVE)
    with pytest.raises(ConfigError, match="voters do not change"):
        single_voter(files)


def test_a_running_voter_cannot_grow() -> None:
    files = single_voter_disk()
    lock = files.lock(f"data/{LOCK}")
    assert lock is not None
    with pytest.raises(
        LogDirectoryLocked, match=r"data is in use by another process, .*: stop it first"
    ):
        open_growth(files)
    lock.close()
    grow(files)


def test_a_voter_that_never_started_cannot_grow() -> None:
    files = MemoryFiles()
    with pytest.raises(LogDirectoryLost, match="data is not the data directory"):
        open_growth(files)
    format_directory("data", node_id=1, cluster_id="cluster", files=files)
    with pytest.raises(UsageError, match="start its broker once, and stop it"):
        open_growth(files)


@pytest.mark.parametrize("what", ["file", "empty", "other cluster", "other voters"])
def test_an_existing_directory_is_not_overwritten(what: str) -> None:
    files = single_voter_disk()
    home = HOMES[3]
    if what == "file":
        replace_file(files, home, b"")
    elif what == "empty":
        files.make_directory(home)
    elif what == "other cluster":
        format_directory(home, node_id=3, cluster_id="other", files=files)
    else:
        with open_growth(files) as growth:
            growth.make_newcomers()
        state = read_state(files, f"{home}/{FOLDER}")
        assert state is not None
        write_state(files, f"{home}/{FOLDER}", type(state)(voters=(1, 3, 4), rejoin_id=5))
    with pytest.raises(UsageError, match="broker-3 exists already"):
        open_growth(files)
    assert value_of(single_voter(files)) == "1000000"


def test_a_broker_of_the_cluster_cannot_become_a_voter() -> None:
    files = single_voter_disk()
    member = single_voter(files)
    member.write([encode_record(RegisterBrokerRecord(broker_id=2, broker_epoch=-1))])
    member.close()
    with pytest.raises(UsageError, match="node 2 is a broker of this cluster already"):
        open_growth(files)
    grow(files, {1: "data", 3: "broker-3", 4: "broker-4"})


@pytest.mark.parametrize(
    ("node_id", "voters", "is_let"),
    [
        (9, (1, 2, 3), True),
        (9, (2, 3, 4), False),
        (9, (1, 2, 9), False),
        (1, (1, 2, 3), False),
    ],
    ids=["observer", "of others", "made a voter", "voter"],
)
def test_only_an_observer_accepts_a_grown_voter_set(
    node_id: int, voters: tuple[int, ...], is_let: bool
) -> None:
    quorum = QuorumFiles(MemoryFiles(), "data")
    quorum.belong_to((1,), node_id)
    try:
        quorum.belong_to(voters, node_id)
    except StreamlogError:
        assert not is_let
    else:
        assert is_let
        assert quorum.state.voters == voters
