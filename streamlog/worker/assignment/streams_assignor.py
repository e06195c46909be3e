"""Streams assignor: the assignor that a worker brings to its consumer group.

When a worker joins, it sends its name, its address and the lags of its state to the leader. The
leader plans the rebalance (`rebalance_plan`) and sends every member its tasks, its standbys and
warm-ups, and a directory of all workers, which is kept here as `peers`. The protocol is cooperative
(KIP-429): members keep reading what they keep while the group rebalances. A worker whose warm-up
has caught up asks for a rebalance (KIP-441). If that moves no task, it asks again after a pause
that doubles.

The tasks of connectors are *slots*: units of the placement without a topic, named `connect:NAME`,
which no topic can be. They travel as user data beside the partitions, and move as those do: revoked
in one rebalance, assigned in the next.

Rule: data that can't be decoded counts as absent. Not done here: the decision (`rebalance_plan`),
and the group's requests (`client/group`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from streamlog.assignors import Claim, Share
from streamlog.processing.task import TaskId
from streamlog.record import TopicPartition
from streamlog.replace import replace
from streamlog.worker.assignment.rebalance_plan import (
    Candidate,
    MovePart,
    Placement,
    Policy,
    plan_round,
)

VERSION = 1
"""The format's version. A change that older readers would misunderstand raises it."""
USER_DATA_BYTES_MAX = 1024 * 1024
"""User data larger than this is ignored."""
DIRECTORIES_BYTES_MAX = 512 * 1024
"""The largest size of all members' directories together. The coordinator stores them in one record,
which is limited to 1 MiB by default. If they are larger, they hold addresses without tasks."""

LAGS_MAX = 4_000
"""The largest number of tasks whose lags one worker sends."""

Tasks = dict[int, list[int]]
"""Task ids, encoded compactly: sub-topology number to partition numbers."""
Slots = dict[str, list[int]]
"""Connector to the numbers of its tasks."""
SLOT_PREFIX = "connect:"
"""What a slot's name begins with in the placement; a topic's name has no colon."""


