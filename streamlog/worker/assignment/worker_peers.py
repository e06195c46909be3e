"""Peers: the workers of an app as of the group's last round, and who runs which task.

Pure, and a view: replaced as a whole with every round that the worker hears of. While a task is
on its way from one worker to another nobody runs it, so it has no owner here until the next
round, which follows at once. What a worker is told may be a moment old: whoever it asks answers
for itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from streamlog.processing.task import TaskId
from streamlog.worker.assignment.member_info import MemberDirectory, unpacked


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
                frozenset(unpacked(each.active)),
                frozenset(unpacked(each.standby)),
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
