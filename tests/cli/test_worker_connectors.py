"""What `worker` prints about the connectors of an app before it starts."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path

import pytest

from streamlog import App
from streamlog.cli.operate.connectors_command import worker_urls
from streamlog.cli.worker_command import (
    describe_sink,
    describe_source,
    describe_tasks,
    only_carried,
)
from streamlog.connectors.memory import MemoryRows, MemorySink
from streamlog.connectors.objects import Objects
from streamlog.connectors.tail import Tail
from streamlog.log import Log
from streamlog.worker.program import WorkerStart
from streamlog.worker.worker import Worker
from tests.console.worker_consoles import worker_console


def test_a_worker_names_each_connector_with_its_topics_and_its_promise() -> None:
    app = App("web")
    lines = app.topic("lines", key=str, value=bytes)
    app.source(lines, Tail(path="/var/log/app.log"), name="tail")
    app.sink(lines, Objects(url="/tmp/files"), name="files")  # noqa: S108 - never opened
    program = app.program()
    assert [*map(describe_source, program.source_connectors)] == [
        "tail: Tail to lines, exactly once"
    ]
    assert [*map(describe_sink, program.sink_connectors)] == [
        "files: lines to Objects, exactly once"
    ]


def test_a_topic_that_only_a_sink_reads_is_not_said_to_be_written() -> None:
    app = App("shop")
    outside, inside = (app.topic(name, key=str, value=str) for name in ("outside", "inside"))
    app.stream(app.topic("given", key=str, value=str)).to(inside)
    for topic in (outside, inside):
        app.sink(topic, MemorySink(into=MemoryRows()), name=topic.name)
    assert only_carried(app.program()) == {"outside"}


def test_a_worker_says_that_an_app_has_nothing_to_do(tmp_path: Path) -> None:
    async def started(app: App) -> str:
        stop, found = asyncio.Event(), list[WorkerStart]()

        def announce(start: WorkerStart) -> None:
            found.append(start)
            stop.set()

        url = f"embedded:{tmp_path / app.id}"
        await Worker(app.program(), log_url=url, announce=announce).run(stop)
        return describe_tasks(found[0])

    idle, busy = App("idle", state_dir=str(tmp_path)), App("busy", state_dir=str(tmp_path))
    idle.topic("words", key=str, value=str)
    busy.stream(busy.topic("words", key=str, value=str, partitions=3)).peek(print)
    assert asyncio.run(started(idle)) == "none: the app has no stream, agent, or timer yet"
    assert asyncio.run(started(busy)) == "3, shared by all workers of the app"


PROGRAM = """
from streamlog import App
from streamlog.connectors.memory import MemoryRows, MemorySink

app = App("shop", log="embedded:log")
prices = app.topic("prices", key=str, value=str, partitions=1)
app.sink(prices, MemorySink(into=MemoryRows()), name="kept")
"""


def test_connectors_of_a_worker_are_found_by_its_group(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "shop.py").write_text(PROGRAM)
    space: dict[str, App] = {}
    exec(PROGRAM, space)  # noqa: S102 - the program above

    async def listed(**variables: str) -> tuple[int | None, str]:
        words = (sys.executable, "-m", "streamlog", "-A", "shop", "connectors", "list", "--json")
        process = await asyncio.create_subprocess_exec(
            *words, cwd=tmp_path, env={**os.environ, **variables}, stdout=-1, stderr=-2
        )
        output, _ = await process.communicate()
        return process.returncode, output.decode()

    async def main() -> None:
        async with worker_console(space["app"], tmp_path) as (browser, log):
            # By then, the worker is a member of its group.
            while not (await browser.get("/ready")).is_success:
                pass
            assert await worker_urls(log, space["app"]) == [str(browser.base_url)]
            code, output = await listed()
            assert (code, [each["connector"] for each in json.loads(output)]) == (0, ["kept"])
            # Each client that may join the group can name an address: it gets no password.
            code, output = await listed(STREAMLOG_CONNECT_USER="ann")
            assert code == 2
            assert "a password is sent to no other address" in output
        stopped = Log.open(f"embedded:{tmp_path}/log", listen=False)
        async with stopped as log:
            assert await worker_urls(log, space["app"]) == []

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    asyncio.run(main())
