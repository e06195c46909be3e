"""QuorumView: the quorum as one of its members sees it, for people and DescribeQuorum."""

from __future__ import annotations

from typing import NamedTuple

from streamlog.broker.quorum.leadership import Progress
from streamlog.broker.quorum.raft import Raft


class ReplicaView(NamedTuple):
    """How far a member is; times are by this node's wall clock, None if it does not know."""

    node_id: int
    end_offset: int
    """-1 if it has not fetched yet."""
    fetched_wall_ms: int | None
    caught_up_wall_ms: int | None
    is_rejoining: bool = False
    """Whether it is a voter that does not vote yet."""


class QuorumView(NamedTuple):
    """Who leads, and how far everybody is."""

    leader_id: int | None
    epoch: int
    high_watermark: int
    is_leader: bool
    voters: tuple[ReplicaView, ...]
    """This node first; the others are known to the leader alone."""
    observers: tuple[ReplicaView, ...]


def view_of(raft: Raft, *, ahead_ms: int) -> QuorumView:
    """What a member knows; its wall clock is so much ahead of its monotonic one."""
    leadership = raft.leadership
    voters = {} if leadership is None else leadership.voters
    observers = {} if leadership is None else leadership.observers
    own = ReplicaView(raft.node_id, raft.end_offset, None, None, raft.is_rejoining)
    return QuorumView(
        leader_id=raft.leader_id,
        epoch=raft.epoch,
        high_watermark=raft.high_watermark,
        is_leader=leadership is not None,
        voters=(own, *(_view(*each, ahead_ms) for each in voters.items())),
        observers=tuple(_view(*each, ahead_ms) for each in observers.items()),
    )


def _view(node_id: int, progress: Progress, ahead_ms: int) -> ReplicaView:
    fetched_ms, caught_up_ms = progress.fetched_ms, progress.caught_up_ms
    return ReplicaView(
        node_id,
        progress.end_offset,
        None if fetched_ms is None else fetched_ms + ahead_ms,
        None if caught_up_ms is None else caught_up_ms + ahead_ms,
        bool(progress.rejoin_id),
    )
