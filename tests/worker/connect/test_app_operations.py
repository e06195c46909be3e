"""Operators and the connectors of an app, over the HTTP server of its workers."""

from __future__ import annotations

import asyncio
import json
import os
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any, ClassVar

import pytest
from typer.testing import CliRunner

from streamlog import App
from streamlog.cli.root import cli
from streamlog.connect import (
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
)
from streamlog.connect_service.rest_site import site_of
from streamlog.log import Log
from streamlog.replace import replace
from streamlog.worker.program import WorkerStart
from streamlog.worker.worker import Worker
from tests.worker.processes import read_whole

PARTS = 3
SEEDS = range(30) if os.environ.get("STREAMLOG_PROFILE") == "thorough" else range(1)


class Numbers(Source[str, int], frozen=True, kw_only=True):
    """Numbers of several parts, a few at a time."""

    count: int
    opened: ClassVar[list[int]] = []
    """The parts in the order in which they were opened."""

    async def partitions(self, context: SourceContext) -> list[SourcePartition]:
        return [{"part": number} for number in range(PARTS)]

    async def read(
        self, partition: SourcePartition, offset: SourceOffset | None, context: SourceContext
    ) -> AsyncIterator[Read[str, int]]:
        part = int(str(partition["part"]))
        self.opened.append(part)
        at = 0 if offset is None else int(str(offset["at"]))
        while at < self.count:
            number = part * 1_000_000 + at
            at += 1
            yield Read([context.record(number, key=f"{part}")], {"at": at})
            await context.sleep("1ms")


class Out(Sink[str, int], frozen=True, kw_only=True):
    """A list."""

    values: ClassVar[list[int]] = []

    def open(self, context: SinkContext) -> SinkTask[str, int]:
        return OutTask()


class OutTask(SinkTask[str, int]):
    async def write(self, batch: Batch[str, int]) -> None:
        Out.values.extend(batch.values)


def build(path: Path, count: int, tasks: int = 2) -> App:
    Out.values.clear()
    Numbers.opened.clear()
    app = App(
        "shop",
        state_dir=f"{path}/state",
        commit_interval="20ms",
        web="127.0.0.1:0",
        # A rebalance is heard of by a heartbeat.
        consumer={"heartbeat.interval.ms": 50},
    )
    numbers = app.topic("numbers", key=str, value=int, partitions=2)
    app.source(numbers, Numbers(count=count), name="in", tasks=tasks)
    app.sink(numbers, Out(flush=Flush(every="10ms")), name="out", tasks=2)
    return app


class Client:
    """Asks one worker."""

    def __init__(self, web: str) -> None:
        self.url = f"http://{web}/connect"

    async def ask(self, method: str, path: str, body: object = None) -> tuple[int, Any]:
        return await asyncio.to_thread(self._ask, method, path, body)

    def _ask(self, method: str, path: str, body: object) -> tuple[int, Any]:
        data = None if body is None else json.dumps(body).encode()
        asked = urllib.request.Request(self.url + path, data, method=method)  # noqa: S310 - of this test
        try:
            with urllib.request.urlopen(asked, timeout=60) as answer:  # noqa: S310
                status, text = answer.status, answer.read()
        except urllib.error.HTTPError as error:
            with error:
                status, text = error.code, error.read()
        return status, json.loads(text) if text else None

    async def until_state(self, name: str, state: str, tasks: int) -> None:
        async def holds() -> bool:
            status, body = await self.ask("GET", f"/connectors/{name}/status")
            if status != 200:
                return False
            states = [body["connector"]["state"], *(each["state"] for each in body["tasks"])]
            return len(states) == tasks + 1 and {*states} == {state}

        await until(holds)


