"""Exchange: this worker's side of the rounds of its group.

The assignor that a worker brings to its consumer: the partitions are `Placement`'s, and beside
them goes the user data of `member_info`, from every member to the leader and from the leader to
every member. What has been heard is kept as `peers`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from streamlog.assignors import Claim, Share, TopicPartition
from streamlog.worker.member_info import (
    Directory,
    MemberInfo,
    PeerInfo,
    decode_directory,
    decode_member_info,
    encode_directory,
    encode_member_info,
    packed,
)
from streamlog.worker.peers import Peers
from streamlog.worker.placement import Placement


class Exchange:
    """The assignor of one worker, with what the workers know of each other."""

    is_cooperative = False

    def __init__(self, placement: Placement, *, process: str) -> None:
        """`process` names this worker among those of the app."""
        self.peers = Peers(process)
        self.endpoint = ""
        """HOST:PORT of this worker's HTTP server, told whenever it joins: set it before."""
        self._placement = placement

    @property
    def name(self) -> str:
        """What members of the group agree on."""
        return self._placement.name

    def assign(
        self,
        members: Mapping[str, Sequence[str]],
        partitions: Mapping[str, int],
        owned: Mapping[str, Collection[TopicPartition]] | None = None,
    ) -> dict[str, list[TopicPartition]]:
        """See `Assignor.assign`."""
        return self._placement.assign(members, partitions, owned)

    def told(self) -> bytes:
        """See `DirectingPort.told`."""
        return encode_member_info(MemberInfo(process=self.peers.process, endpoint=self.endpoint))

    def direct(
        self, members: Mapping[str, Claim], partitions: Mapping[str, int]
    ) -> dict[str, Share]:
        """See `DirectingPort.direct`: partitions, and the same directory for all."""
        topics = {member: claim.topics for member, claim in members.items()}
        owned = {member: claim.owned for member, claim in members.items()}
        plan = self.assign(topics, partitions, owned)
        peers = []
        for member in sorted(members):
            info = decode_member_info(members[member].user_data)
            active = packed(self._placement.tasks_of(plan[member]))
            peers.append(PeerInfo(process=info.process, endpoint=info.endpoint, active=active))
        told = encode_directory(Directory(peers=peers), members=len(members))
        return {member: Share(parts, told) for member, parts in plan.items()}

    def heard(self, user_data: bytes) -> None:
        """See `DirectingPort.heard`."""
        self.peers.replace(decode_directory(user_data))
