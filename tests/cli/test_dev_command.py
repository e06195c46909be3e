"""`streamlog dev`: brokers under one supervisor, as users meet them who try out a cluster."""

from __future__ import annotations

import os
import re
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chaos.ports import reserved_ports
from streamlog.cli.cluster_init import local_nodes, write_nodes
from streamlog.cli.dev_command import read_nodes, refuse_other_addresses, with_registries
from streamlog.cli.one_app.dev_app import Stamp, changes, dev_app, look_at
from streamlog.errors import ConfigError, UsageError
from tests.worker.processes import STREAMLOG, running, streamlog


@pytest.fixture
def address() -> Iterator[str]:
    with reserved_ports(1) as (port,):
        yield f"127.0.0.1:{port}"


def test_a_killed_broker_is_replaced_and_ctrl_c_stops_all(tmp_path: Path, address: str) -> None:
    command = (*STREAMLOG, "dev", "--brokers", "1", "--data", "c", "--listen", address)
    with running(*command, cwd=tmp_path) as process:
        process.line(re.escape(f"1 broker in c: bootstrap.servers={address}"))
        pid = int(process.line(r"broker 1 runs as process (\d+)")[1])
        os.kill(pid, signal.SIGKILL)
        process.line("broker 1 was killed by SIGKILL: it is replaced")
        process.line("1 . listening on", count=2)
        assert process.stop() == 0
        assert "stopped: data and settings stay in c for the next run" in process.output


def test_a_broker_that_cannot_start_stops_all(tmp_path: Path, address: str) -> None:
    port = int(address.rpartition(":")[2])
    with socket.create_server(("127.0.0.1", port)):
        code, printed = streamlog("dev", "--brokers", "1", "--listen", address, cwd=tmp_path)
    assert code == 6
    assert f"error: broker 1 ended with code 6: error: can't listen on {address}" in printed


def test_dev_reuses_an_existing_cluster_directory(tmp_path: Path) -> None:
    nodes = local_nodes(tmp_path, 12, "127.0.0.1:9092", {})
    write_nodes(nodes, None)
    assert [each.number for each in read_nodes(tmp_path)] == [*range(1, 13)]
    assert [each.listeners for each in read_nodes(tmp_path)] == [each.listeners for each in nodes]
    code, printed = streamlog("dev", "--brokers", "3", "--data", str(tmp_path), cwd=tmp_path)
    assert (code, "has 12 brokers: omit --brokers" in printed) == (2, True)
    code, printed = streamlog("dev", "--listen", "a:1", "--data", str(tmp_path), cwd=tmp_path)
    assert (code, "has 127.0.0.1:9092, not a:1: omit --listen" in printed) == (2, True)


def test_the_addresses_that_a_cluster_has_may_be_repeated(tmp_path: Path) -> None:
    first, *_ = with_registries(local_nodes(tmp_path, 3, "127.0.0.1:9092", {}), "127.0.0.1:0")
    registry = first.settings["schema.registry.listener"]
    given = {"--listen": "127.0.0.1:9092", "--registry": registry}
    refuse_other_addresses(tmp_path, first, given)
    with pytest.raises(UsageError, match=f"has {registry}, not 127.0.0.1:1: omit --registry"):
        refuse_other_addresses(tmp_path, first, {**given, "--registry": "127.0.0.1:1"})


def test_a_console_may_be_asked_for_by_its_port_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "shop.py").write_text("")
    monkeypatch.chdir(tmp_path)
    assert dev_app("shop.py", log="embedded:x", web=":8080", opens=False).web == "127.0.0.1:8080"
    with pytest.raises(ConfigError, match="--web='8080' is not HOST:PORT"):
        dev_app("shop.py", log="embedded:x", web="8080", opens=False)


APP = """
from streamlog import App

app = App("shop", log="kafka://nowhere:1")
words = app.topic("words", key=str, value=str, partitions=1)
counts = app.topic("counts", key=str, value=str, partitions=1)
counted = app.stream(words).group_by(lambda key, value: value, name="by").count(name="n")
counted.changes().map(lambda word, n: (word, f"GREETING {word} {n}")).to(counts)
"""
"""The log of the app is not the one that `dev` uses."""
CONSUME = ("consume", "counts", "--from-beginning", "--format", "%v", "--limit")


def send_and_read(directory: Path, count: int) -> list[str]:
    """Send one more `hello`, and return all rows once there are so many."""
    code, printed = streamlog("send", "words", "hello", cwd=directory)
    assert code == 0, printed
    code, printed = streamlog(*CONSUME, str(count), cwd=directory)
    assert code == 0, printed
    return [line for line in printed.splitlines() if "hello" in line]


def test_an_app_is_run_again_after_a_change_and_keeps_its_state(tmp_path: Path) -> None:
    file = tmp_path / "shop.py"
    file.write_text(APP.replace("GREETING", "one"))
    with running(*STREAMLOG, "dev", "shop.py", "--web", "127.0.0.1:0", cwd=tmp_path) as process:
        process.line(r"console   http://127.0.0.1:\d+/")
        process.line("tasks ")
        assert send_and_read(tmp_path, 1) == ["one hello 1"]
        file.write_text(file.read_text() + "\nimport no_such_module\n")
        process.line("changed: shop.py; the app starts again")
        process.line("No module named 'no_such_module'")
        process.line("the app has ended with code 1: waiting for a change in")
        file.write_text(APP.replace("GREETING", "two"))
        process.line("changed: shop.py; the app starts again", count=2)
        process.line("tasks ", count=2)
        assert send_and_read(tmp_path, 2) == ["one hello 1", "two hello 2"]
        assert process.stop() == 0
        assert "the log and the state stay for the next run" in process.output


def test_what_dev_can_not_run_is_named(tmp_path: Path) -> None:
    (tmp_path / "my-app.py").write_text("")
    for arguments, message in [
        (["missing.py"], "there is no 'missing.py'"),
        (["my-app.py"], "no module below"),
        (["shop.py", "--brokers", "3"], "are for a cluster"),
        (["--open"], "are for an app: streamlog dev FILE"),
    ]:
        code, printed = streamlog("dev", *arguments, cwd=tmp_path)
        assert (code, message in printed) == (2, True), printed


def test_files_of_environments_are_not_watched(tmp_path: Path) -> None:
    for name in ("a.py", "b.txt", "in/c.py", ".git/d.py", "env/lib/e.py", "venv/f.py"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("")
    (tmp_path / "env" / "pyvenv.cfg").write_text("")
    assert sorted(look_at(tmp_path)) == ["a.py", "in/c.py"]


FILES = st.dictionaries(st.sampled_from("abcd"), st.builds(Stamp, st.integers(0, 2), st.just(1)))


@given(FILES, FILES)
def test_changes_are_what_differs(before: dict[str, Stamp], after: dict[str, Stamp]) -> None:
    found = changes(before, after)
    assert {name: at for name, at in before.items() if name not in found} == {
        name: at for name, at in after.items() if name not in found
    }
    assert all(before.get(name) != after.get(name) for name in found)
