"""What workers of an app tell each other as user data of their group's rounds.

Pure. A worker tells the leader who it is (`MemberInfo`, in its subscription); the leader tells
everybody who runs what (`Directory`, in the assignment). Both are msgpack maps with a version:
fields that a reader does not know are ignored and those that it misses have a default, so workers
of different releases share a group; another version means nothing to it, and so does what is no
user data of ours: of such a member nothing is known, which is no error. Bounded: the group's
coordinator keeps all of it in one record, see `DIRECTORIES_BYTES_MAX`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

import msgspec

from streamlog.processing.task import TaskId

VERSION = 1
"""Raised only by a change that older readers would misunderstand."""
USER_DATA_BYTES_MAX = 1024 * 1024
"""More than this is not looked at."""
DIRECTORIES_BYTES_MAX = 512 * 1024
"""Of the directories of all members together: the coordinator keeps them in one record, whose
limit is 1 MiB by default. A larger fleet is told addresses, but not who runs what."""

LAGS_MAX = 4_000
"""Tasks whose state one worker tells of."""

Tasks = dict[int, list[int]]
"""Sub-topology to partitions: tasks, put shortly."""


class MemberInfo(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a worker says of itself when it joins."""

    version: int = VERSION
    process: str = ""
    """Names the worker, the same for as long as it runs."""
    endpoint: str = ""
    """HOST:PORT of its HTTP server; empty if it has none."""
    host: str = ""
    """Names its state directory: workers with the same one open each other's state."""
    lags: list[tuple[int, int, int]] = []
    """Sub-topology, partition, and how far the state is behind that it has of the task; -1: nobody
    has looked. Of tasks that it runs only if they are still being restored."""
    following: Tasks = {}
    """Those of them that it follows."""
    asked: int = 0
    """How many rounds it has asked for: who says the same as before is not given one."""


class PeerInfo(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What the leader says of one worker."""

    process: str = ""
    endpoint: str = ""
    active: Tasks = {}
    """Tasks that it runs."""
    standby: Tasks = {}
    """Tasks whose state it follows without running them."""


class MemberDirectory(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What the leader says of all workers."""

    version: int = VERSION
    peers: list[PeerInfo] = []
    standby: Tasks = {}
    """What the reader is to follow."""
    warmup: Tasks = {}
    """What it is to follow until it may have it."""


_encode = msgspec.msgpack.Encoder().encode
_member_info = msgspec.msgpack.Decoder(MemberInfo).decode
_directory = msgspec.msgpack.Decoder(MemberDirectory).decode


def encode_member_info(info: MemberInfo) -> bytes:
    """As user data of a subscription; of more state than fits the rest is left out."""
    return _encode(msgspec.structs.replace(info, lags=info.lags[:LAGS_MAX]))


def decode_member_info(user_data: bytes) -> MemberInfo:
    """What a member has told; nothing, if it can't be understood."""
    try:
        found = _member_info(user_data) if len(user_data) <= USER_DATA_BYTES_MAX else MemberInfo()
    except msgspec.MsgspecError:
        return MemberInfo()
    return found if found.version == VERSION else MemberInfo()


def encode_directory(directory: MemberDirectory, *, members: int) -> bytes:
    """As user data of the assignments of so many members; without tasks if those are too many."""
    data = _encode(directory)
    if len(data) * members <= DIRECTORIES_BYTES_MAX:
        return data
    plain = [PeerInfo(process=each.process, endpoint=each.endpoint) for each in directory.peers]
    return _encode(msgspec.structs.replace(directory, peers=plain))


def decode_directory(user_data: bytes) -> MemberDirectory:
    """What the leader has told; of nobody, if it can't be understood."""
    try:
        found = (
            _directory(user_data) if len(user_data) <= USER_DATA_BYTES_MAX else MemberDirectory()
        )
    except msgspec.MsgspecError:
        return MemberDirectory()
    return found if found.version == VERSION else MemberDirectory()


def packed(tasks: Iterable[TaskId]) -> Tasks:
    """Tasks by sub-topology."""
    found: Tasks = {}
    for task in sorted(tasks):
        found.setdefault(task.subtopology, []).append(task.partition)
    return found


def unpacked(tasks: Tasks) -> Collection[TaskId]:
    """The way back."""
    return [TaskId(number, partition) for number, many in tasks.items() for partition in many]
