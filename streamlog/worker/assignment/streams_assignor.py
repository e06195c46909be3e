"""Exchange: this worker's side of the rounds of its group.

The assignor that a worker brings to its consumer. Every member tells the leader who it is and
what state it has; the leader decides by `moves`, and tells every member what to run, what to
follow, and who does what, which is kept here as `peers`. It is cooperative (KIP-429): members go
on with what they keep while a round is held. A member asks for a round of its own when a task
that it was to get ready for is at hand, and less and less often if that leads to nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from streamlog.assignors import Claim, Share
from streamlog.processing.task import TaskId
from streamlog.record import TopicPartition
from streamlog.worker.assignment.rebalance_plan import (
    Candidate,
    MovePart,
    Placement,
    Policy,
    plan_round,
)

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


def pack_tasks(tasks: Iterable[TaskId]) -> Tasks:
    """Tasks by sub-topology."""
    found: Tasks = {}
    for task in sorted(tasks):
        found.setdefault(task.subtopology, []).append(task.partition)
    return found


def unpack_tasks(tasks: Tasks) -> Collection[TaskId]:
    """The way back."""
    return [TaskId(number, partition) for number, many in tasks.items() for partition in many]


@dataclass(frozen=True, slots=True)
class Peer:
    """One worker of the app."""

    process: str
    """Its name among the workers; the same for as long as it runs."""
    endpoint: str
    """HOST:PORT of its HTTP server; empty if it has none."""
    active: frozenset[TaskId]
    """The tasks that it runs."""
    standby: frozenset[TaskId]
    """The tasks whose state it follows without running them."""


class WorkerPeers:
    """Who is there, and who runs what."""

    def __init__(self, process: str) -> None:
        self.process = process
        """This worker's own name."""
        self.rounds = 0
        """How often the view was replaced."""
        self._peers: tuple[Peer, ...] = ()
        self._active: dict[TaskId, Peer] = {}
        self._standbys: dict[TaskId, list[Peer]] = {}

    def replace(self, directory: MemberDirectory) -> None:
        """Another round has been held."""
        self.rounds += 1
        self._peers = tuple(
            Peer(
                each.process,
                each.endpoint,
                frozenset(unpack_tasks(each.active)),
                frozenset(unpack_tasks(each.standby)),
            )
            for each in directory.peers
        )
        self._active = {task: peer for peer in self._peers for task in peer.active}
        self._standbys = {}
        for peer in self._peers:
            for task in peer.standby:
                self._standbys.setdefault(task, []).append(peer)

    @property
    def all(self) -> Sequence[Peer]:
        """Every worker of the app, this one included; empty before the first round."""
        return self._peers

    def active(self, task: TaskId) -> Peer | None:
        """Who runs the task; None while it moves, or if it is not known."""
        return self._active.get(task)

    def standbys(self, task: TaskId) -> Sequence[Peer]:
        """Who follows the task's state without running it."""
        return self._standbys.get(task, ())

    def is_me(self, peer: Peer) -> bool:
        """Whether it is this worker itself."""
        return peer.process == self.process


NAME = "streamlog-cooperative"
"""What members of the group agree on: who gives up everything in a round can't be among them."""
ASK_MS = 1_000
ASK_MS_MAX = 60_000
"""Between two rounds that this worker asks for: doubled while no task comes of them."""


