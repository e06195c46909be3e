"""Tests of an app: the same Task as in a worker, without a log, a disk or a clock."""

from __future__ import annotations

from streamlog.testing.driver import Rehearsal, TestDriver
from streamlog.testing.driver_topics import TestTopicIn, TestTopicOut
from streamlog.testing.simulation import Simulation, SimulationReport

__all__ = [
    "Rehearsal",
    "Simulation",
    "SimulationReport",
    "TestDriver",
    "TestTopicIn",
    "TestTopicOut",
]