async def until(holds: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(60):
        while not await holds():  # noqa: ASYNC110 - of a worker
            await asyncio.sleep(0.01)


@asynccontextmanager
async def running(app: App, path: Path, number: int = 0) -> AsyncIterator[Client]:
    """Run a worker in the block, once it has been given its tasks."""
    stop, started = asyncio.Event(), asyncio.get_running_loop().create_future()

    def announce(start: WorkerStart) -> None:
        started.set_result(start.web)

    program = replace(app.program(), state_dir=f"{path}/state-{number}")
    worker = Worker(
        program, log_url=f"embedded:{path}/log", announce=announce, connect_site=site_of
    )
    async with asyncio.TaskGroup() as group:
        group.create_task(worker.run(stop))
        yield Client(await started)
        stop.set()


async def rows(path: Path) -> list[int]:
    async with Log.open(f"embedded:{path}/log") as log:
        whole = await read_whole(log, "numbers")
    return [int.from_bytes(record.value or b"", "big") for _, record in whole]


def test_a_state_holds_over_restarts_until_it_is_changed(tmp_path: Path) -> None:
    async def story() -> None:
        app = build(tmp_path, count=10_000)
        async with running(app, tmp_path) as client:
            await client.until_state("in", "RUNNING", 2)
            await client.until_state("out", "RUNNING", 2)
            assert await client.ask("GET", "/connectors") == (200, ["in", "out"])
            for name in ("in", "out"):
                await names_what_an_authorizer_has_to_allow(client, name)
            assert (await client.ask("PUT", "/connectors/in/pause"))[0] == 202
            await client.until_state("in", "PAUSED", 2)
            assert (await client.ask("PUT", "/connectors/out/stop"))[0] == 204
            await client.until_state("out", "STOPPED", 0)
        before = await rows(tmp_path)
        assert before
        assert len(before) < PARTS * 10_000
        Out.values.clear()
        async with running(app, tmp_path) as client:
            await client.until_state("in", "PAUSED", 2)
            await client.until_state("out", "STOPPED", 0)
        assert await rows(tmp_path) == before
        assert Out.values == []
        async with running(app, tmp_path) as client:
            for name in ("in", "out"):
                assert (await client.ask("PUT", f"/connectors/{name}/resume"))[0] == 202
                await client.until_state(name, "RUNNING", 2)
            await until(lambda: has(lambda: len(Out.values) > 0))
        after = await rows(tmp_path)
        assert len(after) > len(before)
        assert len(after) == len({*after})

    asyncio.run(story())


async def names_what_an_authorizer_has_to_allow(client: Client, name: str) -> None:
    of_source = {("topic", "numbers", "write", "create")}
    of_sink = {
        ("group", "shop-out", "read"),
        ("group", "shop-out", "delete"),
        ("topic", "numbers", "read", "create"),
    }
    _, found = await client.ask("GET", f"/connectors/{name}/acls?newCluster=true")
    assert {
        (each["resource_type"], each["name"], *each["operations"]) for each in found["acls"]
    } == {
        ("group", "shop", "read"),
        ("topic", "shop-", "read", "write", "create", "describe_configs"),
        ("transactional-id", "shop-", "write"),
        *(of_source if name == "in" else of_sink),
    }


async def has(holds: Callable[[], bool]) -> bool:
    return holds()


def test_offsets_are_set_while_a_connector_is_stopped(tmp_path: Path) -> None:
    async def story() -> None:
        app = build(tmp_path, count=20)
        async with running(app, tmp_path) as client:
            await until(lambda: has(lambda: len({*Out.values}) == PARTS * 20))
            path = "/connectors/in/offsets"
            whole = [{"partition": {"part": n}, "offset": {"at": 20}} for n in range(PARTS)]

            async def is_committed() -> bool:
                found = (await client.ask("GET", path))[1]["offsets"]
                return sorted(found, key=lambda each: each["partition"]["part"]) == whole

            await until(is_committed)
            back = {"offsets": [{"partition": {"part": 1}, "offset": {"at": 15}}]}
            assert (await client.ask("PATCH", path, back))[0] == 400
            assert (await client.ask("PUT", "/connectors/in/stop"))[0] == 204
            assert (await client.ask("PATCH", path, back))[0] == 200
            assert (await client.ask("PUT", "/connectors/in/resume"))[0] == 202
            await until(lambda: has(lambda: len(Out.values) == PARTS * 20 + 5))
            again = [1_000_000 + number for number in range(15, 20)]
            assert sorted(Out.values) == sorted([*all_numbers(20), *again])
            # A sink whose offsets are forgotten carries everything once more.
            Out.values.clear()
            assert (await client.ask("PUT", "/connectors/out/stop"))[0] == 204
            assert (await client.ask("DELETE", "/connectors/out/offsets"))[0] == 200
            assert (await client.ask("PUT", "/connectors/out/resume"))[0] == 202
            await until(lambda: has(lambda: len(Out.values) >= PARTS * 20 + 5))
        assert sorted(Out.values) == sorted([*all_numbers(20), *again])

    asyncio.run(story())


def all_numbers(count: int) -> list[int]:
    return [part * 1_000_000 + number for part in range(PARTS) for number in range(count)]


def test_what_would_change_the_configuration_is_refused(tmp_path: Path) -> None:
    async def story() -> None:
        async with running(build(tmp_path, count=1), tmp_path) as client:
            await client.until_state("in", "RUNNING", 2)
            for method, path, body in (
                ("POST", "/connectors", {"name": "new", "config": {}}),
                ("PUT", "/connectors/in/config", {"tasks.max": "9"}),
                ("PATCH", "/connectors/in/config", {"tasks.max": "9"}),
                ("DELETE", "/connectors/in", None),
            ):
                status, answer = await client.ask(method, path, body)
                assert status == 405
                assert "declared in code" in answer["message"]
            assert (await client.ask("PUT", "/connectors/none/pause"))[0] == 404
            status, config = await client.ask("GET", "/connectors/out/config")
            assert (status, config["connector.class"], config["topics"]) == (200, "Out", "numbers")
            status, topics = await client.ask("GET", "/connectors/in/topics")
            assert topics == {"in": {"topics": ["numbers"]}}

    asyncio.run(story())


def test_a_restart_opens_the_parts_of_the_tasks_again(tmp_path: Path) -> None:
    async def story() -> None:
        async with running(build(tmp_path, count=100_000), tmp_path) as client:
            await client.until_state("in", "RUNNING", 2)
            assert sorted(Numbers.opened) == [0, 1, 2]
            restart = "/connectors/in/restart?includeTasks=true"
            # Nothing has failed, so nothing restarts.
            assert (await client.ask("POST", f"{restart}&onlyFailed=true"))[0] == 202
            assert (await client.ask("POST", restart))[0] == 202
            await until(lambda: has(lambda: sorted(Numbers.opened) == [0, 0, 1, 1, 2, 2]))
            assert (await client.ask("POST", "/connectors/in/tasks/0/restart"))[0] == 204
            await until(lambda: has(lambda: len(Numbers.opened) > 6))
            assert (await client.ask("POST", "/connectors/in/tasks/7/restart"))[0] == 404
        written = await rows(tmp_path)
        assert len(written) == len({*written})

    asyncio.run(story())


@pytest.mark.parametrize("seed", SEEDS)
def test_whatever_operators_do_on_any_worker_each_row_is_written_once(
    tmp_path: Path, seed: int
) -> None:
    async def story() -> None:
        random, app = Random(seed), build(tmp_path, count=60)
        async with (
            Log.open(f"embedded:{tmp_path}/log"),
            running(app, tmp_path, 0) as one,
            running(app, tmp_path, 1) as two,
        ):
            for _ in range(12):
                client = random.choice([one, two])
                method, what = random.choice(
                    [
                        ("PUT", "pause"),
                        ("PUT", "resume"),
                        ("PUT", "stop"),
                        ("POST", "restart?includeTasks=true"),
                        ("POST", "tasks/0/restart"),
                    ]
                )
                status, _ = await client.ask(method, f"/connectors/in/{what}")
                # 404: a stopped connector has no tasks; 409: a rebalance is under way.
                assert status in (202, 204, 404, 409), what
            for client in (one, two):
                assert (await client.ask("PUT", "/connectors/in/resume"))[0] == 202
                await client.until_state("in", "RUNNING", 2)
            await until(lambda: has(lambda: len({*Out.values}) == PARTS * 60))
        assert sorted(await rows(tmp_path)) == all_numbers(60)

    asyncio.run(story())


def test_the_command_line_finds_the_workers_of_an_app(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "some_shop.py").write_text(
        "from streamlog import App\napp = App('shop', web='127.0.0.1:1')\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))

    async def story() -> None:
        async with running(build(tmp_path, count=1), tmp_path) as client:
            await client.until_state("in", "RUNNING", 2)
            runner = CliRunner()

            def run(*words: str) -> Any:
                return runner.invoke(cli, ["connectors", *words, "--connect", client.url])

            listed = await asyncio.to_thread(run, "list")
            assert "Numbers" in listed.output
            paused = await asyncio.to_thread(run, "pause", "in")
            assert paused.exit_code == 0
            await client.until_state("in", "PAUSED", 2)
        # Of the app without an option: nobody listens there.
        found = await asyncio.to_thread(
            CliRunner().invoke, cli, ["-A", "some_shop", "connectors", "list"]
        )
        assert "http://127.0.0.1:1/connect" in str(found.exception or found.output)

    asyncio.run(story())
