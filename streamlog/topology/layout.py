"""Where the boxes of a picture lie: in columns, by the longest way that leads to each.

A layered drawing (Sugiyama, 1981) with bands: every sub-topology has a band of its own, the
topics before, between and behind lie in the band of who reads or writes them. Within a column
boxes are ordered by the middle of their neighbours, a few times back and forth. Rule of the file:
the same picture always lies the same way.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from streamlog.topology.picture import Arrow, Box, Picture

SWEEPS = 4
"""Orderings back and forth; more change nothing in pictures of this size."""


@dataclass(frozen=True, slots=True)
class Cell:
    """The place of a box."""

    column: int
    row: int


def layout(picture: Picture) -> dict[str, Cell]:
    """A cell for each box; no two have the same."""
    columns = _columns(picture)
    bands = _bands(picture, columns)
    order = {box.id: number for number, box in enumerate(picture.boxes)}
    cells: dict[str, Cell] = {}
    first_row = 0
    for band in sorted(set(bands.values())):
        members = [box for box in picture.boxes if bands[box.id] == band]
        rows = _rows(members, columns, picture.arrows, order)
        cells |= {box.id: Cell(columns[box.id], first_row + rows[box.id]) for box in members}
        first_row += max(rows.values(), default=-1) + 1
    return cells


def _columns(picture: Picture) -> dict[str, int]:
    """How many boxes the longest way to each has before it; ways back count for nothing."""
    forward = _forward(picture)
    columns = {box.id: 0 for box in picture.boxes}
    for _ in picture.boxes:
        before = dict(columns)
        for arrow in forward:
            columns[arrow.end] = max(columns[arrow.end], columns[arrow.start] + 1)
        if columns == before:
            break
    # What begins here, and its topic, lies right before what it is for: tables beside their joins.
    begins = {box.id for box in picture.boxes} - {arrow.end for arrow in forward}
    leads = {arrow.end for arrow in forward} - {a.end for a in forward if a.start not in begins}
    for beginning in (leads, begins):
        for each in sorted(beginning):
            targets = [columns[arrow.end] for arrow in forward if arrow.start == each]
            columns[each] = min(targets, default=columns[each] + 1) - 1
    return columns


def _forward(picture: Picture) -> list[Arrow]:
    """The arrows without those that close a ring: sub-topologies may feed themselves."""
    following: defaultdict[str, list[Arrow]] = defaultdict(list)
    for arrow in picture.arrows:
        following[arrow.start].append(arrow)
    done: set[str] = set()
    return [arrow for box in picture.boxes for arrow in _followed(box.id, following, done)]


def _followed(first: str, following: Mapping[str, list[Arrow]], done: set[str]) -> Iterator[Arrow]:
    """The arrows met on the way from a box, depth first; none to a box that is on the way."""
    if first in done:
        return
    trail = [(first, iter(following.get(first, ())))]
    on_the_way = {first}
    while trail:
        at, pending = trail[-1]
        found = next(pending, None)
        if found is None:
            trail.pop()
            on_the_way.discard(at)
            done.add(at)
        elif found.end not in on_the_way:
            yield found
            if found.end not in done:
                on_the_way.add(found.end)
                trail.append((found.end, iter(following.get(found.end, ()))))


def _bands(picture: Picture, columns: Mapping[str, int]) -> dict[str, int]:
    """A number per group, by where it begins; topics go with their first reader or writer."""

    def begins(group: str) -> int:
        return min((columns[box.id] for box in picture.in_group(group)), default=0)

    numbers = {group: number for number, group in enumerate(sorted(picture.groups, key=begins))}
    bands = {box.id: numbers[box.group] for box in picture.boxes if box.group}
    readers = {
        arrow.start: bands[arrow.end] for arrow in reversed(picture.arrows) if arrow.end in bands
    }
    writers = {
        arrow.end: bands[arrow.start] for arrow in reversed(picture.arrows) if arrow.start in bands
    }
    for box in picture.boxes:
        if box.id not in bands:
            bands[box.id] = readers.get(box.id, writers.get(box.id, 0))
    return bands


def _rows(
    members: list[Box],
    columns: Mapping[str, int],
    arrows: tuple[Arrow, ...],
    order: Mapping[str, int],
) -> dict[str, int]:
    """Rows within a band: each box near the middle of its neighbours."""
    ids = {box.id for box in members}
    neighbours: defaultdict[str, list[str]] = defaultdict(list)
    for arrow in arrows:
        if arrow.start in ids and arrow.end in ids:
            neighbours[arrow.start].append(arrow.end)
            neighbours[arrow.end].append(arrow.start)
    by_column: defaultdict[int, list[str]] = defaultdict(list)
    for box in sorted(members, key=lambda each: order[each.id]):
        by_column[columns[box.id]].append(box.id)
    rows = {each: row for column in by_column.values() for row, each in enumerate(column)}
    for sweep in range(SWEEPS):
        for column in sorted(by_column, reverse=bool(sweep % 2)):
            wanted = {
                each: sum(rows[other] for other in neighbours[each]) / len(neighbours[each])
                if neighbours[each]
                else rows[each]
                for each in by_column[column]
            }
            taken = -1
            for each in sorted(by_column[column], key=lambda one: (wanted[one], order[one])):
                taken = rows[each] = max(taken + 1, round(wanted[each]))
    return rows
