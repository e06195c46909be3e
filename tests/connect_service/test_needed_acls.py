"""What a secured cluster is told for a connector: enough for it to run, and nothing too much."""

from __future__ import annotations

import asyncio
import json
import os
import shlex
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import ClassVar

import pytest
from typer.testing import CliRunner

from streamlog.broker.security.acl_authorizer import Access
from streamlog.cli.access_commands import acls
from streamlog.cli.operate.connectors_command import connectors
from streamlog.cli.session import Session
from streamlog.connect import (
    BadRecord,
    BadRecords,
    Batch,
    Flush,
    Read,
    Sink,
    SinkContext,
    SinkTask,
    Source,
    SourceContext,
    SourceOffset,
    SourcePartition,
    names,
)
from streamlog.errors import StreamlogError
from streamlog.log import Log
from streamlog.protocol.acls import Operation, ResourceType
from streamlog.record import TopicPartition
from tests.connect_service.running import Client, worker, worker_with_http
from tests.servers.secured_broker import access, on_a_secured_broker

USER = "User:shop"
BAD = 1
"""The number that the source refuses, and the sink as well."""
COUNT = 3
PATIENCE_S = 10
"""How long a story without one of its rights may go on."""
thorough = pytest.mark.skipif(
    os.environ.get("STREAMLOG_PROFILE") != "thorough",
    reason="a minute, with a broker for each right: with STREAMLOG_PROFILE=thorough",
)
FAILURES = (StreamlogError, ExceptionGroup, AssertionError, TimeoutError)
Right = tuple[str, str, str]
"""The type of a resource, its name, and an operation."""


class Counted(Source[str, dict[str, object]], frozen=True, kw_only=True):
    """Numbers below `COUNT`, one of which is no record."""

    async def partitions(self, context: SourceContext) -> list[SourcePartition]:
        return [{"part": 0}]

    async def read(
        self, partition: SourcePartition, offset: SourceOffset | None, context: SourceContext
    ) -> AsyncIterator[Read[str, dict[str, object]]]:
        for at in range(0 if offset is None else int(str(offset["at"])), COUNT):
            if at == BAD:
                raise BadRecord("a bad number", offset={"at": at + 1})
            yield Read([context.record({"n": at}, key=f"{at}")], {"at": at + 1})
        while True:
            await context.sleep("1h")


class Kept(Sink[str, dict[str, object]], frozen=True, kw_only=True):
    """Numbers go into a list; it refuses one of them."""

    flush: Flush = Flush(every="50ms")
    numbers: ClassVar[list[object]] = []

    def open(self, context: SinkContext) -> SinkTask[str, dict[str, object]]:
        return _KeptTask()


class _KeptTask(SinkTask[str, dict[str, object]]):
    async def write(self, batch: Batch[str, dict[str, object]]) -> None:
        bad = [index for index, row in enumerate(batch.values) if row["n"] == BAD]
        if bad:
            raise BadRecords(dict.fromkeys(bad, "a bad row"))
        Kept.numbers.extend(row["n"] for row in batch.values)

    async def reset(self, offsets: Mapping[object, int | None]) -> None:
        """A list has nothing to reset."""


LETTERS = {"errors.tolerance": "all", "errors.auto.restart": "false"}
SOURCE = {
    "connector.class": "Counted", "topic": "numbers", **LETTERS,
    "errors.deadletterqueue.topic.name": "letters-of-in",
    "transforms": "route", "transforms.route.regex": "(.*)",
    "transforms.route.type": "org.apache.kafka.connect.transforms.RegexRouter",
    "transforms.route.replacement": "eu.$1",
}  # fmt: skip
SINK = {
    "connector.class": "Kept", "topics": "rows", **LETTERS,
    "errors.deadletterqueue.topic.name": "letters-of-out",
}  # fmt: skip
OF_WORKERS: list[Right] = [
    ("group", "connect-cluster", "read"),
    *(
        ("topic", f"connect-{name}", operation)
        for name in ("configs", "offsets", "status")
        for operation in ("read", "write", "create")
    ),
    ("transactional-id", "connect-cluster-leader", "write"),
]
OF_SOURCE: list[Right] = [
    ("transactional-id", "connect-cluster-in-", "write"),
    ("topic", "eu.numbers", "write"),
    ("topic", "eu.numbers", "create"),
    ("topic", "letters-of-in", "write"),
    ("topic", "letters-of-in", "create"),
]
OF_SINK: list[Right] = [
    ("group", "connect-out", "read"),
    ("group", "connect-out", "delete"),
    ("topic", "rows", "read"),
    ("topic", "rows", "create"),
    ("topic", "letters-of-out", "write"),
    ("topic", "letters-of-out", "create"),
]
RIGHTS = [*OF_WORKERS, *OF_SOURCE, *OF_SINK]


