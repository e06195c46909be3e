"""FoldedReader: the windows of one task of a stage that is lowered, folded behind the shuffle.

Tasks upstream have put their records into windows and folded what they had at a time (`foldable`);
Spark brings the pieces to the task they are for, on disk if memory is short, by the end of the
first window in each. Here pieces are folded together as far as no other one may have more of their
windows, and these come out one after the other. Rule of the file: in memory are the windows that
pieces at hand have begun, a row for each key.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pyarrow as pa

from spark_bridge.foldable import PIECE, SOURCE
from spark_bridge.folding import Folding
from spark_bridge.window_grid import WindowGrid
from streamlog.history.folded import SourceEnd
from streamlog.history.lowering import NotLowered
from streamlog.history.plan import Plan, Stage
from streamlog.history.staging import sources_of
from streamlog.processing.windowed import FoldedWindow
from streamlog.windows.emit import Source

if TYPE_CHECKING:
    from streamlog.topology import WholeNumbers

HELD_ROWS = 200_000
"""So many rows of pieces are folded together at least."""
PART_ROWS = 20_000
"""Of a window at a time."""

_decode = msgspec.msgpack.Decoder(tuple[int, ...]).decode


def numbers_of(stage: Stage) -> WholeNumbers:
    """What the states of a stage that is lowered are.

    Raises:
        NotLowered: it is not.
    """
    if stage.lowering is None:
        raise NotLowered(f"stage {stage.number} is not lowered")
    return stage.lowering.numbers(stage.subtopology)


class FoldedReader:
    """The rows that are for one task of a stage that is lowered, in order."""

    def __init__(self, plan: Plan, stage: Stage, batches: Iterator[pa.RecordBatch]) -> None:
        if stage.lowering is None:
            raise NotLowered(f"stage {stage.number} is not lowered")
        self._sources = sources_of(stage.subtopology, stage.lowering.topic, plan.counts)
        self._folding = Folding(numbers_of(stage))
        self._grid = WindowGrid(stage.lowering.aggregate(stage.subtopology).windows)
        self._rows = _rows(batches)
        self._next = next(self._rows, None)
        if self._next is None:
            raise RuntimeError("Spark has started a task of a history without its first row")
        self.partition: int = self._next["task"]
        """Of the task."""

    def read_ends(self) -> Mapping[Source, SourceEnd]:
        """How far each source has come; to be called before `windows`.

        Raises:
            NotLowered: nothing was heard of one of them.
        """
        ends: dict[Source, SourceEnd] = {}
        while (row := self._next) is not None and row["kind"] != PIECE:
            if row["kind"] == SOURCE:
                ends[self._sources[row["rank"]]] = SourceEnd(*_decode(row["value"]))
            self._take()
        if missing := [source for source in self._sources if source not in ends]:
            raise NotLowered(f"nothing was heard of {missing[0]}")
        return {source: ends[source] for source in self._sources}

    def windows(self) -> Iterator[FoldedWindow]:
        """All windows in the order of their ends, their rows by key; large ones in parts.

        Raises:
            NotLowered: a sum does not fit into 64 bits.
        """
        held = self._folding.schema.empty_table()
        while self._next is not None:
            held = self._more(held)
            below = None if self._next is None else self._next["turn"]
            held = self._folding.folded(held, ["window", "key"])
            if below is None:
                yield from self._whole(held)
                return
            is_whole = self._ends(held) < below
            yield from self._whole(held.filter(pa.array(is_whole)))
            held = held.filter(pa.array(~is_whole))

    def _more(self, held: pa.Table) -> pa.Table:
        """With so many pieces more that it is worth folding them: twice as many, if they stay."""
        wanted = max(HELD_ROWS, 2 * held.num_rows)
        pieces, count = [*held.to_batches()], held.num_rows
        while self._next is not None and count < wanted:
            pieces.append(self._folding.piece(self._next["value"]))
            count += pieces[-1].num_rows
            self._take()
        return pa.Table.from_batches(pieces, self._folding.schema)

    def _whole(self, rows: pa.Table) -> Iterator[FoldedWindow]:
        if not rows.num_rows:
            return
        rows = rows.sort_by([("window", "ascending"), ("key", "ascending")]).combine_chunks()
        windows = rows["window"].to_numpy()
        borders = [0, *(np.flatnonzero(np.diff(windows)) + 1).tolist(), len(windows)]
        raws, timestamps = rows["key"].to_pylist(), rows["timestamp"].to_numpy().tolist()
        states = self._folding.states(rows)
        for low, end in pairwise(borders):
            bounds = self._grid.bounds(int(windows[low]))
            for at in range(low, end, PART_ROWS):
                part = slice(at, min(at + PART_ROWS, end))
                yield FoldedWindow(*bounds, raws[part], timestamps[part], states[part])

    def _ends(self, rows: pa.Table) -> Any:  # noqa: ANN401 - NumPy's
        return self._grid.ends(rows["window"].to_numpy())

    def _take(self) -> None:
        self._next = next(self._rows, None)
        if self._next is not None and self._next["task"] != self.partition:
            raise RuntimeError(
                "Spark has put rows of two tasks of a history into one: is a plugin, or a setting, "
                "changing its repartitioning?"
            )


def _rows(batches: Iterator[pa.RecordBatch]) -> Iterator[dict[str, Any]]:
    for batch in batches:
        yield from batch.select(["task", "kind", "turn", "rank", "value"]).to_pylist()
