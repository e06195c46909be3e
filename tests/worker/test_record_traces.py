"""The spans of records: which records have one, when it ends, and how often a trace begins."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from random import Random

from streamlog.metrics.tracing import TraceContext, context_of
from streamlog.processing.task import TaskId
from streamlog.records.batch import LogRecord
from streamlog.records.record_columns import RecordColumns
from streamlog.worker.record_traces import RecordTraces

TASK, PART = TaskId(0, 1), ("orders", 1)
PARENT = "00-" + "a1" * 16 + "-" + "b2" * 8 + "-"


@dataclass
class FakeSpan:
    context: TraceContext
    parent: TraceContext | None
    attributes: Mapping[str, str | int | bool]
    ended: list[str] = field(default_factory=list)

    def end(self, error: str = "") -> None:
        self.ended.append(error)


class FakeTracer:
    def __init__(self) -> None:
        self.spans: list[FakeSpan] = []

    def begin(
        self,
        name: str,
        attributes: Mapping[str, str | int | bool],
        *,
        parent: TraceContext | None = None,
        links: Sequence[TraceContext] = (),
        is_consumer: bool = False,
    ) -> FakeSpan:
        assert (name, is_consumer, links) == ("process orders", True, (parent,) if parent else ())
        ids = f"{len(self.spans) + 1:032x}-{len(self.spans) + 1:016x}"
        self.spans.append(FakeSpan(TraceContext(f"00-{ids}-01"), parent, attributes))
        return self.spans[-1]

    def close(self) -> None:
        """Has nothing to export."""


def polled(*parents: str) -> RecordColumns:
    headers = [((("traceparent", each.encode()),) if each else ()) for each in parents]
    return RecordColumns.of(
        LogRecord(10 + at, 0, b"k", b"v", each) for at, each in enumerate(headers)
    )


def traces(ratio: float) -> tuple[RecordTraces, FakeTracer]:
    tracer = FakeTracer()
    return RecordTraces(tracer, app_id="shop", ratio=ratio, random=Random(7)), tracer


def test_sampled_records_have_a_span_until_the_task_has_processed_them() -> None:
    spans, tracer = traces(0.0)
    before = polled(PARENT + "01", PARENT + "00", "", "malformed", PARENT + "01")
    after = spans.enter(TASK, {PART: before}, ())[PART]
    offsets = [span.attributes["messaging.kafka.offset"] for span in tracer.spans]
    assert offsets == [10, 14]
    assert [context_of(record.headers) for record in after] == [
        tracer.spans[0].context,
        TraceContext(PARENT + "00"),
        None,
        None,
        tracer.spans[1].context,
    ]
    assert context_of(before[0].headers) == TraceContext(PARENT + "01")
    spans.leave(TASK, {PART: 14})
    assert [span.ended for span in tracer.spans] == [[""], []]
    spans.drop(TASK)
    assert [span.ended for span in tracer.spans] == [[""], ["closed"]]


def test_records_without_a_context_begin_traces_at_the_ratio() -> None:
    spans, tracer = traces(0.01)
    columns = polled(*[""] * 100)
    for _ in range(1_000):
        spans.enter(TASK, {PART: columns}, ())
    assert 850 < len(tracer.spans) < 1_150
    assert all(span.parent is None for span in tracer.spans)


def test_all_records_begin_traces_at_a_ratio_of_one_and_none_behind_a_repartition() -> None:
    spans, tracer = traces(1.0)
    spans.enter(TASK, {PART: polled("", PARENT + "00", "")}, ())
    assert len(tracer.spans) == 2
    spans.enter(TASK, {PART: polled("", "")}, {"orders"})
    assert len(tracer.spans) == 2
