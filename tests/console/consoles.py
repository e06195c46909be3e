"""A broker with its console, and what asks it over HTTP."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from html.parser import HTMLParser

import httpx

from streamlog.broker.broker import Broker
from streamlog.broker.config.broker import BrokerConfig
from streamlog.broker.storage.disk.memory_files import MemoryFiles
from streamlog.cli.broker_web import serve_health
from streamlog.client.admin import NewTopic
from streamlog.log import Log
from streamlog.registry.running_registry import serve_if_configured


@asynccontextmanager
async def console(
    config: BrokerConfig | None = None, auth: tuple[str, str] | None = None
) -> AsyncIterator[tuple[httpx.AsyncClient, Log]]:
    """Serve the console of a broker on a disk in memory; yields a browser's client, and the log."""
    async with console_and_registry(config, auth) as (browser, log, _):
        yield browser, log


@asynccontextmanager
async def console_and_registry(
    config: BrokerConfig | None = None, auth: tuple[str, str] | None = None
) -> AsyncIterator[tuple[httpx.AsyncClient, Log, httpx.AsyncClient]]:
    """As `console`; also yields a client of the broker's registry, if its settings ask for one."""
    async with (
        Broker.open("data", files=MemoryFiles(), config=config) as broker,
        serve_if_configured(broker) as registry_url,
        Log.within(broker) as log,
        serve_health(broker, "127.0.0.1:0") as url,
        httpx.AsyncClient(base_url=url, auth=auth, timeout=60) as browser,
        httpx.AsyncClient(base_url=registry_url or "", timeout=60) as registry,
    ):
        yield browser, log, registry


async def fill(log: Log, topic: str, *values: bytes, partitions: int = 1) -> None:
    """Create a topic and write records into it."""
    await log.admin().create_topics([NewTopic(topic, partitions)])
    async with log.producer() as producer:
        for number, value in enumerate(values):
            await producer.send(topic, value, key=f"k{number}".encode())


async def read(log: Log, group: str, topic: str, count: int) -> None:
    """Read some records as a group, and commit."""
    async with log.consumer(group_id=group, auto_offset_reset="earliest") as consumer:
        await consumer.subscribe([topic])
        left = count
        while left > 0:
            polled = await consumer.poll(timeout_ms=100, max_records=left)
            left -= sum(map(len, polled.values()))
        await consumer.commit()
        await consumer.close(leave_group=True)


async def wait_for(browser: httpx.AsyncClient, path: str, text: str) -> str:
    """Follow a page's updates until it has a text; returns the content with it."""
    content = ""
    async with browser.stream("GET", path.replace("/console", "/console/events", 1)) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream"), answer.status_code
        async for line in answer.aiter_lines():
            if line == "event: content":
                content = ""
            content += line.removeprefix("data: ") + "\n" if line.startswith("data: ") else ""
            if text in content:
                return content
    raise AssertionError(f"the updates of {path} ended without {text!r}: {content[-500:]}")


class Page(HTMLParser):
    """A page as a browser reads it."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str]]] = []
        self.texts: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, {name: value or "" for name, value in attrs}))

    def handle_data(self, data: str) -> None:
        self.texts.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.texts).split())

    def fields(self) -> dict[str, str]:
        return {
            found["name"]: found.get("value", "")
            for tag, found in self.tags
            if tag == "input" and found.get("type") == "hidden"
        }
