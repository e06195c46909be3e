"""Dealing: which task of a source reads which of its parts.

A pure function of the parts that exist and of the dealing before. Rules: task sizes differ by at
most one, no task is without a part, there are at most `tasks_max` tasks, and as few parts move as
those rules allow. The order of `parts` decides nothing that a tie does not leave open, so leaders
that list the parts in different orders agree about every part that stays.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Sequence
from typing import Final, TypeVar

from streamlog.errors import ConfigError

PARTS_MAX: Final = 100_000
"""The largest number of parts of a connector."""

P = TypeVar("P", bound=Hashable)


def deal(
    parts: Collection[P], before: Sequence[Collection[P]], *, tasks_max: int
) -> tuple[tuple[P, ...], ...]:
    """Return the parts of each task, by the task's number.

    Args:
        parts: the parts that there are now, each once; anything hashable by which parts are equal.
        before: the parts of each task in the dealing before; empty for the first one.
        tasks_max: the largest number of tasks, 1 or more.

    Raises:
        ConfigError: there are more than `PARTS_MAX` parts, or `tasks_max` is not positive.
    """
    if len(parts) > PARTS_MAX:
        raise ConfigError(f"{len(parts)} parts are more than {PARTS_MAX}, the limit of a connector")
    if tasks_max < 1:
        raise ConfigError(f"tasks.max={tasks_max} is less than 1")
    tasks = min(tasks_max, len(parts))
    if not tasks:
        return ()
    kept, homeless = _kept(parts, before[:tasks])
    kept += [[] for _ in range(tasks - len(kept))]
    share, larger = divmod(len(parts), tasks)
    # The tasks that keep the most get the larger shares: 5 parts for tasks that keep 1 and 3 are
    # 2 and 3, and nothing moves. With the larger share for the first task, one part would.
    by_size = sorted(range(tasks), key=lambda task: -len(kept[task]))
    room = {task: share + (rank < larger) for rank, task in enumerate(by_size)}
    for task in range(tasks):
        homeless += kept[task][room[task] :]
        del kept[task][room[task] :]
    waiting = iter(homeless)
    for task in range(tasks):
        kept[task] += [next(waiting) for _ in range(room[task] - len(kept[task]))]
    return tuple(tuple(each) for each in kept)


def _kept(parts: Collection[P], before: Sequence[Collection[P]]) -> tuple[list[list[P]], list[P]]:
    """Return what each task keeps of what it had, and the parts that no task keeps."""
    free = dict.fromkeys(parts)
    kept: list[list[P]] = []
    for task in before:
        mine = [part for part in dict.fromkeys(task) if part in free]
        # A part that two tasks had (records of two leaders, compacted together) stays with the
        # first of them: from here on it is no longer free.
        for part in mine:
            free.pop(part, None)
        kept.append(mine)
    return kept, list(free)
