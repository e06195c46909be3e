"""Logs by subject: their levels change while a broker runs, and no line shows a secret."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager

from streamlog.broker.broker import Broker
from streamlog.broker.server.socket_server import Acceptor
from streamlog.broker.storage.disk.memory_files import MemoryFiles
from streamlog.broker.subject_logs import log_decision, log_records
from streamlog.client.admin.config_admin import BROKER_LOGGER_RESOURCE
from streamlog.protocol.messages.metadata_log import ConfigRecord, UserSecretRecord
from streamlog.protocol.messages.topics_and_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from tests.broker.node import at, batch, create, fetch_request, produce_request
from tests.broker.server.test_socket_server import Peer, peer


class Lines(logging.Handler):
    """The lines of one logger."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.found.append(f"{record.levelname} {record.getMessage()}")


@contextmanager
def lines_of(name: str, level: int = logging.NOTSET) -> Iterator[list[str]]:
    handler, logger = Lines(), logging.getLogger(name)
    before = logger.level
    logger.addHandler(handler)
    logger.setLevel(level)
    try:
        yield handler.found
    finally:
        logger.removeHandler(handler)
        logger.setLevel(before)


def level_change(broker: Broker, level: str) -> IncrementalAlterConfigsRequest:
    config = AlterableConfig(name="streamlog.request", config_operation=0, value=level)
    resource = AlterConfigsResource(
        resource_type=BROKER_LOGGER_RESOURCE,
        resource_name=str(broker.directory.node_id),
        configs=[config],
    )
    return IncrementalAlterConfigsRequest(resources=[resource], validate_only=False)


async def ask(one: Peer, *requests: object) -> None:
    for number, request in enumerate(requests):
        one.ask(request, number)
    for request in requests:
        await one.answer(type(request))


def test_responses_are_logged_while_the_level_of_requests_is_debug() -> None:
    async def main() -> None:
        async with Broker.open("data", files=MemoryFiles()) as broker, Acceptor(broker) as server:
            create(broker, "t")
            async with peer(server) as one:
                produce = produce_request(batch(b"x"))
                with lines_of("streamlog.request", logging.INFO) as lines:
                    await ask(one, produce)
                    assert lines == []
                    await ask(one, level_change(broker, "DEBUG"))
                    del lines[:]
                    # Produce requests that arrive together are answered by one call.
                    wait = fetch_request(at(3, max_bytes=100), max_wait_ms=30)
                    await ask(one, produce, produce, fetch_request(at(0)), fetch_request(at(0)))
                    await ask(one, wait)
                    assert [re.sub(r" v\d+| of client.*", "", each) for each in lines] == [
                        "DEBUG Produce (2 requests)", "DEBUG Fetch", "DEBUG Fetch", "DEBUG Fetch",
                    ]  # fmt: skip
                    parts = re.search(
                        r"v\d+ of client '\w+' \(User:ANONYMOUS at 127.0.0.1\): ([\d.]+) ms queue,"
                        r" ([\d.]+) ms local, ([\d.]+) ms remote, ([\d.]+) ms response queue$",
                        lines[-1],
                    )
                    assert parts is not None, lines[-1]
                    assert float(parts[3]) >= 25
                    await ask(one, level_change(broker, "INFO"))
                    del lines[:]
                    await ask(one, produce)
                    assert lines == []

    asyncio.run(main())


def test_a_denied_operation_is_a_warning_once_a_minute() -> None:
    who = "User:eve", "10.1.2.3"
    with lines_of("streamlog.authorizer", logging.INFO) as lines:
        for _ in range(3):
            log_decision(who, "WRITE", "TOPIC test-of-denials", allowed=False)
        log_decision(who, "READ", "TOPIC test-of-denials", allowed=True)
        # Lists are filtered by DESCRIBE: what is left out of one is not denied to anyone.
        log_decision(who, "DESCRIBE", "TOPIC test-of-denials", allowed=False)
    assert lines == [
        "WARNING denied User:eve at 10.1.2.3 the operation WRITE on TOPIC test-of-denials"
    ]
    with lines_of("streamlog.authorizer", logging.DEBUG) as lines:
        log_decision(who, "READ", "TOPIC test-of-denials", allowed=True)
        log_decision(who, "DESCRIBE", "TOPIC test-of-denials", allowed=False)
    assert lines == [
        "DEBUG allowed User:eve at 10.1.2.3 the operation READ on TOPIC test-of-denials",
        "DEBUG denied User:eve at 10.1.2.3 the operation DESCRIBE on TOPIC test-of-denials",
    ]


def test_decisions_of_the_controller_are_logged_without_secrets() -> None:
    records = [
        ConfigRecord(resource_type=4, resource_name="1", name="ssl.key.password", value="hush"),
        UserSecretRecord(secret=b"hush"),
    ]
    with lines_of("streamlog.controller", logging.DEBUG) as lines:
        log_records(7, records)

        async def main() -> None:
            async with Broker.open("data", files=MemoryFiles()) as broker:
                create(broker, "new-topic")

        asyncio.run(main())
    assert [each.partition(":")[0] for each in lines[:2]] == ["DEBUG offset 7", "DEBUG offset 8"]
    assert "ssl.key.password" in lines[0]
    assert not any("hush" in each for each in lines)
    assert any("TopicRecord(name='new-topic'" in each for each in lines)
    with lines_of("streamlog.controller", logging.INFO) as lines:
        log_records(7, records)
    assert lines == []
