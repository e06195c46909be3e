"""Logs to test clients with: embedded, over TCP, and on other projects' brokers.

librdkafka's mock cluster has no admin requests, so its topics are created from below, and
`clusters.py` names the tests that it can't run, with the reason. With STREAMLOG_KAFKA=HOST:PORT,
the tests also run on that Apache Kafka broker (`make conformance-kafka`), which is emptied before
each test.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import pytest

from streamlog.client.admin import NewTopic
from streamlog.log import Log
from tests.client.clusters import NOT_ON_KAFKA, NOT_ON_MOCK, emptied_kafka, mocked, reason

OpenLog = Callable[..., AbstractAsyncContextManager[Log]]

KAFKA = os.environ.get("STREAMLOG_KAFKA")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "open_log" not in metafunc.fixturenames:
        return
    module, test = metafunc.module.__name__.rpartition(".")[2], metafunc.function.__name__
    targets = ["embedded", "tcp"]
    if not reason(NOT_ON_MOCK, module, test):
        targets.append("mock")
    if KAFKA and not reason(NOT_ON_KAFKA, module, test):
        targets.append("kafka")
    metafunc.parametrize("open_log", targets, indirect=True)


@pytest.fixture
def open_log(request: pytest.FixtureRequest, tmp_path: Path) -> OpenLog:
    """Return a context manager: `async with open_log(t=4) as log` has a topic t of 4 partitions."""
    if request.param == "mock":
        return mocked
    if request.param == "kafka":
        return lambda **topics: emptied_kafka(KAFKA or "", topics)

    @asynccontextmanager
    async def opened(**topics: int) -> AsyncIterator[Log]:
        async with Log.open(f"embedded:{tmp_path / 'data'}") as served:
            new = [NewTopic(name, partitions) for name, partitions in topics.items()]
            if new:
                await served.admin().create_topics(new)
            if request.param == "embedded":
                yield served
                return
            assert served.address is not None
            host, port = served.address
            async with Log.open(f"kafka://{host}:{port}") as remote:
                yield remote

    return opened
