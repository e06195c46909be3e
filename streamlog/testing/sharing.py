"""Sharing: which of a test's workers runs which task.

Even, and sticky as workers are: who has a task keeps it, unless it is gone or has too many.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from streamlog.processing.task import TaskId


def shared(
    tasks: Iterable[TaskId], owners: Mapping[TaskId, int], workers: int
) -> dict[TaskId, int]:
    """The worker of each task, by number from 0; `owners` are those until now."""
    ordered = sorted(tasks)
    most = -(-len(ordered) // workers)
    loads = Counter(dict.fromkeys(range(workers), 0))
    found: dict[TaskId, int] = {}
    for task_id in ordered:
        owner = owners.get(task_id, 0)
        if owner < workers and loads[owner] < most:
            found[task_id] = owner
            loads[owner] += 1
    for task_id in ordered:
        if task_id not in found:
            found[task_id] = min(range(workers), key=lambda worker: loads[worker])
            loads[found[task_id]] += 1
    return dict(sorted(found.items()))
