"""Prometheus: a registry as text (format 0.0.4, which every version of Prometheus reads).

A broker with 10,000 partitions has 100,000 lines. They are written in slices, between which the
event loop serves requests: a scrape delays none of them by more than `SLICE_S` and one line.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterator
from time import perf_counter

from streamlog.metrics.instruments import Histogram
from streamlog.metrics.registry import Metric, Registry, Summary

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
SLICE_S = 0.002
"""How long lines are written until the event loop may serve others."""
LINES_PER_LOOK = 64
"""Lines between two looks at the clock."""


def lines(metric: Metric) -> Iterator[str]:
    """Yield the lines of a metric, each with its line break."""
    yield f"# HELP {metric.name} {_escape_help(metric.help)}\n# TYPE {metric.name} {metric.kind}\n"
    for values, value in metric.points:
        labels = ",".join(
            f'{label}="{_escape(text)}"' for label, text in zip(metric.labels, values, strict=True)
        )
        if isinstance(value, Histogram):
            yield from _histogram_lines(metric.name, labels, value)
        elif isinstance(value, Summary):
            yield from _summary_lines(metric.name, labels, value)
        elif labels:
            yield f"{metric.name}{{{labels}}} {_text(value)}\n"
        else:
            yield f"{metric.name} {_text(value)}\n"


async def exposition(registry: Registry, now_s: Callable[[], float] = perf_counter) -> bytes:
    """Return all metrics as text; lets the event loop run in between.

    `now_s` is a clock in seconds.
    """
    await registry.prepare()
    written: list[bytes] = []
    found: list[str] = []
    deadline_s = now_s() + SLICE_S
    for metric in registry.steps():
        # Before its lines, too: computing the metric may have taken the time.
        if now_s() >= deadline_s:
            await asyncio.sleep(0)
            deadline_s = now_s() + SLICE_S
        for line in () if metric is None else lines(metric):
            found.append(line)
            if len(found) % LINES_PER_LOOK == 0 and now_s() >= deadline_s:
                # Encoded slice by slice: megabytes at the end would be a slice of their own.
                written.append("".join(found).encode())
                found.clear()
                await asyncio.sleep(0)
                deadline_s = now_s() + SLICE_S
    written.append("".join(found).encode())
    return b"".join(written)


def _histogram_lines(name: str, labels: str, histogram: Histogram) -> Iterator[str]:
    comma = "," if labels else ""
    # A copy: the sum of the buckets and `_count` have to agree, whatever is counted meanwhile.
    counts, total = [*histogram.counts], histogram.sum
    below = 0
    for bound, count in zip((*histogram.bounds, math.inf), counts, strict=True):
        below += count
        yield f'{name}_bucket{{{labels}{comma}le="{_text(bound)}"}} {below}\n'
    braces = f"{{{labels}}}" if labels else ""
    yield f"{name}_sum{braces} {_text(total)}\n{name}_count{braces} {below}\n"


def _summary_lines(name: str, labels: str, summary: Summary) -> Iterator[str]:
    comma = "," if labels else ""
    for share, value in summary.quantiles.items():
        yield f'{name}{{{labels}{comma}quantile="{share}"}} {_text(value)}\n'
    braces = f"{{{labels}}}" if labels else ""
    yield f"{name}_sum{braces} {_text(summary.sum)}\n{name}_count{braces} {summary.count}\n"


def _text(value: float) -> str:
    if value == math.inf:
        return "+Inf"
    if value == -math.inf:
        return "-Inf"
    # `repr` is the shortest text that reads back as the same number; Prometheus reads 1e-05, and
    # NaN in any case.
    return "NaN" if value != value else repr(value)  # noqa: PLR0124 - the test for NaN


def _escape(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _escape_help(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n")
