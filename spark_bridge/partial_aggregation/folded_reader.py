"""FoldedReader: reads and folds the rows of one task of a lowered stage, after the shuffle."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from spark_bridge.partial_aggregation.column_folding import Folding, compacted, contents
from spark_bridge.partial_aggregation.foldable_rows import PIECE, SOURCE
from spark_bridge.partial_aggregation.window_grid import WindowGrid
from streamlog.history.lowering import NotLowered
from streamlog.history.plan import Plan, Stage
from streamlog.history.stage_task import SourceEnd
from streamlog.history.staging import sources_of
from streamlog.nodes.stream_nodes import WholeNumbers
from streamlog.processing.windows.windowed_aggregate import FoldedWindow
from streamlog.windows.emit import Source

HELD_ROWS = 200_000
"""The least number of rows from which pieces are folded together."""
PART_ROWS = 20_000
"""The most rows of a window that are yielded at a time."""

_decode = msgspec.msgpack.Decoder(tuple[int, ...]).decode


def numbers_of(stage: Stage) -> WholeNumbers:
    """Return the columns of a lowered stage's states.

    Raises:
        NotLowered: the stage is not lowered.
    """
    if stage.lowering is None:
        raise NotLowered(f"stage {stage.number} is not lowered")
    return stage.lowering.numbers(stage.subtopology)


class FoldedReader:
    """Reads and folds the rows of one task of a lowered stage, in order."""

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
        """Partition of the task."""

    def read_ends(self) -> Mapping[Source, SourceEnd]:
        """Return how far each source has come; call it before `windows`.

        Raises:
            NotLowered: a source has no row.
        """
        # Rows of sources have the turn BEFORE_ALL_MS, so Spark sorts them before all pieces.
        ends: dict[Source, SourceEnd] = {}
        while (row := self._next) is not None and row["kind"] != PIECE:
            if row["kind"] == SOURCE:
                ends[self._sources[row["rank"]]] = SourceEnd(*_decode(row["value"]))
            self._take()
        if missing := [source for source in self._sources if source not in ends]:
            raise NotLowered(f"source {missing[0]} has no row")
        return {source: ends[source] for source in self._sources}

    def windows(self) -> Iterator[FoldedWindow]:
        """Yield all windows in the order of their ends, rows by key; large windows in parts.

        Raises:
            NotLowered: a sum does not fit into 64 bits.
        """
        held = self._folding.schema.empty_table()
        while self._next is not None:
            held = self._more(held)
            below = None if self._next is None else self._next["turn"]
            held = self._folding.folded(held, ["window"], sorts=True)
            if below is None:
                yield from self._whole(held)
                return
            # Pieces are sorted by the end of their first window, here below 300 for the next one.
            # 1. No later piece has rows of a window that ends before 300: such windows are whole.
            # 2. The window that ends at 300 may have rows in both: it is held, hence `<`.
            is_whole = self._ends(held) < below
            yield from self._whole(held.filter(pa.array(is_whole)))
            held = compacted(held.filter(pa.array(~is_whole)))

    def _more(self, held: pa.Table) -> pa.Table:
        """Add pieces until folding pays: at least until the number of rows has doubled."""
        # Folding costs a pass over the held rows too: by doubling, each row is folded a few times
        # and not once per piece.
        wanted = max(HELD_ROWS, 2 * held.num_rows)
        pieces, count = [*held.to_batches()], held.num_rows
        while self._next is not None and count < wanted:
            pieces.append(self._folding.piece(self._next["value"]))
            count += pieces[-1].num_rows
            self._take()
        return pa.Table.from_batches(pieces, self._folding.schema)

    def _whole(self, rows: pa.Table) -> Iterator[FoldedWindow]:
        """Yield windows; the rows come in the order of (window, key)."""
        if not rows.num_rows:
            return
        windows = rows["window"].to_numpy()
        borders = [0, *(np.flatnonzero(np.diff(windows)) + 1).tolist(), len(windows)]
        raws, timestamps = contents(rows["key"]), rows["timestamp"].to_numpy().tolist()
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
                "Spark has put rows of two tasks of a history into one partition: check for a "
                "plugin or setting that changes how it repartitions"
            )


def _rows(batches: Iterator[pa.RecordBatch]) -> Iterator[dict[str, Any]]:
    for batch in batches:
        yield from batch.select(["task", "kind", "turn", "rank", "value"]).to_pylist()
