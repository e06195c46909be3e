"""All golden cases as one app, so that one history runs them all.

A case states the rows that its inputs give one at a time. A history gets all inputs at once, as a
worker after a long pause does, and takes them in time order. So it is compared with the test driver
that got everything at once; where the driver still gives the rows of the case, the history must
give them, too.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from streamlog import App
from streamlog.client.admin import NewTopic
from streamlog.history.staging import read_segment
from streamlog.history.task_run import FinishedTask
from streamlog.log import Log
from streamlog.records.batch import LogRecord
from streamlog.replace import replace
from streamlog.snapshots import SnapshotStore
from tests.equality.programs import Program
from tests.golden.adapter import Adapter
from tests.golden.compare import Case, Row, differing, expected_rows
from tests.golden.runners import row_of
from tests.worker.processes import still

PARTITIONS = 1


def golden_cases() -> list[Case]:
    """Return the cases with a topology; none if STREAMLOG_GOLDEN is not set."""
    path = os.environ.get("STREAMLOG_GOLDEN")
    cases = json.loads(Path(path).read_text())["cases"] if path else []
    return [case for case in cases if "fact" not in case]


def renamed(case: Case) -> Case:
    """Return the case with its id in front of node names, which are unique in an app."""

    def name(node: str) -> str:
        return f"{case['id']}-{node}"

    found = []
    for node in case["topology"]:
        of = node.get("of", [])
        whole: dict[str, Any] = {
            **node,
            "id": name(node["id"]),
            "of": name(of) if isinstance(of, str) else [name(each) for each in of],
        }
        if isinstance(node.get("window"), str):
            whole["window"] = name(node["window"])
        found.append(whole)
    return {**case, "topology": found}


class Output(NamedTuple):
    """A topic to which a case writes."""

    case: Case
    name: str
    """The topic's name in the case."""
    topic: Any


class GoldenApp:
    """The app of all cases."""

    def __init__(self, cases: Sequence[Case]) -> None:
        self._cases = cases
        app = App("golden")
        self.program = Program(app)
        self.outputs: list[Output] = []
        self._adapters = []
        for case in cases:
            adapter = Adapter(renamed(case), app, prefix=f"{case['id']}-", partitions=PARTITIONS)
            self._adapters.append(adapter)
            self.outputs += [Output(case, name, adapter.topics[name]) for name in adapter.outputs]
        self.program.outputs = [output.topic for output in self.outputs]
        written = {topic.name for topic in self.program.outputs}
        self.program.inputs = {name: PARTITIONS for name in app.topics if name not in written}

    def fed(self) -> list[tuple[Any, bytes | None, bytes | None, int]]:
        """Return topic, key, value and time of every record, in the order of each case."""
        return [
            (adapter.topics[fed["topic"]], *encoded(adapter, fed), fed["ts"])
            for case, adapter in zip(self._cases, self._adapters, strict=True)
            for fed in case["inputs"]
            if "control" not in fed
        ]

    async def fill(self, url: str) -> None:
        """Write the inputs."""
        async with Log.open(url) as log:
            marks = await still(log)
            await log.admin().create_topics(
                [NewTopic(n, count, configs=marks) for n, count in self.program.inputs.items()]
            )
            async with log.producer() as producer:
                for topic, key, value, at_ms in self.fed():
                    await producer.send(topic.name, value, key=key, timestamp_ms=at_ms, partition=0)
                await producer.flush()

    def driven(self) -> list[list[LogRecord]]:
        """Return the driver's records of each output, in order."""
        test = self.program.app.test()
        for topic, key, value, at_ms in self.fed():
            test.topic(topic.name).append(value, key=key, timestamp_ms=at_ms, partition=0)
        with test:
            return [
                [record for _, record in test.topic(output.topic.name).arrivals]
                for output in self.outputs
            ]

    @staticmethod
    def place(directory: Path) -> SnapshotStore:
        """Return the snapshot store of a history that runs in this directory."""
        return SnapshotStore(str(directory / "snapshots" / "one"))

    def staged(self, tasks: Sequence[FinishedTask], place: SnapshotStore) -> list[list[LogRecord]]:
        """Return the staged records of each output, in order."""
        found: dict[str, list[LogRecord]] = {}
        for part in (part for task in tasks for part in task.staged):
            with place.checked(part) as path:
                for batch in read_segment(path):
                    found.setdefault(part.topic, []).extend(batch.records())
        return [found.get(output.topic.name, []) for output in self.outputs]

    def passed(self, found: Sequence[Sequence[LogRecord]]) -> set[str]:
        """Return the ids of cases whose expected rows are found, regardless of when they came."""
        rows: dict[str, list[Row]] = {case["id"]: [] for case in self._cases}
        for output, records in zip(self.outputs, found, strict=True):
            rows[output.case["id"]] += [
                row_of(output.name, output.topic.decoded(record, 0), None) for record in records
            ]
        return {
            case["id"]
            for case in self._cases
            if "expect" in case and self._difference(case, rows[case["id"]]) is None
        }

    def _difference(self, case: Case, rows: Sequence[Row]) -> str | None:
        expect = case["expect"]
        order = expect.get("min_order", expect.get("order"))
        return differing(order, [replace(row, after=None) for row in expected_rows(case)], rows)


def encoded(adapter: Adapter, fed: Case) -> tuple[bytes | None, bytes | None]:
    key, value = adapter.topics[fed["topic"]].encoded(fed["key"], fed["value"])
    return key, value


def content(records: Sequence[LogRecord]) -> list[tuple[object, ...]]:
    """Return the records without their offsets."""
    return [(r.key, r.value, r.timestamp_ms, tuple(r.headers)) for r in records]