class StreamsAssignor:
    """The assignor of one worker, with what the workers know of each other."""

    name = NAME
    is_cooperative = True

    def __init__(self, placement: Placement, *, process: str, policy: Policy | None = None) -> None:
        """A worker that knows nobody yet.

        Args:
            placement: what the app has to share out.
            process: names this worker among those of the app.
            policy: how tasks move.
        """
        self.peers = WorkerPeers(process)
        self.endpoint = ""
        """HOST:PORT of this worker's HTTP server, told whenever it joins: set it before."""
        self.host = ""
        """Names its state directory; likewise."""
        self.lags: dict[TaskId, int] = {}
        """How far the state is behind that this worker has of tasks: those that it follows, that
        are on its disk (`UNKNOWN_LAG`), and that are still being restored."""
        self.standby: frozenset[TaskId] = frozenset()
        """Tasks that this worker is to follow."""
        self.warmup: frozenset[TaskId] = frozenset()
        """Tasks that it is to follow until it may have them."""
        self._placement = placement
        self._policy = policy or Policy()
        self._asked_ms: int | None = None
        self._asked = 0
        self._pause_ms = ASK_MS

    def assign(
        self,
        members: Mapping[str, Sequence[str]],
        partitions: Mapping[str, int],
        owned: Mapping[str, Collection[TopicPartition]] | None = None,
    ) -> dict[str, list[TopicPartition]]:
        """See `Assignor.assign`: what it would come to in the end."""
        return self._placement.assign(members, partitions, owned)

    def told(self) -> bytes:
        """See `DirectingPort.told`."""
        lags = dict(self.lags)
        following = self.standby | self.warmup
        return encode_member_info(
            MemberInfo(
                process=self.peers.process,
                endpoint=self.endpoint,
                host=self.host,
                # What it follows counts most, if it is too much for all to be told.
                lags=[
                    (task.subtopology, task.partition, lags[task])
                    for task in sorted(lags, key=lambda task: (task not in following, task))
                ],
                following=pack_tasks(task for task in following if task in lags),
                asked=self._asked,
            )
        )

    def direct(
        self, members: Mapping[str, Claim], partitions: Mapping[str, int]
    ) -> dict[str, Share]:
        """See `DirectingPort.direct`."""
        infos = {member: decode_member_info(claim.user_data) for member, claim in members.items()}
        candidates = {
            member: Candidate(
                topics=claim.topics,
                owned=claim.owned,
                host=infos[member].host,
                lags={
                    TaskId(number, partition): lag for number, partition, lag in infos[member].lags
                },
                following=unpack_tasks(infos[member].following),
            )
            for member, claim in members.items()
        }
        parts = plan_round(self._placement, self._policy, candidates, partitions)
        peers = [self._described(infos[member], part) for member, part in parts.items()]
        return {
            member: Share(
                part.partitions,
                encode_directory(
                    MemberDirectory(
                        peers=peers,
                        standby=pack_tasks(part.standby),
                        warmup=pack_tasks(part.warmup),
                    ),
                    members=len(members),
                ),
            )
            for member, part in parts.items()
        }

    def heard(self, user_data: bytes) -> None:
        """See `DirectingPort.heard`."""
        directory = decode_directory(user_data)
        self.peers.replace(directory)
        warmup = frozenset(unpack_tasks(directory.warmup))
        if warmup != self.warmup:
            self._pause_ms = ASK_MS
        self.standby, self.warmup = frozenset(unpack_tasks(directory.standby)), warmup

    def asks(self, now_ms: int) -> bool:
        """Whether to ask for a round now.

        A task that was to get ready is; or the others know another address of this worker: that
        of a process before it, whose place in the group it has taken without a round.
        """
        ready = any(
            0 <= self.lags.get(task, -1) <= self._policy.acceptable_lag for task in self.warmup
        )
        wanted = ready or any(
            self.peers.is_me(peer) and peer.endpoint != self.endpoint for peer in self.peers.all
        )
        if not wanted or (self._asked_ms is not None and now_ms < self._asked_ms + self._pause_ms):
            return False
        if self._asked_ms is not None:
            self._pause_ms = min(2 * self._pause_ms, ASK_MS_MAX)
        self._asked_ms = now_ms
        self._asked += 1
        return True

    def _described(self, info: MemberInfo, part: MovePart) -> PeerInfo:
        return PeerInfo(
            process=info.process,
            endpoint=info.endpoint,
            active=pack_tasks(self._placement.tasks_of(part.partitions)),
            standby=pack_tasks([*part.standby, *part.warmup]),
        )
