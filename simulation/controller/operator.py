"""Operator: replaces the disk of one broker after the other, as docs/operations.md says.

Each time the broker is killed, its disk is replaced by an empty one, it is started, and the
operator asks for the status of the cluster until that is proved well (`cluster_descriptions`, the
code that ships). Then comes the next one, at once. What the operator goes by is what brokers
answer, and nothing that only the simulation can see.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from random import Random
from typing import TYPE_CHECKING

from streamlog.client.admin.cluster_descriptions import (
    CORRECT,
    ClusterReports,
    Evidence,
    EvidenceRules,
    PartitionDescription,
    QuorumDescription,
    find_problems,
)

if TYPE_CHECKING:
    from simulation.controller.broker import SimulatedBroker

ASK_MS = (1, 200)
"""Between two questions of one look, and between two looks."""
QUORUM_LEADER = 0


class Operator:
    """One procedure, from the first disk to the last."""

    def __init__(
        self,
        brokers: list[int],
        *,
        processes: Mapping[int, SimulatedBroker],
        chance: Random,
        at: Callable[[int, Callable[[], None]], None],
        committed: Callable[[], int],
        replace: Callable[[int, bool], None],
        on_done: Callable[[], None],
        rules: EvidenceRules = CORRECT,
    ) -> None:
        """`replace` kills a broker and gives it an empty disk; `on_done` is told at the end.

        `replace` is also told whether another disk was replaced before.
        """
        self._left = brokers
        self._processes = processes
        self._chance = chance
        self._at = at
        self._committed = committed
        self._replace = replace
        self._on_done = on_done
        self._rules = rules
        self._is_begun = False
        self.is_stopped = False
        """No further disk is replaced."""

    def begin(self) -> None:
        """Replace the next disk, if one is left."""
        if self.is_stopped or not self._left:
            self._on_done()
            return
        self._replace(self._left.pop(0), self._is_begun)
        self._is_begun = True
        self._soon(self._look)

    def _soon(self, what: Callable[[], None]) -> None:
        self._at(self._chance.randint(*ASK_MS), what)

    def _look(self) -> None:
        """One look at the status: its questions come one after the other."""
        first = self._reports()
        self._soon(lambda: self._list(first))

    def _list(self, first: ClusterReports) -> None:
        quorum = QuorumDescription(QUORUM_LEADER, 0, self._committed(), (), ())
        partitions = self._partitions()
        self._soon(lambda: self._judge(first, quorum, partitions))

    def _judge(
        self,
        first: ClusterReports,
        quorum: QuorumDescription,
        partitions: list[PartitionDescription] | None,
    ) -> None:
        if partitions is not None:
            evidence = Evidence(
                first=first,
                quorum=quorum,
                partitions=partitions,
                second=self._reports(),
                quorum_after=quorum,
            )
            if not find_problems(evidence, self._rules):
                self.begin()
                return
        if self.is_stopped:
            self._on_done()
            return
        self._soon(self._look)

    def _reports(self) -> ClusterReports:
        told, silent = {}, {}
        for number, process in self._processes.items():
            if process.is_dead:
                silent[number] = "it can't be reached"
            else:
                told[number] = process.report(0)
        return ClusterReports(told, silent)

    def _partitions(self) -> list[PartitionDescription] | None:
        """As some broker that lives knows them; None if no broker can be reached."""
        alive = [each for each in self._processes.values() if not each.is_dead]
        if not alive:
            return None
        image = self._chance.choice(alive).image
        return [
            PartitionDescription(
                topic.name, number, one.leader, one.leader_epoch, one.replicas, one.isr, ()
            )
            for topic, number, one in image.partitions()
        ]
