"""Node figures: how many records the nodes of a task have taken and forwarded, and their time.

Counted where batches pass between steps (`Step.forward`): two additions and two looks at a
stopwatch per batch and edge, whatever the number of its records. The time of a node is that of its
own work: what its children do meanwhile is theirs.

Rule: these numbers are no part of a task's state. They begin at 0 with each task, and nothing that
a task writes depends on them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from streamlog.processing.step import Step


class NodeFigures(NamedTuple):
    """The figures of a node since the start of its task."""

    node: str
    records_in: int = 0
    """The records that the node has taken."""
    records_out: int = 0
    """The records that it has forwarded; 0 for a sink."""
    late_records: int = 0
    """The records that came after their window had closed, wherever they went."""
    busy_ns: int = 0
    """The time of its own work."""
    open_windows: int | None = None
    """The windows that have rows and are open; None: not known, or the node has no windows."""

    def __add__(self, more: NodeFigures) -> NodeFigures:  # type: ignore[override]
        """Return the sums of two tasks' figures of one node."""
        windows = [n for n in (self.open_windows, more.open_windows) if n is not None]
        return NodeFigures(
            self.node,
            self.records_in + more.records_in,
            self.records_out + more.records_out,
            self.late_records + more.late_records,
            self.busy_ns + more.busy_ns,
            sum(windows) if windows else None,
        )


def figures_of(steps: Iterable[Step]) -> list[NodeFigures]:
    """Return the figures of these steps."""
    return [
        NodeFigures(
            step.name,
            step.records_in,
            step.records_out,
            step.late_records,
            # Never negative: a step that forwards at the end of a task is not timed from outside.
            max(step.within_ns - step.passed_ns, 0),
            step.open_windows,
        )
        for step in steps
    ]


def sum_figures(figures: Iterable[NodeFigures]) -> dict[str, NodeFigures]:
    """Return the sums by node."""
    sums: dict[str, NodeFigures] = {}
    for each in figures:
        known = sums.get(each.node)
        sums[each.node] = each if known is None else known + each
    return sums
