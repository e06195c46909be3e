"""Logs to test clients with: in this process, the same one over TCP, and brokers that others wrote.

librdkafka's mock cluster has no admin requests, so topics are made from below, and the tests that
do not find there what they need are named in `clusters.py`, with the reason. Given a
STREAMLOG_KAFKA=HOST:PORT, they run on that broker of Apache Kafka, too (`make conformance-kafka`),
which is emptied for each.
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
    places = ["embedded", "tcp"]
    if not reason(NOT_ON_MOCK, module, test):
        places.append("mock")
    if KAFKA and not reason(NOT_ON_KAFKA, module, test):
        places.append("kafka")
    metafunc.parametrize("open_log", places, indirect=True)


@pytest.fixture
def open_log(request: pytest.FixtureRequest, tmp_path: Path) -> OpenLog:
    """`async with open_log(t=4) as log`: a log with topic t of four partitions."""
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
