"""`streamlog dev`: brokers under one supervisor, as users meet them who try out a cluster."""

from __future__ import annotations

import os
import re
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from chaos.ports import reserved_ports
from streamlog.cli.cluster_init import local_nodes, write_nodes
from streamlog.cli.dev_command import read_nodes
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
    assert (code, "omit --listen" in printed) == (2, True)
