"""Files for systemd, containers and Kubernetes: valid by other programs, and their scripts run."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from streamlog.broker.config.broker import BrokerConfig
from streamlog.cli.root import cli
from streamlog.cli.session import Session
from streamlog.client.admin.topic_admin import NewTopic
from streamlog.errors import UsageError
from streamlog.generate import containers, kubernetes
from streamlog.generate.systemd import UnitKind, systemd_unit
from streamlog.log import Log
from streamlog.record import TopicPartition
from tests.servers.server_process import free_port

CLUSTER = "k7Vw2yBSRpGZ3mC9QdXfLA"
STREAMLOG = Path(sys.executable).with_name("streamlog")
APP = "examples.flights.app"
WAIT_S = 150


def printed(*arguments: str) -> str:
    result = CliRunner().invoke(cli, [*arguments], obj=Session(), catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def parsed(text: str) -> list[dict[str, Any]]:
    return [each for each in yaml.safe_load_all(text) if each is not None]


# systemd


@pytest.mark.parametrize("service", UnitKind)
def test_systemd_takes_the_units(service: UnitKind, tmp_path: Path) -> None:
    verifier = shutil.which("systemd-analyze")
    if verifier is None:
        pytest.skip("systemd-analyze is not installed (Debian: apt-get install systemd)")
    app = ["-A", APP] if service is UnitKind.WORKER else []
    unit = printed(*app, "generate", "systemd", service, "--user", "root")
    at = tmp_path / f"streamlog-{service}.service"
    at.write_text(unit)
    found = subprocess.run(
        [verifier, "verify", str(at)], capture_output=True, text=True, check=False
    )
    own = [line for line in found.stderr.splitlines() if at.name in line]
    assert not own
    assert found.returncode == 0


def test_the_unit_runs_the_program_that_has_printed_it() -> None:
    unit = printed("-A", APP, "generate", "systemd", "worker", "--log", "kafka://a:9092")
    command = re.search(r"^ExecStart=(.*)$", unit, re.MULTILINE)
    assert command is not None
    assert command[1] == f"{STREAMLOG} -A {APP} worker --log kafka://a:9092"
    assert f"Environment=PYTHONPATH={Path.cwd()}\n" in unit
    assert "WorkingDirectory=/var/lib/streamlog-worker\n" in unit


def test_the_unit_of_a_worker_needs_its_app() -> None:
    with pytest.raises(UsageError, match="streamlog -A MODULE generate systemd worker"):
        printed("generate", "systemd", "worker")


@given(st.lists(st.text(st.characters(blacklist_characters="\0\r\n", codec="utf-8"), min_size=1)))
def test_systemd_reads_each_word_back(words: list[str]) -> None:
    unit = systemd_unit(
        UnitKind.BROKER, ["/p", *words], name="n", user="u", docs="https://d", environment={}
    )
    line = next(line for line in unit.split("\n") if line.startswith("ExecStart="))
    # Quotes and backslashes are those of a shell in systemd; % and $ are doubled.
    found = shlex.split(line.removeprefix("ExecStart=").replace("$$", "\\$"), posix=True)
    assert [each.replace("%%", "%") for each in found] == ["/p", *words]


# Containers and Kubernetes


def test_the_compose_file_starts_what_the_script_says() -> None:
    (file,) = parsed(printed("generate", "compose", "--cluster-id", CLUSTER, "--port", "9192"))
    hosts = {number: f"broker-{number}" for number in (1, 2, 3)}
    for number, host in hosts.items():
        service = file["services"][host]
        (command,) = service["command"]
        script = containers.start_script(number, hosts, cluster=CLUSTER, first_port=9192)
        assert command.replace("$$", "$") == script
        assert service["read_only"]
        assert f"127.0.0.1:{9191 + number}:{9191 + number}" in service["ports"]
        assert host in file["volumes"]
    assert {"prometheus", "grafana"} <= {*file["services"]}
    for each in file["services"]["grafana"]["configs"]:
        assert parsed(file["configs"][each["source"]]["content"])


def test_the_containerfile_installs_this_release() -> None:
    text = printed("generate", "containerfile", "--extras", "web")
    assert re.search(r"pip install --no-cache-dir 'streamlog-py\[web\](==[\w.]+)?'", text)
    settings = re.search(r"COPY <<END [^\n]+\n(.*?)END\n", text, re.DOTALL)
    assert settings is not None
    given = dict(line.split("=", 1) for line in settings[1].splitlines())
    assert BrokerConfig().override(given).log_dirs == "/data/broker"


def test_the_manifests_fit_together() -> None:
    found = parsed(printed("generate", "kubernetes", "--cluster-id", CLUSTER))
    by_kind = {each["kind"]: each for each in found}
    config, pods, service = (by_kind[kind] for kind in ("ConfigMap", "StatefulSet", "Service"))
    assert config["data"]["start"] == kubernetes.start_script()
    pod = pods["spec"]["template"]
    assert pod["metadata"]["labels"] == service["spec"]["selector"]
    assert service["spec"]["publishNotReadyAddresses"]
    assert pods["spec"]["serviceName"] == service["metadata"]["name"]
    (container,) = pod["spec"]["containers"]
    variables = {each["name"]: each.get("value", "") for each in container["env"]}
    settings = dict(line.split("=", 1) for line in config["data"]["broker.properties"].splitlines())
    assert settings["controller.quorum.voters"] == variables["VOTERS"]
    assert len(variables["VOTERS"].split(",")) == pods["spec"]["replicas"] == 3
    mounts = {each["name"] for each in container["volumeMounts"]}
    claims = {each["metadata"]["name"] for each in pods["spec"]["volumeClaimTemplates"]}
    assert mounts == claims | {each["name"] for each in pod["spec"]["volumes"]}


def test_manifests_of_an_app_run_its_workers() -> None:
    text = printed("-A", APP, "generate", "kubernetes", "--name", "shop", "--replicas", "2")
    pods = next(each for each in parsed(text) if each["kind"] == "StatefulSet")
    (container,) = pods["spec"]["template"]["spec"]["containers"]
    assert container["args"][:5] == ["-A", APP, "worker", "--log", "kafka://streamlog:9092"]
    assert pods["spec"]["replicas"] == 2


def test_the_manifests_pass_the_schemas_of_kubernetes() -> None:
    schemas = pytest.importorskip(
        "kubernetes_validate", reason="pip install kubernetes-validate (108 MB of schemas)"
    )
    brokers = printed("generate", "kubernetes")
    workers = printed("-A", APP, "generate", "kubernetes", "--name", "shop")
    for each in (*parsed(brokers), *parsed(workers)):
        schemas.validate(each, schemas.latest_version(), strict=True)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("kubernetes", "--replicas", "2"), "1, 3 or 5"),
        (("kubernetes", "--name", "Shop"), "small letters"),
        (("kubernetes", "--storage", "much"), "such as 100Gi"),
        (("compose", "--cluster-id", "x\ny"), "22 letters"),
        (("containerfile", "--extras", "a b"), "commas"),
        (("systemd", "broker", "--name", "a/b"), "letters"),
    ],
)
def test_wrong_options_are_refused(arguments: tuple[str, ...], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        printed("generate", *arguments)


class Machines:
    """Three machines of which each runs the script of a pod or a container."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.running: dict[int, subprocess.Popen[bytes]] = {}
        self.port = free_port()

    def host(self, node: int) -> str:
        return f"127.0.0.{node + 10}"

    def data(self, node: int) -> Path:
        return self._directory / str(node)

    @property
    def url(self) -> str:
        return f"kafka://{self.host(1)}:{self.port}"

    def start(self, node: int, script: str, **environment: str) -> None:
        path = f"{STREAMLOG.parent}:{os.environ['PATH']}"
        with (self._directory / f"{node}.log").open("ab") as output:
            self.running[node] = subprocess.Popen(
                ["/bin/sh", "-euc", script],
                env={**os.environ, "PATH": path, **environment},
                stdout=output,
                stderr=output,
                start_new_session=True,
            )

    def kill(self, node: int) -> None:
        process = self.running.pop(node)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def are_well(self) -> None:
        command = [str(STREAMLOG), "cluster", "status", "--log", self.url, "--wait", str(WAIT_S)]
        status = subprocess.run(command, capture_output=True, text=True, check=False)
        logs = "".join(each.read_text() for each in self._directory.glob("*.log"))
        assert status.returncode == 0, f"{status.stdout}{status.stderr}{logs}"


