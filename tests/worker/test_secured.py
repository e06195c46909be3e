"""An app on a broker with authentication and authorization."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from streamlog import App
from streamlog.client.admin import AclFilter, NewTopic
from streamlog.errors import NotAuthorized, ProcessingError
from streamlog.log import Log
from streamlog.protocol.acls import Operation, ResourceType
from streamlog.record import TopicPartition
from streamlog.worker.commit import sinks
from streamlog.worker.program import Program
from streamlog.worker.worker import Worker
from tests.servers.secured_broker import access, allowed, secured_broker
from tests.worker.recreated_topics import failing, feed, said

TOPIC, GROUP = ResourceType.TOPIC, ResourceType.GROUP
OP = Operation

# As docs/security.md lists it for "a worker of an app".
ALLOWED = [
    *(allowed(TOPIC, name, each) for name in ("words", "counts") for each in (OP.READ, OP.WRITE)),
    allowed(GROUP, "counting", OP.READ),
    *(
        allowed(TOPIC, "counting-", each, prefixed=True)
        for each in (OP.CREATE, OP.READ, OP.WRITE, OP.DESCRIBE_CONFIGS)
    ),
    allowed(ResourceType.TRANSACTIONAL_ID, "counting-", OP.WRITE, prefixed=True),
]

SHOP = {
    "security.protocol": "SASL_PLAINTEXT",
    "sasl.mechanism": "SCRAM-SHA-256",
    "sasl.username": "shop",
    "sasl.password": "of shop",
}


def counting(state: Path) -> Program:
    app = App("counting", state_dir=str(state), security=SHOP)
    words = app.topic("words", key=str, value=str, partitions=1)
    counts = app.topic("counts", key=str, value=str, partitions=1)
    app.stream(words).group_by(lambda _, word: word, name="by-word").count(name="n").changes().map(
        lambda word, n: (word, f"{word} {n}")
    ).to(counts)
    return app.program()


def worker_of(program: Program, url: str) -> Worker:
    return Worker(program, log_url=url, announce=lambda _: None, security=access("shop"))


async def until(log: Log, count: bytes) -> None:
    """Wait until the app has written this count."""
    async with log.consumer(auto_offset_reset="earliest") as consumer:
        consumer.assign([TopicPartition("counts", 0)])
        found: list[bytes | None] = []
        while count not in found:
            for records in (await consumer.poll(timeout_ms=100)).values():
                found += [record.value for record in records]


def test_a_worker_needs_only_the_documented_permissions(tmp_path: Path) -> None:
    program = counting(tmp_path / "state")

    async def main() -> None:
        async with (
            asyncio.timeout(120),
            secured_broker(tmp_path / "data") as url,
            Log.open(url, security=access("root")) as log,
        ):
            admin, worker = log.admin(), worker_of(program, url)
            await admin.create_topics([NewTopic("words", 1), NewTopic("counts", 1)])
            with pytest.raises(NotAuthorized, match="User:shop may not create"):
                await worker.run(asyncio.Event())
            await admin.create_acls(ALLOWED)
            await feed(log, "words", [("k", "hello")] * 2)
            stop = asyncio.Event()
            async with asyncio.TaskGroup() as work:
                work.create_task(worker.run(stop))
                await until(log, b"hello 2")
                stop.set()

    asyncio.run(main())


@asynccontextmanager
async def revoked(path: Path) -> AsyncIterator[tuple[Log, asyncio.Task[None], asyncio.Event]]:
    """Revoke all rights to the output of a worker that has nothing more to write."""
    async with (
        secured_broker(path / "data") as url,
        Log.open(url, security=access("root")) as log,
        asyncio.TaskGroup() as work,
    ):
        await log.admin().create_topics([NewTopic("words", 1), NewTopic("counts", 1)])
        await log.admin().create_acls(ALLOWED)
        stop = asyncio.Event()
        task = work.create_task(worker_of(counting(path / "state"), url).run(stop))
        await feed(log, "words", [("k", "hello")])
        await until(log, b"hello 1")
        await log.admin().delete_acls([AclFilter(resource_type=TOPIC, name="counts")])
        yield log, task, stop


def test_an_output_whose_rights_are_revoked_is_not_called_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(sinks, "LOOK_MS", 20)

    async def main() -> None:
        async with asyncio.timeout(120), revoked(tmp_path) as (log, task, stop):
            line = await said(caplog, "counts: ", task)
            assert "may no longer describe the topic" in line
            assert "streamlog acls add PRINCIPAL write --topic counts" in line
            await log.admin().create_acls(ALLOWED)
            await feed(log, "words", [("k", "hello")])
            await until(log, b"hello 2")
            stop.set()

    asyncio.run(main())
    assert "deleted" not in caplog.text


def test_a_write_without_the_right_ends_the_worker_with_the_topic(tmp_path: Path) -> None:
    async def main() -> None:
        async with asyncio.timeout(120), failing(revoked(tmp_path)) as (log, task, _):
            await feed(log, "words", [("k", "hello")])
            await asyncio.wait([task])

    with pytest.raises(ProcessingError, match=r"counts-0 .* TOPIC_AUTHORIZATION_FAILED"):
        asyncio.run(main())