REAL = {"SqlSource": names.BUILT_IN["SqlSource"]}


@pytest.fixture(autouse=True)
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    here = "tests.connect_service.test_needed_acls"
    monkeypatch.setattr(names, "BUILT_IN", {"Counted": here, "Kept": here, **REAL})
    Kept.numbers.clear()


@pytest.fixture
def denied(monkeypatch: pytest.MonkeyPatch) -> set[Right]:
    """What the broker has refused to the user."""
    found: set[Right] = set()
    decide = Access._may

    def noted(
        self: Access, operation: Operation, kind: ResourceType, name: str, **others: bool
    ) -> bool:
        allowed = decide(self, operation, kind, name, **others)
        if not allowed and self.principal == USER:
            found.add((kind.name.lower().replace("_", "-"), name, operation.name.lower()))
        return allowed

    monkeypatch.setattr(Access, "_may", noted)
    return found


async def invoke(room: object, *arguments: str, session: Session | None = None) -> str:
    run, obj = CliRunner().invoke, session or Session()
    result = await asyncio.to_thread(run, room, [*arguments], obj=obj)  # type: ignore[arg-type]
    # Not `output`: standard error is in it as well, and the workers log meanwhile.
    return result.stdout if result.exception is None else str(result.exception)


async def described(client: Client, name: str, *options: str) -> str:
    at = ("--connect", f"http://{client.service.worker_id}")
    return await invoke(connectors, "describe", name, "--acls", *options, *at)


def commands_of(text: str) -> list[list[str]]:
    """Return the commands as a shell reads them, without `streamlog acls`."""
    lines = [shlex.split(line, comments=True) for line in text.splitlines()]
    found = [line for line in lines if line]
    assert all(line[:3] == ["streamlog", "acls", "add"] for line in found), text
    return [line[2:] for line in found]


def rights_of(commands: Sequence[list[str]]) -> list[Right]:
    found: list[Right] = []
    for _, user, *words in commands:
        assert user == USER
        option = next(index for index, word in enumerate(words) if word.startswith("--"))
        kind, name = words[option].removeprefix("--"), words[option + 1]
        found += [(kind, name, operation) for operation in words[:option]]
    return found


async def printed(directory: Path) -> list[list[str]]:
    """Return the commands that a worker without ACLs prints for a new cluster."""
    options = ("--principal", USER, "--new-cluster")
    async with Log.open(f"embedded:{directory}") as log, worker_with_http(log) as client:
        for name, config in (("in", SOURCE), ("out", SINK)):
            status, body = await client.ask("PUT", f"/connectors/{name}/config", config)
            assert status == 201, body
        texts = [await described(client, name, *options) for name in ("in", "out")]
    Kept.numbers.clear()
    assert f"# {USER}, the principal of the workers of connect-cluster" in texts[0]
    return [*dict.fromkeys(map(tuple, commands_of("\n".join(texts))))]  # type: ignore[arg-type]