@pytest.fixture
def machines(tmp_path: Path) -> Iterator[Machines]:
    made = Machines(tmp_path)
    try:
        yield made
    finally:
        for node in [*made.running]:
            made.kill(node)


async def written(url: str, values: list[bytes]) -> list[bytes | None]:
    """Write records, and return all that there are."""
    async with Log.open(url) as log:
        await log.admin().create_topics([NewTopic("t", partitions=1)])
        async with log.producer() as producer:
            for value in values:
                await producer.send("t", value)
        return list((await log.read_range(TopicPartition("t", 0))).values)


@pytest.mark.slow
def test_pods_form_a_cluster_and_rejoin_it_without_their_disk(machines: Machines) -> None:
    nodes = (1, 2, 3)
    voters = ",".join(f"{node}@{machines.host(node)}:{machines.port}" for node in nodes)

    def start(node: int, *, exists: str = "no") -> None:
        config, data, temporary = (machines.data(node) / each for each in ("config", "data", "tmp"))
        for each in (config, data, temporary):
            each.mkdir(parents=True, exist_ok=True)
        listener = f"PLAINTEXT://{machines.host(node)}:{machines.port}"
        (config / "exists").write_text(f"{exists}\n")
        (config / "broker.properties").write_text(
            f"listeners={listener}\ncontroller.quorum.voters={voters}\n"
        )
        script = kubernetes.start_script(listener=machines.port)
        here = {
            "/etc/streamlog": str(config),
            "/data": str(data),
            "/tmp": str(temporary),  # noqa: S108 - the pod's own
            "0.0.0.0:9300": f"{machines.host(node)}:0",
            "$POD.$DOMAIN": machines.host(node),
        }
        script = re.sub("|".join(map(re.escape, here)), lambda found: here[found[0]], script)
        machines.start(node, script, POD=f"streamlog-{node - 1}", CLUSTER_ID=CLUSTER, VOTERS=voters)

    for node in nodes:
        start(node)
    machines.are_well()
    machines.kill(2)
    start(2)
    machines.are_well()
    # A lost disk: prepared like a new one, the voter would vote at once.
    machines.kill(3)
    shutil.rmtree(machines.data(3) / "data")
    start(3, exists="yes")
    machines.are_well()
    log = (machines.data(3).parent / "3.log").read_text()
    assert "rejoin" in log


