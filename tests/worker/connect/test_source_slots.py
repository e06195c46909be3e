"""The dealing of parts as text, and the questions to sources that name them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest

from streamlog.clock import SystemClock
from streamlog.connect import ConnectError, Read, Source, SourceContext, SourceOffset
from streamlog.connect.connector_errors import Retriable
from streamlog.connect.declared_connectors import SourceConnector
from streamlog.connect.herding.configs import TASK_PARTS
from streamlog.connect.source import SourcePartition
from streamlog.errors import ProcessingError
from streamlog.nodes.policies import on_error
from streamlog.worker.connect import source_slots
from streamlog.worker.connect.source_slots import Discovery, decode_parts


def test_parts_survive_the_configs_topic() -> None:
    parts = [{"table": "orders"}, {"b": 1, "a": [None, {"x": 1.5}]}]
    text = '[{"table": "orders"}, {"b": 1, "a": [null, {"x": 1.5}]}]'
    assert decode_parts({TASK_PARTS: text}) == parts
    assert decode_parts({}) == []
    for malformed in ("nonsense", '[{"a":' + "[" * 100_000):
        assert decode_parts({TASK_PARTS: malformed}) == []


class Unsteady(Source[str, str], frozen=True, kw_only=True):
    """A source that names its parts after some errors."""

    errors: list[Exception]

    async def partitions(self, context: SourceContext) -> Sequence[SourcePartition]:
        if self.errors:
            raise self.errors.pop(0)
        return [{"part": 0}]

    async def read(
        self, partition: SourcePartition, offset: SourceOffset | None, context: SourceContext
    ) -> AsyncIterator[Read[str, str]]:
        raise AssertionError("nothing is read here")
        yield


async def discovered(*errors: Exception) -> tuple[list[Any], list[Exception]]:
    """Return the parts of a source that raises these errors first, and those that were reported."""
    source, found, told = Unsteady(errors=[*errors]), [], []
    connector = SourceConnector(name="in", source=source, topics={}, policy=on_error.FAIL)

    def on_failure(_: SourceConnector, error: Exception) -> bool:
        told.append(error)
        return True

    async with asyncio.TaskGroup() as group:
        discovery = Discovery(
            [connector],
            SystemClock(),
            group,
            on_parts=lambda _, parts: found.append(parts),
            on_failure=on_failure,
        )
        discovery.ask("in")
    return found, told


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source_slots, "DISCOVERY_FAILED_MS", 0)


def test_a_source_that_can_not_be_reached_is_asked_again() -> None:
    """By its own word for it as well: another Kafka cluster that restarts ended the worker."""
    errors = [
        Retriable("it restarts"),
        ConnectionRefusedError(),
        Retriable("still"),
        TimeoutError(),
    ]
    assert asyncio.run(discovered(*errors)) == ([[{"part": 0}]], errors)


@pytest.mark.parametrize("error", [ConnectError("it refuses"), ValueError("a fault")])
def test_another_error_of_a_source_ends_the_worker(error: Exception) -> None:
    with pytest.raises(ExceptionGroup) as ended:
        asyncio.run(discovered(Retriable("first"), error))
    assert ended.group_contains(ProcessingError, match=r"'in' can't name its parts")
