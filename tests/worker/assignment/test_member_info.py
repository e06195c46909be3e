"""User data of workers: round trips, foreign data, other releases, and size bounds."""

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
def test_member_info_round_trips(info: MemberInfo) -> None:
    assert decode_member_info(encode_member_info(info)) == info


@given(directories, st.integers(1, 9))
def test_a_directory_round_trips(directory: MemberDirectory, members: int) -> None:
    assert decode_directory(encode_directory(directory, members=members)) == directory


@given(st.sets(task_ids))
def test_task_sets_round_trip(some: set[TaskId]) -> None:
    assert set(unpack_tasks(pack_tasks(some))) == some


@given(st.binary())
def test_foreign_user_data_is_decoded_as_empty(data: bytes) -> None:
    assert isinstance(decode_member_info(data), MemberInfo)
    assert isinstance(decode_directory(data), MemberDirectory)


def test_unknown_fields_are_ignored_and_missing_ones_have_defaults() -> None:
    later = msgspec.msgpack.encode({"version": VERSION, "process": "p", "mood": ["good", 3]})
    assert decode_member_info(later) == MemberInfo(process="p")
    assert decode_member_info(msgspec.msgpack.encode({})) == MemberInfo()
    assert decode_directory(
        msgspec.msgpack.encode({"peers": [{"process": "p"}]})
    ) == MemberDirectory(peers=[PeerInfo(process="p")])


def test_user_data_of_another_version_is_decoded_as_empty() -> None:
    assert (
        decode_member_info(msgspec.msgpack.encode({"version": 2, "process": "p"})) == MemberInfo()
    )
    assert (
        decode_directory(encode_directory(MemberDirectory(version=2), members=1))
        == MemberDirectory()
    )


def test_a_large_directory_has_addresses_but_no_tasks() -> None:
    many = pack_tasks(TaskId(0, partition) for partition in range(2_000))
    fleet = [PeerInfo(process=str(n), endpoint=f"host:{n}", active=many) for n in range(100)]
    mine = pack_tasks([TaskId(0, 7)])
    data = encode_directory(MemberDirectory(peers=fleet, standby=mine, warmup=mine), members=100)
    assert len(data) * 100 <= DIRECTORIES_BYTES_MAX
    decoded = decode_directory(data)
    assert [each.endpoint for each in decoded.peers] == [each.endpoint for each in fleet]
    assert not any(each.active for each in decoded.peers)
    assert (decoded.standby, decoded.warmup) == (mine, mine)


def test_lags_beyond_the_limit_are_left_out() -> None:
    lags = [(0, partition, 1) for partition in range(2 * LAGS_MAX)]
    assert decode_member_info(encode_member_info(MemberInfo(lags=lags))).lags == lags[:LAGS_MAX]


def test_oversized_user_data_is_not_decoded() -> None:
    data = encode_member_info(MemberInfo(process="p" * USER_DATA_BYTES_MAX))
    assert decode_member_info(data) == MemberInfo()
