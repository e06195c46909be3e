"""Tracing: the context of a trace in a record's headers, and what makes spans.

A record carries `traceparent` and `tracestate` as W3C Trace Context names them. Rule: only records
of sampled traces are followed. A context that can't be read counts as none, as the standard asks.
Not done here: the spans themselves (`otel`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple, Protocol

TRACEPARENT: Final = "traceparent"
TRACESTATE: Final = "tracestate"
# The lookaheads are W3C's: version ff and ids of zeros are invalid. The form has no end, and is
# matched from the start: later versions may append fields to those of version 00.
_FORM = re.compile(r"(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")
# Behind version, trace id and span id, each with its hyphen: 2 + 1 + 32 + 1 + 16 + 1.
_FLAGS_AT: Final = 53
STATE_CHARACTERS_MAX: Final = 512
"""A longer `tracestate` is dropped, as W3C Trace Context allows."""

HeaderPairs = tuple[tuple[str, bytes | None], ...]
"""The headers of a record."""


class TraceContext(NamedTuple):
    """The span that a record comes from."""

    traceparent: str
    tracestate: str = ""

    @property
    def is_sampled(self) -> bool:
        """Whether the trace is recorded."""
        return bool(int(self.traceparent[_FLAGS_AT : _FLAGS_AT + 2], 16) & 1)


def context_of(headers: HeaderPairs) -> TraceContext | None:
    """Return the context in a record's headers, sampled or not; None if there is none."""
    parent, state = "", ""
    for name, data in headers:
        if name == TRACEPARENT and data is not None:
            parent = data.decode("ascii", "replace")
        elif name == TRACESTATE and data is not None and len(data) <= STATE_CHARACTERS_MAX:
            state = data.decode("ascii", "replace")
    return TraceContext(parent, state) if _FORM.match(parent) else None


def with_context(headers: HeaderPairs, context: TraceContext) -> HeaderPairs:
    """Return the headers with this context, first; others follow in their order."""
    # The last header of a record in a repartition topic is its provenance, and stays the last.
    own: HeaderPairs = ((TRACEPARENT, context.traceparent.encode()),)
    if context.tracestate:
        own += ((TRACESTATE, context.tracestate.encode()),)
    return own + tuple(pair for pair in headers if pair[0] not in {TRACEPARENT, TRACESTATE})


class OpenSpan(Protocol):
    """A span that has begun."""

    @property
    def context(self) -> TraceContext:
        """The context that records made within the span carry."""

    def end(self, error: str = "") -> None:
        """End the span; `error` is the type of a failure."""


class Tracer(Protocol):
    """Makes spans; any thread may call it."""

    def begin(
        self,
        name: str,
        attributes: Mapping[str, str | int | bool],
        *,
        parent: TraceContext | None = None,
        links: Sequence[TraceContext] = (),
        is_consumer: bool = False,
    ) -> OpenSpan:
        """Begin a span; without a parent it begins a trace, which is recorded."""

    def close(self) -> None:
        """Export what has ended. May block for seconds: not for an event loop."""