class MemberInfo(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The data about itself that a worker sends when it joins the group."""

    version: int = VERSION
    process: str = ""
    """Identifies the worker; constant while it runs."""
    endpoint: str = ""
    """HOST:PORT of its HTTP server; empty if it has none."""
    host: str = ""
    """Names its state directory. Workers with equal hosts can open each other's state."""
    lags: list[tuple[int, int, int]] = []
    """Sub-topology, partition and lag of each task whose state the worker has. The lag is in
    changelog records, or `UNKNOWN_LAG`. Running tasks are included only while they restore."""
    following: Tasks = {}
    """The tasks among `lags` whose changelog it follows."""
    slots: Slots = {}
    """The slots that it runs."""
    slots_generation: int = -1
    """The generation that gave it these slots."""
    takes_slots: bool = False
    """Whether it runs connectors; a worker of an earlier release does not."""
    configs_until: int = 0
    """The offset of the configs topic up to which its records count for this worker."""
    asked: int = 0
    """The number of rebalances that the worker has asked for. It makes the data of each request
    differ: a coordinator does not start a rebalance for a member that sends equal data again."""


class PeerInfo(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One worker in the leader's directory."""

    process: str = ""
    endpoint: str = ""
    active: Tasks = {}
    """The tasks that it runs."""
    standby: Tasks = {}
    """The tasks whose changelog it follows without running them."""


class MemberDirectory(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The data that the leader sends to one member: all workers, and the member's own standbys."""

    version: int = VERSION
    peers: list[PeerInfo] = []
    standby: Tasks = {}
    """The tasks that the receiver follows as a standby."""
    warmup: Tasks = {}
    """The tasks that the receiver follows until they can move to it."""
    slots: Slots = {}
    """The slots that the receiver runs."""
    configs_until: int = 0
    """The offset of the configs topic up to which its records count for this rebalance."""
    leader: str = ""
    """The process that leads the group."""


_encode = msgspec.msgpack.Encoder().encode
_member_info = msgspec.msgpack.Decoder(MemberInfo).decode
_directory = msgspec.msgpack.Decoder(MemberDirectory).decode


def encode_member_info(info: MemberInfo) -> bytes:
    """Encode the user data of a subscription, with at most `LAGS_MAX` lags."""
    return _encode(replace(info, lags=info.lags[:LAGS_MAX]))


def decode_member_info(user_data: bytes) -> MemberInfo:
    """Decode the user data of a subscription; without content if it can't be decoded."""
    try:
        found = _member_info(user_data) if len(user_data) <= USER_DATA_BYTES_MAX else MemberInfo()
    except msgspec.MsgspecError:
        return MemberInfo()
    # A worker of another release may mean something else by these fields: without its data it
    # counts as a worker without state.
    return found if found.version == VERSION else MemberInfo()


def encode_directory(directory: MemberDirectory, *, members: int) -> bytes:
    """Encode the user data of an assignment.

    Args:
        directory: the data for one member.
        members: the number of members, all of which get data of about this size. If the total
            exceeds `DIRECTORIES_BYTES_MAX`, the tasks of the peers are left out.
    """
    data = _encode(directory)
    if len(data) * members <= DIRECTORIES_BYTES_MAX:
        return data
    # Without tasks a query still finds its worker: it asks all of them in turn
    # (`RoutedTables._owners`).
    plain = [PeerInfo(process=each.process, endpoint=each.endpoint) for each in directory.peers]
    return _encode(replace(directory, peers=plain))


def decode_directory(user_data: bytes) -> MemberDirectory:
    """Decode the user data of an assignment; without content if it can't be decoded."""
    try:
        found = (
            _directory(user_data) if len(user_data) <= USER_DATA_BYTES_MAX else MemberDirectory()
        )
    except msgspec.MsgspecError:
        return MemberDirectory()
    return found if found.version == VERSION else MemberDirectory()


def pack_tasks(tasks: Iterable[TaskId]) -> Tasks:
    """Group task ids by sub-topology."""
    found: Tasks = {}
    for task in sorted(tasks):
        found.setdefault(task.subtopology, []).append(task.partition)
    return found


def unpack_tasks(tasks: Tasks) -> Collection[TaskId]:
    """Return the task ids of a grouped encoding (see `pack_tasks`)."""
    return [TaskId(number, partition) for number, many in tasks.items() for partition in many]


def pack_slots(units: Iterable[TopicPartition]) -> Slots:
    """Return the slots among the units of a placement."""
    found: Slots = {}
    for name, number in sorted(units):
        if name.startswith(SLOT_PREFIX):
            found.setdefault(name.removeprefix(SLOT_PREFIX), []).append(number)
    return found


def _undisputed_slots(infos: Mapping[str, MemberInfo]) -> dict[str, list[TopicPartition]]:
    """Return the slots that each member runs; of two that name one slot, the later one runs it.

    1. Worker a has slot 0 by generation 4, and is suspended beyond its session. 2. Worker b gets
    the slot in generation 5. 3. Worker a joins again and still names it: only b runs it.
    """
    latest: dict[TopicPartition, tuple[int, str]] = {}
    for member, info in infos.items():
        for name, numbers in info.slots.items():
            for number in numbers:
                at = TopicPartition(f"{SLOT_PREFIX}{name}", number)
                latest[at] = max(latest.get(at, (-2, "")), (info.slots_generation, member))
    return {
        member: sorted(at for at, (_, owner) in latest.items() if owner == member)
        for member in infos
    }


@dataclass(frozen=True, slots=True)
class Peer:
    """One worker of the app, as the last rebalance described it."""

    process: str
    """Identifies the worker; constant while it runs."""
    endpoint: str
    """HOST:PORT of its HTTP server; empty if it has none."""
    active: frozenset[TaskId]
    """The tasks that it runs."""
    standby: frozenset[TaskId]
    """The tasks whose changelog it follows without running them."""


class WorkerPeers:
    """The workers of the app and their tasks, as of the last rebalance."""

    def __init__(self, process: str) -> None:
        self.process = process
        """The name of this worker."""
        self.rounds = 0
        """The number of rebalances whose directory this worker has received."""
        self.leader_process = ""
        """The worker that leads the group; empty before the first rebalance."""
        self._peers: tuple[Peer, ...] = ()
        self._active: dict[TaskId, Peer] = {}
        self._standbys: dict[TaskId, list[Peer]] = {}

    def replace(self, directory: MemberDirectory) -> None:
        """Replace the view by the directory of a later rebalance."""
        self.rounds += 1
        self.leader_process = directory.leader
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

    @property
    def leader(self) -> Peer | None:
        """The worker that leads the group; None if it is not known."""
        return next((each for each in self._peers if each.process == self.leader_process), None)

    def active(self, task: TaskId) -> Peer | None:
        """Return the worker that runs the task, or None while it moves or if it is not known."""
        return self._active.get(task)

    def standbys(self, task: TaskId) -> Sequence[Peer]:
        """Return the workers that follow the task's changelog without running it."""
        return self._standbys.get(task, ())

    def is_me(self, peer: Peer) -> bool:
        """Return whether the peer is this worker."""
        return peer.process == self.process


NAME = "streamlog-cooperative"
"""The protocol name that all members offer. It differs from every eager assignor's name: members
that give up all partitions in a rebalance can't share a group with members that keep theirs."""
ASK_MS = 1_000
ASK_MS_MAX = 60_000
"""The first and the largest pause between two rebalances that this worker asks for. The pause
doubles until the set of warm-ups changes."""


class StreamsAssignor:
    """The assignor of one worker, with its view of the other workers."""

    name = NAME
    is_cooperative = True

    def __init__(self, placement: Placement, *, process: str, policy: Policy | None = None) -> None:
        """Create the assignor of a worker before its first rebalance, without peers.

        Args:
            placement: the inputs and tasks of the app.
            process: identifies this worker among those of the app.
            policy: the limits on moves, and the number of standbys; by default `Policy()`.
        """
        self.peers = WorkerPeers(process)
        self.endpoint = ""
        """HOST:PORT of this worker's HTTP server. Set it before the worker joins the group."""
        self.host = ""
        """Names this worker's state directory. Set it before the worker joins the group."""
        self.lags: dict[TaskId, int] = {}
        """Task to the lag of the state that this worker has, in changelog records: tasks that it
        follows or restores, and tasks whose state is on its disk (`UNKNOWN_LAG`)."""
        self.standby: frozenset[TaskId] = frozenset()
        """The tasks that this worker has to follow as a standby."""
        self.warmup: frozenset[TaskId] = frozenset()
        """The tasks that this worker has to follow until they can move to it."""
        self.slot_counts: Callable[[], tuple[Mapping[str, int], int]] = lambda: ({}, 0)
        """Returns the number of slots of each connector, and the offset of the configs topic up to
        which that is so; called on the group's leader."""
        self.own_slots: Slots = {}
        """The slots that this worker runs, and does not give up."""
        self.own_slots_generation = -1
        """The generation that gave it these slots."""
        self.takes_slots = False
        """Whether this worker runs connectors."""
        self.given_slots: Slots = {}
        """The slots that the last rebalance gave to this worker."""
        self.configs_until = 0
        """The offset of the configs topic up to which its records count since then."""
        self.withholds = False
        """Whether the rebalance that this worker has directed last left out slots that a worker has
        to give up first."""
        self.placement = placement
        """The inputs and tasks of the app. They change when other topics match its patterns."""
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
        """Return the target placement; see `Assignor.assign`."""
        return self.placement.assign(members, partitions, owned)

    def subscription_data(self) -> bytes:
        """See `DirectingPort.subscription_data`."""
        lags = dict(self.lags)
        following = self.standby | self.warmup
        return encode_member_info(
            MemberInfo(
                process=self.peers.process,
                endpoint=self.endpoint,
                host=self.host,
                # The tasks that it follows come first: the list is cut at `LAGS_MAX`, and their
                # lags decide moves.
                lags=[
                    (task.subtopology, task.partition, lags[task])
                    for task in sorted(lags, key=lambda task: (task not in following, task))
                ],
                following=pack_tasks(task for task in following if task in lags),
                slots=self.own_slots,
                slots_generation=self.own_slots_generation,
                takes_slots=self.takes_slots,
                configs_until=self.configs_until,
                asked=self._asked,
            )
        )

    def direct(
        self, members: Mapping[str, Claim], partitions: Mapping[str, int]
    ) -> dict[str, Share]:
        """See `DirectingPort.direct`; runs on the group's leader."""
        infos = {member: decode_member_info(claim.user_data) for member, claim in members.items()}
        counts, until = self.slot_counts()
        # 1. The leader counts records up to offset 10, and is killed. 2. The next one has read up
        # to 8. 3. A worker that counted up to 10 keeps to that: a new one that counted up to 8 only
        # would go by another dealing in the same generation. So what one has counted, all count.
        until = max(until, *(info.configs_until for info in infos.values()))
        units = {f"{SLOT_PREFIX}{name}": count for name, count in counts.items() if count}
        placement = replace(
            self.placement, groups=(*self.placement.groups, *((unit,) for unit in sorted(units)))
        )
        slots = _undisputed_slots(infos)
        candidates = {
            member: Candidate(
                topics=[*claim.topics, *(units if infos[member].takes_slots else ())],
                owned=[*claim.owned, *slots[member]],
                host=infos[member].host,
                lags={
                    TaskId(number, partition): lag for number, partition, lag in infos[member].lags
                },
                following=unpack_tasks(infos[member].following),
            )
            for member, claim in members.items()
        }
        parts = plan_round(placement, self._policy, candidates, {**partitions, **units})
        given = {unit for part in parts.values() for unit in part.partitions}
        self.withholds = any(
            at not in given and at.partition < units.get(at.topic, 0)
            for owned in slots.values()
            for at in owned
        )
        peers = [self._describe(infos[member], part) for member, part in parts.items()]
        return {
            member: Share(
                [at for at in part.partitions if not at.topic.startswith(SLOT_PREFIX)],
                encode_directory(
                    MemberDirectory(
                        peers=peers,
                        standby=pack_tasks(part.standby),
                        warmup=pack_tasks(part.warmup),
                        slots=pack_slots(part.partitions),
                        configs_until=until,
                        leader=self.peers.process,
                    ),
                    members=len(members),
                ),
            )
            for member, part in parts.items()
        }

    def on_assignment(self, user_data: bytes) -> None:
        """See `DirectingPort.on_assignment`."""
        directory = decode_directory(user_data)
        self.peers.replace(directory)
        warmup = frozenset(unpack_tasks(directory.warmup))
        # Other warm-ups: the last rebalance has changed the plan, so the next request waits only
        # for the first pause.
        if warmup != self.warmup:
            self._pause_ms = ASK_MS
        self.given_slots, self.configs_until = directory.slots, directory.configs_until
        self.standby, self.warmup = frozenset(unpack_tasks(directory.standby)), warmup

    def wants_rebalance(self, now_ms: int) -> bool:
        """Return whether this worker should ask for a rebalance now; True counts as a request.

        It should if a warm-up has caught up, or if its peers have another address of this worker: a
        static member (KIP-345) that restarts replaces its predecessor without a rebalance.
        """
        # A store that is not open yet has no lag, and `UNKNOWN_LAG` is negative: neither has caught
        # up.
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

    def _describe(self, info: MemberInfo, part: MovePart) -> PeerInfo:
        return PeerInfo(
            process=info.process,
            endpoint=info.endpoint,
            active=pack_tasks(self.placement.tasks_of(part.partitions)),
            # Both follow the changelog, so both can answer queries that accept old rows.
            standby=pack_tasks([*part.standby, *part.warmup]),
        )
