"""Trace links: which sampled records a result of a stateful node comes from.

Headers, and so the context of a trace, pass through stateless nodes by themselves. A window, an
aggregation or a join makes one result of many records. `NoteStep`, before such a node, remembers
the newest sampled records of each key; `LinkStep`, behind it, gives a result a span of its own with
links to them. Both exist only in tasks whose app has traces.

Rules of the module:

1. Keys, values, timestamps and order are the same with traces and without; only headers differ.
2. What is remembered is bounded, and part of the task's progress: a restart loses no link.

A record of a stream that is joined with a table is remembered by no node: its own context passes
through, and the result is linked to the records of the table's row.
"""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import copy
from typing import Final, TypeAlias

from streamlog.durations import when_ms
from streamlog.metrics.tracing import TraceContext, context_of, with_context
from streamlog.nodes.stream_nodes import TableJoin
from streamlog.processing.column_batch import Batch
from streamlog.processing.joins.stream_join import JoinSideStep, StreamJoinStep
from streamlog.processing.joins.stream_table_join import TableJoinStep, TableStep
from streamlog.processing.joins.table_table_join import (
    ForeignKeyJoinStep,
    ForeignKeyRowsStep,
    TableSideStep,
    TableTableJoinStep,
)
from streamlog.processing.processor_step import ProcessorStep
from streamlog.processing.step import Step
from streamlog.processing.tables.aggregate import AggregateStep
from streamlog.processing.tables.suppress import SuppressStep
from streamlog.processing.tables.ttl_aggregate import AtCommitsStep
from streamlog.processing.windows.count_windows import CountWindowsStep
from streamlog.processing.windows.windowed_step import WindowedStep
from streamlog.record import Headers, Windowed
from streamlog.serdes.erased_types import JsonValue
from streamlog.topology import Subtopology

SECTION: Final = "traces"
"""The section of the progress that holds the contributors."""
KEYS_MAX = 200
"""The keys of a node whose contributors are remembered; the one noted longest ago goes first."""
LINKS_MAX = 8
"""The contributors of a key, and the links of a result: the newest."""

MakeSpan: TypeAlias = Callable[[str, TraceContext | None, Sequence[TraceContext]], TraceContext]
"""Makes the span of a result, by node, parent and links; returns its context."""

_SIDES = (JoinSideStep, TableSideStep)
_STATEFUL = (
    WindowedStep,
    CountWindowsStep,
    AggregateStep,
    AtCommitsStep,
    SuppressStep,
    TableStep,
    TableJoinStep,
    StreamJoinStep,
    TableTableJoinStep,
    ForeignKeyJoinStep,
    ForeignKeyRowsStep,
    ProcessorStep,
)


class Contributors:
    """The newest sampled records of each key of one node, with their timestamps."""

    def __init__(self) -> None:
        self._found: OrderedDict[str, list[tuple[int, TraceContext]]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._found)

    def add(self, key: object, timestamp_ms: int, context: TraceContext) -> None:
        """Remember a record."""
        # As text: a key need not be hashable, and the progress that keeps it is JSON.
        name = repr(key)
        known = self._found.setdefault(name, [])
        if (timestamp_ms, context) not in known:
            known.append((timestamp_ms, context))
            del known[:-LINKS_MAX]
        self._found.move_to_end(name)
        if len(self._found) > KEYS_MAX:
            self._found.popitem(last=False)

    def of(self, key: object) -> list[TraceContext]:
        """Return the records of a key; of a window, those with timestamps in it."""
        known = self._found.get(repr(key))
        if known is not None:
            return [context for _, context in known]
        if not isinstance(key, Windowed):
            return []
        start_ms, end_ms = when_ms(key.start), when_ms(key.end)
        known = self._found.get(repr(key.key), [])
        return [context for ms, context in known if start_ms <= ms <= end_ms]

    def to_data(self) -> dict[str, object]:
        """Return what a restart needs."""
        return {
            "links": [
                [name, [[ms, *context] for ms, context in known]]
                for name, known in self._found.items()
            ]
        }

    def load(self, data: Mapping[str, JsonValue]) -> None:
        """Restore what `to_data` returned."""
        for name, known in data["links"]:
            self._found[name] = [(ms, TraceContext(*context)) for ms, *context in known]


class NoteStep(Step):
    """Remembers the sampled records that a stateful node is about to take."""

    def __init__(self, name: str, contributors: Contributors) -> None:
        super().__init__(name)
        self._contributors = contributors

    def process(self, batch: Batch) -> None:
        """Remember the records with a sampled context."""
        headers = batch.origin.headers
        if headers is None:
            return
        for at, row in enumerate(batch.rows):
            context = context_of(headers[row])
            if context is not None and context.is_sampled:
                self._contributors.add(batch.keys[at], batch.timestamps[at], context)


class LinkStep(Step):
    """Gives results of a stateful node spans with links to their records."""

    def __init__(self, step: Step, contributors: Contributors, make_span: MakeSpan) -> None:
        super().__init__(step.name)
        self.children = step.children
        self._contributors = contributors
        self._make_span = make_span

    def process(self, batch: Batch) -> None:
        """Forward the batch, with contexts in its headers where there are contributors."""
        if not len(self._contributors):
            self.forward(batch)
            return
        origin = batch.origin
        headers: list[Headers] = [()] * len(origin.offsets)
        if origin.headers is not None:
            headers = list(origin.headers)
        linked: dict[int, list[TraceContext]] = {}
        for at, row in enumerate(batch.rows):
            if found := self._contributors.of(batch.keys[at]):
                linked.setdefault(row, []).extend(found)
        if not linked:
            self.forward(batch)
            return
        for row, found in linked.items():
            parent = context_of(headers[row])
            # A dict drops repetitions and keeps the order, so the cut leaves the newest.
            links = [each for each in dict.fromkeys(found) if each != parent][-LINKS_MAX:]
            # A record that continues its own trace, and that met no other one, needs no span.
            if links:
                headers[row] = with_context(headers[row], self._make_span(self.name, parent, links))
        traced = copy(origin)
        traced.headers = headers
        result = copy(batch)
        result.origin = traced
        self.forward(result)


def insert_links(
    sub: Subtopology,
    steps: Mapping[str, Step],
    entries: Iterable[list[Step]],
    make_span: MakeSpan,
) -> dict[str, Contributors]:
    """Insert steps that note and link around every stateful step of a task.

    Returns:
        By node, the records that the restart of the task needs.
    """
    # Whose records a node's results come from, where they are not its own.
    owners = {
        side: n.name for n in sub.nodes for side in n.parents if isinstance(steps[side], _SIDES)
    }
    owners |= {node.name: node.table for node in sub.nodes if isinstance(node, TableJoin)}
    found: defaultdict[str, Contributors] = defaultdict(Contributors)

    def of(step: Step) -> Contributors:
        return found[owners.get(step.name, step.name)]

    fans = [step.children for step in steps.values() if not isinstance(step, JoinSideStep)]
    # Before the loop below, in which a `LinkStep` takes over the list of its step's children: the
    # `NoteStep`s of nodes further down have to be in that list.
    for fan in (*fans, *entries):
        fan[:] = [
            each
            for child in fan
            for each in (
                (NoteStep(child.name, of(child)), child)
                if isinstance(child, (*_SIDES, *_STATEFUL)) and not isinstance(child, TableJoinStep)
                else (child,)
            )
        ]
    for step in steps.values():
        if isinstance(step, _STATEFUL):
            step.children = [LinkStep(step, of(step), make_span)] if step.children else []
    return dict(found)
