"""Contexts of traces in headers, by W3C Trace Context."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamlog.metrics.tracing import TraceContext, context_of, with_context

PARENT = "00-" + "a1" * 16 + "-" + "b2" * 8 + "-01"
NAMES = st.sampled_from(["traceparent", "tracestate", "app", "provenance"])


@given(st.lists(st.tuples(NAMES, st.none() | st.binary(max_size=80)), max_size=5))
def test_a_context_replaces_the_one_before_and_keeps_the_other_headers_in_order(
    pairs: list[tuple[str, bytes | None]],
) -> None:
    context = TraceContext(PARENT, "vendor=1")
    headers = with_context((*pairs,), context)
    assert context_of(headers) == context
    others = [pair for pair in pairs if pair[0] not in {"traceparent", "tracestate"}]
    assert [*headers[2:]] == others
    context_of((*pairs,))  # Whatever the bytes are: no error.


@pytest.mark.parametrize(
    "text",
    [
        "",
        "00",
        PARENT.replace("00-", "ff-", 1),
        PARENT.upper(),
        "00-" + "0" * 32 + "-" + "b2" * 8 + "-01",
        "00-" + "a1" * 16 + "-" + "0" * 16 + "-01",
    ],
)
def test_an_invalid_context_counts_as_none(text: str) -> None:
    assert context_of((("traceparent", text.encode()),)) is None


def test_only_the_flag_says_whether_a_trace_is_sampled() -> None:
    assert TraceContext(PARENT).is_sampled
    assert not TraceContext(PARENT[:-2] + "00").is_sampled
    assert TraceContext(PARENT[:-2] + "03").is_sampled
