"""The engine's table: medians, how many times as much each peer needs, and the bars.

Ratios are of medians of the same session, and hold on any machine; nanoseconds only on the
project's own ones, when nothing else runs there. Kafka Streams has no bar of its own: the ratio is
held against the last one of this machine (`compared`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from statistics import median

from rich.table import Table

from benchmarks.compared import LOSS_MAX, Kept
from benchmarks.engine.contest import Cost
from benchmarks.engine.participants import FAUST, OURS, QUIX, STREAMS, WAX


@dataclass(frozen=True, slots=True)
class Bar:
    """What one of our variants may cost, and how many times as much a peer has to need."""

    cpu_ns: int
    times: dict[str, float] = field(default_factory=dict)
    against: str | None = None
    """The job of the peers, if it is another one."""


BARS = {
    ("j1", "typed"): Bar(1_200, {QUIX: 7, WAX: 3.5, FAUST: 50}),
    ("j1", "dicts"): Bar(1_900, {QUIX: 6}),
    ("j2", "built-in"): Bar(2_000, {QUIX: 20, WAX: 2.5, FAUST: 50}),
    ("j2", "dicts"): Bar(4_500, {QUIX: 9}),
    ("j2-final", "built-in"): Bar(1_300, {QUIX: 30}),
    ("j2-commit", "built-in"): Bar(1_300, {QUIX: 30}, "j2-final"),
    ("agent", "typed"): Bar(2_500),
    ("j3", "typed"): Bar(2_800, {QUIX: 8, WAX: 2.5, FAUST: 50}),
}
TITLES = {
    "j1": "J1 filter, map, produce",
    "j2": "J2 count and sum per window, every update",
    "j2-final": "J2 count and sum per window, final rows",
    "j2-commit": "J2 count and sum per window, newest rows per commit",
    "agent": "J1 as an agent, by hand",
    "j3": "J3 stream-table join",
}


def costs_table(costs: list[Cost], before: Mapping[str, Kept]) -> Table:
    """A row for every participant and job; `before` has the last figures of this machine."""
    medians = _medians(costs)
    printed = Table(title="worker process, CPU ns a record, log to log", title_justify="left")
    for name in ("job", "by"):
        printed.add_column(name)
    for name in ("runs", "records", "median", "range"):
        printed.add_column(name, justify="right")
    printed.add_column("bars", justify="right", no_wrap=True)
    for (job, by, variant), runs in _grouped(costs).items():
        all_ns = [run.cpu_ns for run in runs]
        printed.add_row(
            TITLES[job],
            f"{by}, {variant}" if variant else by,
            str(len(runs)),
            f"{runs[0].records:,}",
            f"{median(all_ns):,.0f}",
            f"{min(all_ns):,.0f} - {max(all_ns):,.0f}",
            "\n".join(_bars(job, variant, medians, before) if by == OURS else ()),
        )
    return printed


def _grouped(costs: list[Cost]) -> dict[tuple[str, str, str], list[Cost]]:
    grouped: dict[tuple[str, str, str], list[Cost]] = defaultdict(list)
    for cost in costs:
        grouped[cost.job, cost.participant, cost.variant].append(cost)
    return grouped


def _medians(costs: list[Cost]) -> dict[tuple[str, str, str], float]:
    return {key: median(run.cpu_ns for run in runs) for key, runs in _grouped(costs).items()}


def _bars(
    job: str,
    variant: str,
    medians: dict[tuple[str, str, str], float],
    before: Mapping[str, Kept],
) -> Iterator[str]:
    """Nanoseconds first, then the peers that were there."""
    bar, own_ns = BARS[job, variant], medians[job, OURS, variant]
    yield f"{bar.cpu_ns:,} ns {_held(own_ns <= bar.cpu_ns)}"
    for peer, least in bar.times.items():
        if (theirs := medians.get((bar.against or job, peer, ""))) is not None:
            times = theirs / own_ns
            yield f"{peer} {times:.1f} x of {least:g} x {_held(times >= least)}"
    if (theirs := medians.get((job, STREAMS, ""))) is not None:
        times = theirs / own_ns
        last_ns = [before.get(f"{job} {by}") for by in (STREAMS, f"{OURS} {variant}")]
        yield f"{STREAMS} {times:.1f} x {_beside_last(times, last_ns)}".rstrip()


def _beside_last(times: float, last_ns: list[Kept | None]) -> str:
    """Compare with the last figures of the peer and ours, which decide: a JVM has no fixed pace."""
    theirs, ours = last_ns
    if theirs is None or ours is None:
        return ""
    last = theirs[0] / ours[0]
    return f"after {last:.1f} x {_held(times >= last * (1 - LOSS_MAX))}"


def _held(holds: bool) -> str:  # noqa: FBT001 - the one thing it says
    return "holds" if holds else "missed"
