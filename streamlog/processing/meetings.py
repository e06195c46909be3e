"""Meetings: where both sides of a join of tables hear of one record.

A node hands what it makes to one child after the other. Of a join whose sides both come from it,
one side is then a version ahead of the other: a row made in between would mix two versions. So the
join holds changes from before the first child that leads to it until after the last one
(`TableTableJoinStep.hold`), and makes one row of what both sides have told. Rule of the file: the
wait is put among the children of the nodes where paths part, and in front of a topic that several
nodes read; steps on the way know nothing of it, and joins that never meet cost nothing.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping

from streamlog.processing.columns import Batch
from streamlog.processing.step import Step
from streamlog.processing.table_joins import TableTableJoinStep
from streamlog.topology import Subtopology, TableTableJoin


class HoldStep(Step):
    """Before the first child that leads to a join."""

    def __init__(self, join: TableTableJoinStep) -> None:
        super().__init__(join.name)
        self._join = join

    def process(self, batch: Batch) -> None:  # noqa: ARG002 - those around it take it
        """Both sides are about to hear of it."""
        self._join.hold()


class ReleaseStep(HoldStep):
    """After the last one."""

    def process(self, batch: Batch) -> None:  # noqa: ARG002 - likewise
        """Both sides have."""
        self._join.release()


def wait_for_both_sides(
    sub: Subtopology, steps: Mapping[str, Step], entries: Iterable[list[Step]]
) -> list[TableTableJoinStep]:
    """Make joins wait where paths to both of their sides part; returns which ones do.

    Args:
        sub: of these steps.
        steps: by name, with their children.
        entries: for each topic, the steps that read it.
    """
    parting = _Parting()
    waiting = []
    for node in sub.nodes:
        join = steps[node.name]
        if not isinstance(node, TableTableJoin) or not isinstance(join, TableTableJoinStep):
            continue
        left, right = ({*_above(sub, side)} for side in node.parents)
        forks = [steps[name].children for name in left & right]
        forks += [each for each in entries if _leads(each, left) and _leads(each, right)]
        found = [parting.add(fork, join, left | right) for fork in forks]
        waiting += [join] * any(found)
    parting.apply()
    return waiting


class _Parting:
    """Where joins have to wait among which children."""

    def __init__(self) -> None:
        self._forks: dict[int, list[Step]] = {}
        self._before: defaultdict[tuple[int, int], list[Step]] = defaultdict(list)
        self._after: defaultdict[tuple[int, int], list[Step]] = defaultdict(list)

    def add(self, fork: list[Step], join: TableTableJoinStep, above: Collection[str]) -> bool:
        """The join waits here if several children lead to it; whether it does."""
        leading = [at for at, child in enumerate(fork) if child.name in above]
        if len(leading) > 1:
            self._forks[id(fork)] = fork
            self._before[id(fork), leading[0]].append(HoldStep(join))
            self._after[id(fork), leading[-1]].append(ReleaseStep(join))
        return len(leading) > 1

    def apply(self) -> None:
        """Put the waits among the children: joins further up are done first."""
        for fork in self._forks.values():
            fork[:] = [
                each
                for at, child in enumerate(fork)
                for each in (*self._before[id(fork), at], child, *self._after[id(fork), at])
            ]


def _above(sub: Subtopology, side: str) -> Iterable[str]:
    """A side of a join, and the nodes that lead to it."""
    yield side
    for node in sub.ancestors(sub.by_name[side]):
        yield node.name


def _leads(steps: Iterable[Step], above: Collection[str]) -> bool:
    return any(step.name in above for step in steps)
