"""What lists or describes prints JSON as well; unknown names are answered by the nearest ones."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.table import Table as Grid
from typer.testing import CliRunner

from streamlog.cli.access_commands import quotas, users
from streamlog.cli.groups_command import groups
from streamlog.cli.root import COMMANDS, load_command
from streamlog.cli.terminal import print_grid
from streamlog.cli.topics_command import client_metrics, configs, topics
from streamlog.client.admin import NewTopic
from streamlog.errors import LogError
from streamlog.log import Log
from streamlog.record import TopicPartition
from tests.cli.console import console
from tests.worker.processes import running


def leaves(path: tuple[str, ...], command: Any) -> Iterator[tuple[tuple[str, ...], Any]]:
    inner = getattr(command, "commands", None)
    if not inner:
        yield path, command
    for name, each in (inner or {}).items():
        yield from leaves((*path, name), each)


WITHOUT_JSON = {
    "run until they are stopped, and log": {
        "worker", "broker", "dev", "connect", "canary",
    },
    "speak JSON-RPC to a program": {
        "mcp",
    },
    "print a document, whose form --format or the command itself decides": {
        "topology", "contracts map", "contracts export", "connectors offsets",
        "generate grafana", "generate alerts", "generate prometheus", "generate systemd",
        "generate containerfile", "generate compose", "generate kubernetes",
    },
    "change something: the exit code is the answer": {
        "send", "backfill", "hand-over", "promote", "log repair",
        "topics create", "topics alter", "topics delete", "configs alter",
        "client-metrics alter", "client-metrics delete", "groups delete", "transactions abort",
        "users add", "users remove", "acls add", "acls remove", "quotas set", "quotas remove",
        "dlq replay", "dlq drop",
        "cluster init", "cluster grow", "cluster cordon", "cluster uncordon", "cluster elect",
        "cluster log-dirs move",
        "connectors create", "connectors delete", "connectors pause", "connectors resume",
        "connectors stop", "connectors restart",
    },
}  # fmt: skip
"""Commands that neither list nor describe; each other one prints JSON, a new one included."""


def test_all_that_lists_or_describes_prints_json() -> None:
    without = {
        " ".join(path)
        for name in COMMANDS
        for path, command in leaves((name,), load_command(name))
        if not any("--json" in each.opts for each in command.params)
    }
    assert without == set[str]().union(*WITHOUT_JSON.values())


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    where = tmp_path_factory.mktemp("listings") / "log"

    async def fill() -> None:
        async with Log.open(f"embedded:{where}", listen=False, create=True) as opened:
            admin = opened.admin()
            await admin.create_topics([NewTopic("orders", 2), NewTopic("payments", 1)])
            async with opened.producer() as producer:
                await (await producer.send("payments", b"1", partition=0))
            await admin.alter_group_offsets("readers", {TopicPartition("payments", 0): 1})

    asyncio.run(fill())
    return where


def test_lists_are_objects(log: Path) -> None:
    assert json.loads(console(topics, log)("list", "--json")) == [
        {"topic": "orders", "partitions": 2},
        {"topic": "payments", "partitions": 1},
    ]
    # The notes about the topic go to standard error, which follows here.
    first, *_ = console(topics, log)("describe", "payments", "--json").splitlines()
    assert json.loads(first)[0] == {
        "partition": 0, "first_offset": 0, "next_offset": 1, "offsets": 1,
    }  # fmt: skip
    assert json.loads(console(groups, log)("list", "--json")) == [
        {"group": "readers", "kind": "classic", "state": "Empty"}
    ]
    for room in (users, quotas, client_metrics):
        assert json.loads(console(room, log)("list", "--json")) == []
    shown = json.loads(console(configs, log)("describe", "--topic", "orders", "--all", "--json"))
    retention = next(each for each in shown if each["setting"] == "retention.ms")
    assert isinstance(retention["value"], int)


@pytest.mark.parametrize(
    ("room", "arguments", "hint"),
    [
        (topics, ("describe", "ordrs"), "did you mean 'orders'"),
        (topics, ("delete", "payment"), "did you mean 'payments'"),
        (groups, ("describe", "reader"), "did you mean 'readers'"),
        (groups, ("delete", "redaers"), "did you mean 'readers'"),
    ],
)
def test_unknown_names_are_answered_by_the_nearest(
    log: Path, room: Any, arguments: tuple[str, ...], hint: str
) -> None:
    with pytest.raises(LogError, match=hint):
        console(room, log)(*arguments)


@pytest.mark.parametrize(
    ("words", "name"),
    [
        ("streamlog topics describe --log {} pay", "payments"),
        ("streamlog groups describe --log {} r", "readers"),
    ],
)
def test_a_shell_completes_names(log: Path, words: str, name: str) -> None:
    line = words.format(f"embedded:{log}")
    variables = {
        "_STREAMLOG_COMPLETE": "complete_bash",
        "COMP_WORDS": line,
        "COMP_CWORD": str(len(line.split()) - 1),
    }
    # Under its own name, by which a shell asks.
    script = str(Path(sys.executable).with_name("streamlog"))
    with running(script, cwd=log.parent, **variables) as process:
        process.wait()
        assert name in process.output.split()


CELLS = st.lists(
    st.tuples(st.text(alphabet="ab [x]-", min_size=2), st.integers(-(10**17), 10**17)), max_size=4
)


@given(CELLS)
def test_a_grid_is_a_list_of_its_rows(rows: list[tuple[str, int]]) -> None:
    grid = Grid("first name", "count")
    for name, count in rows:
        grid.add_row(name, str(count))
    commands = CliRunner()
    with commands.isolation() as (out, *_):
        print_grid(grid, as_json=True)
        printed = out.getvalue()
    assert json.loads(printed) == [{"first_name": name, "count": count} for name, count in rows]
