"""Exchange: this worker's side of the rounds of its group.

The assignor that a worker brings to its consumer. Every member tells the leader who it is and
what state it has; the leader decides by `moves`, and tells every member what to run, what to
follow, and who does what, which is kept here as `peers`. It is cooperative (KIP-429): members go
on with what they keep while a round is held. A member asks for a round of its own when a task
that it was to get ready for is at hand, and less and less often if that leads to nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from streamlog.assignors import Claim, Share
from streamlog.processing.task import TaskId
from streamlog.record import TopicPartition
from streamlog.worker.assignment.member_info import (
    MemberDirectory,
    MemberInfo,
    PeerInfo,
    decode_directory,
    decode_member_info,
    encode_directory,
    encode_member_info,
    packed,
    unpacked,
)
from streamlog.worker.assignment.rebalance_plan import Candidate, MovePart, Policy, next_round
from streamlog.worker.assignment.task_placement import Placement
from streamlog.worker.assignment.worker_peers import WorkerPeers

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
                following=packed(task for task in following if task in lags),
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
                following=unpacked(infos[member].following),
            )
            for member, claim in members.items()
        }
        parts = next_round(self._placement, self._policy, candidates, partitions)
        peers = [self._described(infos[member], part) for member, part in parts.items()]
        return {
            member: Share(
                part.partitions,
                encode_directory(
                    MemberDirectory(
                        peers=peers, standby=packed(part.standby), warmup=packed(part.warmup)
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
        warmup = frozenset(unpacked(directory.warmup))
        if warmup != self.warmup:
            self._pause_ms = ASK_MS
        self.standby, self.warmup = frozenset(unpacked(directory.standby)), warmup

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
            active=packed(self._placement.tasks_of(part.partitions)),
            standby=packed([*part.standby, *part.warmup]),
        )
