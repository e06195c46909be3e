"""Versions of an app's topology: compared, recorded and refused, by several workers at once."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from streamlog import App
from streamlog.errors import CorruptData, StateLost
from streamlog.log import Log
from streamlog.processing.task_progress import Era
from streamlog.topology import Topology
from streamlog.worker.topics.version_log import (
    Version,
    VersionChange,
    VersionLog,
    compare_versions,
    current,
    version_topic,
)
from tests.worker.processes import STREAMLOG, attached, read_until, running, streamlog

COUNTING = """
import os
from streamlog import App

app = App("words", log="embedded:./log", state_dir="./state", commit_interval="50ms")
words = app.topic("words", key=str, value=str)
counts = app.topic("counts", key=str, value=int)
app.stream(words).group_by_key().count(name=os.environ["COUNT"]).changes().to(counts)
"""


def topology(*names: str) -> Topology:
    app = App("app")
    grouped = app.stream(app.topic("words", key=str, value=str)).group_by_key()
    for name in names:
        grouped.count(name=name)
    return app.topology()


def record_version(
    before: Version | None, *names: str, offset: int
) -> tuple[VersionChange, tuple[int, bytes]]:
    change = compare_versions(before, topology(*names))
    return change, (offset, change.encode())


def test_the_first_version_has_no_predecessor() -> None:
    change, record = record_version(None, "a", offset=0)
    assert (change.number, change.era, bool(change.difference)) == (1, Era(), False)
    found = current([record])
    assert found == Version(0, 1, Era(), change.blueprint)
    assert compare_versions(found, topology("a")).is_settled


def test_eras_count_lost_nodes() -> None:
    _, first = record_version(None, "a", "b", offset=0)
    change, second = record_version(current([first]), "a", offset=1)
    assert (change.number, change.era) == (2, Era(1, {"b": 1}))
    found = current([first, second])
    # The node is back: that loses nothing, and the earlier loss stays recorded.
    back, third = record_version(found, "a", "b", offset=2)
    assert (back.number, back.era) == (3, Era(1, {"b": 1}))
    again, _ = record_version(current([first, second, third]), "b", offset=3)
    assert again.era == Era(2, {"b": 1, "a": 2})


def test_of_two_successors_of_a_version_the_first_counts() -> None:
    _, first = record_version(None, "a", offset=0)
    before = current([first])
    _, ours = record_version(before, "a", "b", offset=1)
    _, theirs = record_version(before, "a", "c", offset=2)
    assert current([first, ours, theirs]) == current([first, ours])
    # The loser writes again, after the winner.
    _, again = record_version(current([first, ours]), "a", "b", "c", offset=3)
    found = current([first, ours, theirs, again])
    assert found is not None
    assert (found.offset, found.number) == (3, 3)


@pytest.mark.parametrize("data", [b"", b"{}", b'{"format": 1}'])
def test_malformed_version_data_is_refused(data: bytes) -> None:
    with pytest.raises(CorruptData, match="offset 7"):
        current([(7, data)])


def test_a_newer_format_is_refused() -> None:
    _, (_, data) = record_version(None, "a", offset=0)
    with pytest.raises(CorruptData, match="use the newer streamlog that wrote it"):
        current([(0, data.replace(b'"format":1', b'"format":2'))])


def on_a_log(path: Path, story: Callable[[Log], Awaitable[None]]) -> None:
    async def main() -> None:
        async with Log.open(f"embedded:{path}/log", listen=False) as log:
            await story(log)

    asyncio.run(main())


def test_workers_that_start_at_once_agree_on_a_version(tmp_path: Path) -> None:
    async def story(log: Log) -> None:
        def start(*names: str) -> Awaitable[VersionChange]:
            return VersionLog(log, topology(*names)).settle(accept_state_loss=False)

        await asyncio.gather(*(start("a") for _ in range(5)))
        changes = await asyncio.gather(*(start("a", "b") for _ in range(5)))
        assert {change.era.number for change in changes} == {0}
        found = await VersionLog(log, topology("a", "b")).compare()
        assert found.is_settled
        assert found.number == 2

    on_a_log(tmp_path, story)


def test_different_programs_that_start_at_once_become_successive_versions(tmp_path: Path) -> None:
    async def story(log: Log) -> None:
        names = [("a", f"b{number}") for number in range(4)]
        programs = [VersionLog(log, topology(*each)) for each in names]
        await asyncio.gather(*(each.settle(accept_state_loss=True) for each in programs))
        found = await programs[0].compare()
        assert found.before is not None
        assert 1 <= found.before.number <= 4
        # Each has compared itself with its predecessor: no loss went unnoticed.
        assert found.before.era.number == found.before.number - 1

    on_a_log(tmp_path, story)


def test_a_refused_program_records_nothing(tmp_path: Path) -> None:
    async def story(log: Log) -> None:
        await VersionLog(log, topology("a")).settle(accept_state_loss=False)
        other = VersionLog(log, topology("b"))
        with pytest.raises(StateLost, match="the state of a: the node no longer exists"):
            await other.settle(accept_state_loss=False)
        assert (await VersionLog(log, topology("a")).compare()).is_settled

    on_a_log(tmp_path, story)


def test_an_app_without_streams_has_no_version_topic(tmp_path: Path) -> None:
    async def story(log: Log) -> None:
        nothing = App("app").topology()
        change = await VersionLog(log, nothing).settle(accept_state_loss=False)
        assert change.before is None
        topics = {topic.name for topic in await log.admin().list_topics()}
        assert version_topic("app") not in topics

    on_a_log(tmp_path, story)


def test_a_worker_refuses_to_lose_state_unless_accepted(tmp_path: Path) -> None:
    (tmp_path / "words.py").write_text(COUNTING)
    seen: list[int] = []

    async def one_more(log: Log) -> None:
        async with log.producer() as producer:
            await producer.send("words", b"x", key=b"k")
        records = await read_until(log, "counts", lambda found: len(found) > len(seen))
        seen.append(int.from_bytes(records[-1][1].value or b""))

    def counted(count: str, *options: str) -> str:
        command = (*STREAMLOG, "-A", "words", "worker", *options)
        with running(*command, cwd=tmp_path, COUNT=count) as worker:
            worker.line(r"^topology ")
            attached(f"embedded:{tmp_path}/log", one_more)
            assert worker.stop() == 0
            return worker.output

    assert "topology  the first version" in counted("one")
    code, output = streamlog("-A", "words", "worker", cwd=tmp_path, COUNT="other")
    assert code == 8, output
    assert "! the state of one: the node no longer exists" in output
    assert "worker --accept-state-loss" in output
    code, output = streamlog("-A", "words", "topology", "--diff", cwd=tmp_path, COUNT="other")
    assert code == 0, output
    assert "version 2, compared with version 1" in output
    assert "+ Aggregate other" in output
    picture = ("topology", "--diff", "--format", "mermaid")
    code, output = streamlog("-A", "words", *picture, cwd=tmp_path, COUNT="other")
    assert (code, output.count("stroke-width:3px")) == (0, 3)
    assert re.search(r"^  class n\d+ added$", output, re.MULTILINE)
    assert "version 1, unchanged" in counted("one")
    assert "version 2, compared with version 1" in counted("other", "--accept-state-loss")
    # The name is free now, and its old state is gone.
    assert "version 3, compared with version 2" in counted("one", "--accept-state-loss")
    assert seen == [1, 2, 1, 1]


CARRYING = """
import os
from streamlog import App
from streamlog.connectors.memory import MemorySource

app = App("words", log="embedded:./log", state_dir="./state", commit_interval="50ms")
words = app.topic("words", key=str, value=str)
app.source(words, MemorySource(values=["a"]), name=os.environ["SOURCE"])
"""


def test_a_worker_refuses_to_rename_a_connector_unless_accepted(tmp_path: Path) -> None:
    (tmp_path / "words.py").write_text(CARRYING)

    def started(source: str, *options: str) -> str:
        command = (*STREAMLOG, "-A", "words", "worker", *options)
        with running(*command, cwd=tmp_path, SOURCE=source) as worker:
            worker.line(r"^topology ")
            assert worker.stop() == 0
            return worker.output

    assert "topology  the first version" in started("one")
    for command in ("worker",), ("topology", "--diff"):
        code, output = streamlog("-A", "words", *command, cwd=tmp_path, SOURCE="other")
        assert code == (8 if command == ("worker",) else 0), output
        assert "- source one (MemorySource)" in output
        assert "+ source other (MemorySource)" in output
        assert "! the offsets of source one: they are found by its name, so other" in output
    assert "version 2, compared with version 1" in started("other", "--accept-state-loss")
