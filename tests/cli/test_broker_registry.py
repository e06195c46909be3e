"""`streamlog broker --registry` and the registries of `streamlog dev`."""

from __future__ import annotations

import json
import socket
import urllib.request
from pathlib import Path

from streamlog.cli.cluster_init import local_nodes
from streamlog.cli.dev_command import LISTENER_SETTING, with_registries
from tests.worker.processes import STREAMLOG, running, streamlog


def test_a_broker_prints_the_url_of_its_registry_and_serves_it(tmp_path: Path) -> None:
    listen = ("--listen", "127.0.0.1:0", "--registry", "127.0.0.1:0")
    with running(*STREAMLOG, "broker", "--data", "log", *listen, cwd=tmp_path) as process:
        url = process.line(r"registry +(http://\S+)")[1]
        process.line("listening on")
        with urllib.request.urlopen(f"{url}/subjects", timeout=60) as answer:  # noqa: S310 - ours
            assert json.loads(answer.read()) == []
        assert process.stop() == 0
        assert "Traceback" not in process.output


def test_an_address_that_others_reach_is_refused_without_security(tmp_path: Path) -> None:
    options = ("--data", "log", "--listen", "127.0.0.1:0", "--registry", "0.0.0.0:0")
    code, printed = streamlog("broker", *options, cwd=tmp_path)
    assert code == 2
    assert "needs schema.registry.ssl.enable=true" in printed
    assert "Traceback" not in printed


def test_brokers_of_dev_get_the_ports_that_are_free(tmp_path: Path) -> None:
    nodes = local_nodes(tmp_path, 3, "127.0.0.1:9092", {})
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        listeners = [
            each.settings[LISTENER_SETTING] for each in with_registries(nodes, f"127.0.0.1:{port}")
        ]
    assert f"127.0.0.1:{port}" not in listeners
    assert len(set(listeners)) == 3
    assert all(each.startswith("127.0.0.1:") for each in listeners)