@pytest.mark.slow
@pytest.mark.skipif(
    os.environ.get("STREAMLOG_PROFILE") != "thorough",
    reason="three more brokers: with STREAMLOG_PROFILE=thorough",
)
def test_containers_form_a_cluster_that_clients_outside_reach(machines: Machines) -> None:
    hosts = {node: machines.host(node) for node in (1, 2, 3)}
    first = free_port()
    for node, host in hosts.items():
        machines.data(node).mkdir()
        script = containers.start_script(
            node,
            hosts,
            cluster=CLUSTER,
            directory=str(machines.data(node)),
            first_port=first,
            listener=machines.port,
            web=f"{host}:0",
        )
        machines.start(node, script)
    machines.are_well()
    values = [b"%d" % number for number in range(10)]
    assert asyncio.run(written(f"kafka://localhost:{first}", values)) == values


def test_scripts_pass_a_shell_checker() -> None:
    checker = shutil.which("shellcheck")
    if checker is None:
        pytest.skip("shellcheck is not installed (Debian: apt-get install shellcheck)")
    scripts = {
        "pod": kubernetes.start_script(),
        "container": containers.start_script(1, {1: "a"}, cluster=CLUSTER),
    }
    for name, script in scripts.items():
        found = subprocess.run(
            [checker, "--shell=sh", "-"],
            input=script,
            capture_output=True,
            text=True,
            check=False,
        )
        assert found.returncode == 0, f"{name}: {found.stdout}"


def test_values_are_quoted_for_yaml() -> None:
    image = 'a"b: {c}'
    found = parsed(
        kubernetes.worker_manifests(
            name="n", image=image, workers=1, storage="1Gi", arguments=["-A", image]
        )
    )
    pods = next(each for each in found if each["kind"] == "StatefulSet")
    (container,) = pods["spec"]["template"]["spec"]["containers"]
    assert (container["image"], container["args"][1]) == (image, image)
    assert json.loads(json.dumps(container["args"])) == container["args"]
