"""Tests of an app: the same Task as in a worker, without a log, a disk or a clock."""

from __future__ import annotations

from streamlog.testing.connector_doubles import TestSink, TestSource
from streamlog.testing.connector_lives import CheckFailed, Outside
from streamlog.testing.driver import Rehearsal, TestDriver
from streamlog.testing.driver_topics import TestTopicIn, TestTopicOut
from streamlog.testing.simulation import Simulation, SimulationReport
from streamlog.testing.sink_check import check_sink
from streamlog.testing.source_check import check_source

__all__ = [
    "CheckFailed",
    "Outside",
    "Rehearsal",
    "Simulation",
    "SimulationReport",
    "TestDriver",
    "TestSink",
    "TestSource",
    "TestTopicIn",
    "TestTopicOut",
    "check_sink",
    "check_source",
]
