"""User data of workers: there and back, through strangers, releases and bounds."""

from __future__ import annotations

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from streamlog.processing.task import TaskId
from streamlog.worker.assignment.streams_assignor import (
    DIRECTORIES_BYTES_MAX,
    LAGS_MAX,
    USER_DATA_BYTES_MAX,
    VERSION,
    MemberDirectory,
    MemberInfo,
    PeerInfo,
    decode_directory,
    decode_member_info,
    encode_directory,
    encode_member_info,
    pack_tasks,
    unpack_tasks,
)

task_ids = st.builds(TaskId, st.integers(0, 9), st.integers(0, 99))
tasks = st.sets(task_ids).map(pack_tasks)
infos = st.builds(
    MemberInfo,
    process=st.text(max_size=9),
    endpoint=st.text(max_size=9),
    host=st.text(max_size=9),
    lags=st.lists(st.tuples(st.integers(0, 9), st.integers(0, 99), st.integers(-1, 2**40))),
    following=tasks,
)
peers = st.builds(
    PeerInfo, process=st.text(max_size=9), endpoint=st.text(), active=tasks, standby=tasks
)
directories = st.builds(
    MemberDirectory, peers=st.lists(peers, max_size=5), standby=tasks, warmup=tasks
)


@given(infos)
def test_a_member_is_understood(info: MemberInfo) -> None:
    assert decode_member_info(encode_member_info(info)) == info


@given(directories, st.integers(1, 9))
def test_a_directory_is_understood(directory: MemberDirectory, members: int) -> None:
    assert decode_directory(encode_directory(directory, members=members)) == directory


@given(st.sets(task_ids))
def test_tasks_come_back(some: set[TaskId]) -> None:
    assert set(unpack_tasks(pack_tasks(some))) == some


@given(st.binary())
def test_of_strangers_nothing_is_known(data: bytes) -> None:
    assert isinstance(decode_member_info(data), MemberInfo)
    assert isinstance(decode_directory(data), MemberDirectory)


def test_what_a_later_release_adds_is_ignored_and_what_an_earlier_one_lacks_is_left_out() -> None:
    later = msgspec.msgpack.encode({"version": VERSION, "process": "p", "mood": ["good", 3]})
    assert decode_member_info(later) == MemberInfo(process="p")
    assert decode_member_info(msgspec.msgpack.encode({})) == MemberInfo()
    assert decode_directory(
        msgspec.msgpack.encode({"peers": [{"process": "p"}]})
    ) == MemberDirectory(peers=[PeerInfo(process="p")])


def test_another_version_means_nothing() -> None:
    assert (
        decode_member_info(msgspec.msgpack.encode({"version": 2, "process": "p"})) == MemberInfo()
    )
    assert (
        decode_directory(encode_directory(MemberDirectory(version=2), members=1))
        == MemberDirectory()
    )


def test_a_large_fleet_is_told_addresses_but_not_who_runs_what() -> None:
    many = pack_tasks(TaskId(0, partition) for partition in range(2_000))
    fleet = [PeerInfo(process=str(n), endpoint=f"host:{n}", active=many) for n in range(100)]
    mine = pack_tasks([TaskId(0, 7)])
    data = encode_directory(MemberDirectory(peers=fleet, standby=mine, warmup=mine), members=100)
    assert len(data) * 100 <= DIRECTORIES_BYTES_MAX
    told = decode_directory(data)
    assert [each.endpoint for each in told.peers] == [each.endpoint for each in fleet]
    assert not any(each.active for each in told.peers)
    assert (told.standby, told.warmup) == (mine, mine)


def test_of_more_state_than_fits_the_rest_is_left_out() -> None:
    lags = [(0, partition, 1) for partition in range(2 * LAGS_MAX)]
    assert decode_member_info(encode_member_info(MemberInfo(lags=lags))).lags == lags[:LAGS_MAX]


def test_what_is_too_long_is_not_looked_at() -> None:
    data = encode_member_info(MemberInfo(process="p" * USER_DATA_BYTES_MAX))
    assert decode_member_info(data) == MemberInfo()
