"""Readings of trials: rates, CPU time a record, and ratios with their bars."""

from __future__ import annotations

from benchmarks.connect.lab import Trial
from benchmarks.harness import Reading


def told(
    name: str, trial: Trial, *, bar_ns: float | None = None, least: float | None = None
) -> tuple[Reading, Reading]:
    """Return the rate of a trial, and what a record costs its process."""
    return (
        Reading(name, trial.records_per_s, "records/s", least=least, digits=0),
        Reading(f"{name}, CPU", trial.cpu_ns, "ns a record", bar=bar_ns, digits=0),
    )


def ratio(name: str, ours: Trial, peer: Trial, *, least: float | None = None) -> Reading:
    """Return how many times as fast as a peer ours is, by wall time."""
    return Reading(name, ours.records_per_s / peer.records_per_s, "x", least=least, digits=2)


def cpu_ratio(name: str, ours: Trial, peer: Trial, *, least: float | None = None) -> Reading:
    """Return how many times as fast as a peer ours is, by the CPU time of a record.

    For peers that work on two cores where ours has one thread: the rest of ours serves others.
    """
    return Reading(name, peer.cpu_ns / ours.cpu_ns, "x", least=least, digits=2)