def test_what_is_stored_is_described_while_no_worker_runs(tmp_path: Path) -> None:
    """As a worker describes it; the topics of a source that it has written included."""
    file = tmp_path / "worker.properties"
    file.write_text("group.id=connect-cluster\n")
    options = ("--principal", USER, "--json")

    async def main() -> None:
        async with Log.open(f"embedded:{tmp_path / 'log'}") as log:
            async with worker_with_http(log) as client:
                for name, config in (("in", SOURCE), ("out", SINK)):
                    status, body = await client.ask("PUT", f"/connectors/{name}/config", config)
                    assert status == 201, body
                await until_there(client)
                await client.until_state("out", "RUNNING", 1)
                expected = [await described(client, name, *options) for name in ("in", "out")]
            assert log.address is not None
            url = "kafka://{}:{}".format(*log.address)
            stored = ("--worker", str(file), "--log", url)
            before = [*await log.read_range(TopicPartition("connect-configs", 0))]
            for name, told in zip(("in", "out"), expected, strict=True):
                text = await invoke(connectors, "describe", name, "--acls", *options, *stored)
                assert json.loads(text) == json.loads(told)
            no = await invoke(connectors, "describe", "no", "--acls", *stored)
            assert no == "Connector no not found"
            assert "need --acls" in await invoke(connectors, "describe", "in", *stored)
            file.write_text("config.storage.topic=elsewhere\nstatus.storage.topic=nowhere\n")
            lacking = await invoke(connectors, "describe", "in", "--acls", *stored)
            assert "the log has no topic 'nowhere'" in lacking
            assert [*await log.read_range(TopicPartition("connect-configs", 0))] == before
            assert not await log.admin().find_topics(["elsewhere", "nowhere"])

    asyncio.run(main())


ROUTER = "org.apache.kafka.connect.transforms.TimestampRouter"


async def names_topics_as_far_as_they_are_known(client: Client) -> None:
    tables = {"connector.class": "Counted", "topic.prefix": "it's-"}
    dated = {**SOURCE, "transforms": "route,day", "transforms.day.type": ROUTER}
    sometimes = {
        **SOURCE, "predicates": "ours", "transforms.route.predicate": "ours",
        "predicates.ours.type": "org.apache.kafka.connect.transforms.predicates.HasHeaderKey",
        "predicates.ours.name": "ours",
    }  # fmt: skip
    several = {
        "connector.class": "SqlSource", "url": "sqlite:///none.db", "mode": "incrementing",
        "incrementing.column": "id", "tables": "orders,lines", "transforms": "route",
        "transforms.route.type": SOURCE["transforms.route.type"],
        "transforms.route.regex": "(.*)", "transforms.route.replacement": "eu.$1",
    }  # fmt: skip
    own_lines = ["write create --topic eu.lines", "write create --topic eu.orders"]
    for config, lines in (
        (several, own_lines),
        (tables, ["User:connect write create --topic 'it'\"'\"'s-' --prefixed"]),
        (dated, ["# the records of late name their topics", "--topic letters-of-in"]),
        (sometimes, ["write create --topic eu.numbers", "write create --topic numbers"]),
    ):
        new = {"name": "late", "initial_state": "STOPPED", "config": config}
        assert (await client.ask("POST", "/connectors", new))[0] == 201
        told = await described(client, "late", "--new-cluster")
        assert all(line in told for line in lines), told
        assert (await client.ask("DELETE", "/connectors/late"))[0] == 204


async def until_there(client: Client) -> None:
    """Wait until the source has written everything."""
    async with asyncio.timeout(30):
        for topic in ("eu.numbers", "letters-of-in"):
            while await count_of(client.service.log, topic) < 1:  # noqa: ASYNC110 - as `until`
                await asyncio.sleep(0.02)


async def story(url: str) -> None:
    """Run both connectors as the user, until everything that they do is done.

    Raises:
        Exception: one of them can't.
    """
    async with AsyncExitStack() as stack:
        root = await stack.enter_async_context(Log.open(url, security=access("root")))
        log = await stack.enter_async_context(Log.open(url, security=access("shop")))
        client = await stack.enter_async_context(worker(log, "127.0.0.1:8083"))
        for name, config in (("in", SOURCE), ("out", SINK)):
            status, body = await client.ask("PUT", f"/connectors/{name}/config", config)
            assert status == 201, body
        for topic, count in (("eu.numbers", 2), ("letters-of-in", 1)):
            await until(client, root, topic, count)
        await until(client, root, "rows", 0)
        async with root.producer() as producer:
            for number in range(COUNT):
                await (await producer.send("rows", b'{"n":%d}' % number))
        await until(client, root, "letters-of-out", 1)
        await client.until(lambda: {0, 2} == {*Kept.numbers})
        # What others see of it: states that were written, and not only this worker's own.
        await until(client, root, "connect-status", 4)
        await client.ask("PUT", "/connectors/out/stop")
        await client.until_state("out", "STOPPED", 0)
        answer = await client.ask("DELETE", "/connectors/out/offsets")
        assert answer[0] == 200, answer


