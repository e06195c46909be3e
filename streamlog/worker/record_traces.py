"""Record traces: the spans of records that a worker's tasks process.

Each record of a sampled trace gets a `process` span, a child of the span that its headers name, by
OpenTelemetry's conventions for messaging; what is made of the record carries the context of that
span. The span begins when the record arrives, and ends when the task has processed it. A record of
a source without a context begins a trace with the probability `ratio`.

Rules: records behind a repartition topic begin no trace, because they were asked upstream. The
columns that were polled are not changed: agents and other tasks read them too.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from random import Random

from streamlog.errors import ConfigError
from streamlog.metrics.build_info import install_command
from streamlog.metrics.tracing import (
    TRACEPARENT,
    OpenSpan,
    TraceContext,
    Tracer,
    context_of,
    with_context,
)
from streamlog.processing.task import TaskId
from streamlog.record import Headers
from streamlog.records.record_columns import RecordColumns
from streamlog.worker.program import Program

OPEN_MAX = 10_000
"""The open spans of an input; a span beyond ends when it begins."""


class RecordTraces:
    """The spans of a worker."""

    def __init__(
        self, tracer: Tracer, *, app_id: str, ratio: float, random: Random | None = None
    ) -> None:
        """`ratio`: of the records without a context, the share that begins a trace; 0 to 1."""
        self._tracer = tracer
        self._app_id = app_id
        self._ratio = ratio
        self._random = random or Random()  # noqa: S311 - a sample, not a secret
        self._until_next = self._draw()
        self._open: dict[tuple[TaskId, tuple[str, int]], deque[tuple[int, OpenSpan]]] = {}

    def enter(
        self,
        task_id: TaskId,
        arrived: Mapping[tuple[str, int], RecordColumns],
        internal: Collection[str],
    ) -> dict[tuple[str, int], RecordColumns]:
        """Begin the spans of records that a task is given; returns the records with new contexts.

        Records of the `internal` topics begin no traces.
        """
        return {
            part: self._enter(task_id, part, columns, begins=part[0] not in internal)
            for part, columns in arrived.items()
        }

    def leave(self, task_id: TaskId, offsets: Mapping[tuple[str, int], int]) -> None:
        """End the spans of records before these offsets: the task has processed them."""
        for part, offset in offsets.items():
            spans = self._open.get((task_id, part))
            while spans and spans[0][0] < offset:
                spans.popleft()[1].end()

    def drop(self, task_id: TaskId) -> None:
        """End all spans of a task that is closed; records that it had not taken are read again."""
        for key in [key for key in self._open if key[0] == task_id]:
            for _, span in self._open.pop(key):
                span.end("closed")

    def spans_of(
        self, task_id: TaskId
    ) -> Callable[[str, TraceContext | None, Sequence[TraceContext]], TraceContext]:
        """Return what makes the spans of a task's results (`trace_links`)."""
        return partial(self._link, str(task_id))

    def _link(
        self, task: str, node: str, parent: TraceContext | None, links: Sequence[TraceContext]
    ) -> TraceContext:
        attributes = {"streamlog.node": node, "streamlog.task": task, "streamlog.app": self._app_id}
        if parent is not None and not parent.is_sampled:
            return parent
        span = self._tracer.begin(f"{node} result", attributes, parent=parent, links=links)
        span.end()
        return span.context

    def _enter(
        self, task_id: TaskId, part: tuple[str, int], columns: RecordColumns, *, begins: bool
    ) -> RecordColumns:
        parents = self._parents(columns, begins=begins)
        if not parents:
            return columns
        changed: RecordColumns = columns[:]
        headers: list[Headers] = [()] * len(columns)
        if columns.headers is not None:
            headers = [*columns.headers]
        spans = self._open.setdefault((task_id, part), deque())
        for at, parent in parents.items():
            offset = columns.offsets[at]
            span = self._tracer.begin(
                f"process {part[0]}",
                {
                    "messaging.system": "kafka",
                    "messaging.operation.name": "process",
                    "messaging.operation.type": "process",
                    "messaging.destination.name": part[0],
                    "messaging.destination.partition.id": str(part[1]),
                    "messaging.consumer.group.name": self._app_id,
                    "messaging.kafka.offset": offset,
                    "streamlog.task": str(task_id),
                },
                parent=parent,
                links=() if parent is None else (parent,),
                is_consumer=True,
            )
            headers[at] = with_context(headers[at], span.context)
            if len(spans) < OPEN_MAX:
                spans.append((offset, span))
            else:
                span.end()
        changed.headers = headers
        return changed

    def _parents(self, columns: RecordColumns, *, begins: bool) -> dict[int, TraceContext | None]:
        """Return the records to trace by index, with the context of each; None: a new trace."""
        found: dict[int, TraceContext | None] = {}
        known: set[int] = set()
        for at, headers in enumerate(columns.headers or ()):
            if not any(name == TRACEPARENT for name, _ in headers):
                continue
            context = context_of(headers)
            if context is not None:
                known.add(at)
                if context.is_sampled:
                    found[at] = context
        if begins and self._ratio > 0:
            at = self._until_next
            while at < len(columns):
                if at not in known:
                    found[at] = None
                at += 1 + self._draw()
            self._until_next = at - len(columns)
        return dict(sorted(found.items()))

    def _draw(self) -> int:
        """Return how many records to leave out until the next one begins a trace."""
        # Geometric: as if each record were drawn by itself, without a draw for each.
        if self._ratio >= 1 or self._ratio <= 0:
            return 0
        return int(math.log(1 - self._random.random()) / math.log(1 - self._ratio))


@asynccontextmanager
async def tracing(program: Program, instance_id: str) -> AsyncIterator[RecordTraces | None]:
    """Provide the traces of a program while the block lasts; None if it has none.

    `instance_id` tells this worker from others of the app.

    Raises:
        ConfigError: the extra `[otel]` is not installed.
    """
    if program.trace_ratio is None:
        yield None
        return
    try:
        from streamlog.metrics.otel import OtelTracer  # noqa: PLC0415 - the extra [otel]
    except ImportError as error:
        raise ConfigError(
            f"trace_ratio needs OpenTelemetry ({error}): {install_command('otel')}"
        ) from error
    tracer = OtelTracer(program.app_id, instance_id)
    try:
        yield RecordTraces(tracer, app_id=program.app_id, ratio=program.trace_ratio)
    finally:
        await asyncio.to_thread(tracer.close)