async def count_of(log: Log, topic: str) -> int:
    """Return the number of committed records of a topic; -1 if it does not exist."""
    found = [each for each in await log.admin().list_topics() if each.name == topic]
    parts = [TopicPartition(topic, number) for each in found for number in range(each.partitions)]
    return sum([len(await log.read_range(part)) for part in parts]) if parts else -1


async def until(client: Client, root: Log, topic: str, count: int) -> None:
    """Wait until a topic has so many records.

    Raises:
        AssertionError: a task has failed meanwhile.
    """
    while await count_of(root, topic) < count:
        for name in ("in", "out"):
            _, body = await client.ask("GET", f"/connectors/{name}/status")
            tasks = body.get("tasks", ())
            assert all(each["state"] != "FAILED" for each in tasks), tasks
        await asyncio.sleep(0.02)


async def allow(url: str, directory: Path, commands: Sequence[Sequence[str]]) -> None:
    """Run the printed commands as the administrator."""
    security = directory / "root.properties"
    security.write_text(
        "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=SCRAM-SHA-256\n"
        "sasl.username=root\nsasl.password=of root\n"
    )
    session = Session(security_file=str(security))
    for command in commands:
        told = await invoke(acls, *command, "--log", url, session=session)
        assert told.startswith("added: "), told


def test_a_connector_runs_with_what_is_printed(tmp_path: Path, denied: set[Right]) -> None:
    async def main(url: str) -> None:
        async with asyncio.timeout(60):
            commands = await printed(tmp_path / "open")
            assert rights_of(commands) == RIGHTS
            await allow(url, tmp_path, commands)
            await story(url)

    asyncio.run(on_a_secured_broker(tmp_path / "data", main))
    # What it is asked for beside, and does not need: CREATE on the cluster stands for that on each
    # topic, IDEMPOTENT_WRITE for WRITE on any, and a new topic's settings are shown if they may be.
    # The list of topics leaves out what the user may not see.
    asked = {each for each in denied if not each[1].startswith("__")}
    assert asked <= {
        ("cluster", "kafka-cluster", "create"),
        ("cluster", "kafka-cluster", "idempotent_write"),
        *(("topic", name, "describe_configs") for _, name, _ in RIGHTS),
    }


@thorough
def test_topics_are_named_as_far_as_they_are_known(tmp_path: Path) -> None:
    async def main() -> None:
        async with (
            asyncio.timeout(60),
            Log.open(f"embedded:{tmp_path}") as log,
            worker_with_http(log) as client,
        ):
            status, body = await client.ask("PUT", "/connectors/in/config", SOURCE)
            assert status == 201, body
            await until_there(client)
            again = rights_of(commands_of(await described(client, "in", "--principal", USER)))
            # All topics are there now.
            assert {each for each in OF_WORKERS + OF_SOURCE if each[2] != "create"} == {*again}
            as_json = json.loads(await described(client, "in", "--json", "--new-cluster"))
            assert as_json["principal"] == "User:connect"
            assert [each["scope"] for each in as_json["acls"]].count("connector") == 3
            assert "Connector no not found" in await described(client, "no")
            assert "is no principal" in await described(client, "in", "--principal", "shop")
            assert (await client.ask("PUT", "/connectors/in/acls"))[0] == 405
            await names_topics_as_far_as_they_are_known(client)

    asyncio.run(main())


@thorough
@pytest.mark.parametrize("right", RIGHTS, ids=" ".join)
def test_without_one_right_something_fails(
    tmp_path: Path, denied: set[Right], right: Right
) -> None:
    kind, name, operation = right
    commands = [
        ["add", USER, each[2], f"--{each[0]}", each[1], *["--prefixed"] * each[1].endswith("-")]
        for each in RIGHTS
        if each != right
    ]

    async def main(url: str) -> None:
        await allow(url, tmp_path, commands)
        with pytest.raises(FAILURES):
            async with asyncio.timeout(PATIENCE_S):
                await story(url)

    asyncio.run(on_a_secured_broker(tmp_path / "data", main))
    # READ and WRITE include DESCRIBE, which is often asked for first.
    named = {each for each in denied if each[0] == kind and each[2] in {operation, "describe"}}
    assert any(each[1].startswith(name) for each in named), denied
