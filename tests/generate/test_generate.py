"""Generated files: they name metrics that exist, and Prometheus' own tool accepts and runs them."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from streamlog.broker.broker import Broker
from streamlog.broker.config.connections import Listener
from streamlog.broker.server.socket_server import SocketServer
from streamlog.broker.storage.disk.memory_files import MemoryFiles
from streamlog.clock import SystemClock
from streamlog.connect.herding.herder import Herder
from streamlog.generate.alerts import (
    AlertLimits,
    alert_rules,
    app_alerts,
    cluster_alerts,
    connector_alerts,
    group_alerts,
    mirror_alerts,
)
from streamlog.generate.grafana import BOARDS, Board, dashboard
from streamlog.generate.scrape import scrape_config
from streamlog.metrics.event_loop import MeasuredLoop
from streamlog.metrics.prometheus import exposition
from streamlog.worker.connect.app_herder import DeclaredPlugins
from streamlog.worker.connect.connect_metrics import ConnectMetrics, ConnectorFigures
from streamlog.worker.health.worker_health import WorkerState
from streamlog.worker.health.worker_metrics import WorkerMetrics

RUNBOOKS = Path(__file__).parent.parent.parent / "docs" / "runbooks.md"
LIMITS = AlertLimits()
ALERTS = (
    *cluster_alerts(LIMITS),
    *group_alerts(LIMITS),
    *app_alerts(LIMITS),
    *connector_alerts(LIMITS),
    *mirror_alerts(LIMITS),
)
NAME = re.compile(r"\b(?:kafka|streamlog|process)_\w+")
CONTROLLERS = "kafka_controller_kafkacontroller_activecontrollercount"
FLUSHES = 'streamlog_log_flush_seconds_bucket{instance="a",le='
PRODUCES = (
    'streamlog_request_duration_seconds_bucket{instance="a",request="Produce",part="total",le='
)
UNCLEAN = "kafka_controller_controllerstats_uncleanleaderelections_total"
DEAD = 'streamlog_records_dropped_total{reason="dead letter",node="n"}'
READ = 'kafka_connect_sink_task_metrics_sink_record_read_total{connector="c",task="0"}'
LAG = 'streamlog_connector_lag_records{connector="c",task="0"}'
KEPT = 'streamlog_connector_slot_retained_bytes{connector="c",task="0"}'
SAFE = 'streamlog_connector_slot_safe_bytes{connector="c",task="0"}'
ERRORS = "kafka_connect_task_error_metrics_"
LETTERS = f'{ERRORS}deadletterqueue_produce_requests{{connector="c",task="0"}}'
RETRIES = f'{ERRORS}total_retries{{connector="c",task="0"}}'
FAILED = "kafka_connect_connect_worker_metrics_connector_failed_task_count"
MIRRORS = 'streamlog_mirror_topics{link="east",instance='
STEADY: dict[str, tuple[str, ...]] = {
    "BrokerDown": ('up{job="streamlog-brokers",instance="a"} 0x40',),
    "NoController": (f'{CONTROLLERS}{{instance="a"}} 0x40', f'{CONTROLLERS}{{instance="b"}} 0x40'),
    "OfflinePartitions": ("kafka_controller_kafkacontroller_offlinepartitionscount 2x40",),
    "UnderMinIsr": ("kafka_server_replicamanager_underminisrpartitioncount 1x40",),
    "UnderReplicated": ("kafka_server_replicamanager_underreplicatedpartitions 1x40",),
    "DiskFull": (
        "streamlog_log_directory_usable_bytes 9x40",
        "streamlog_log_directory_total_bytes 100x40",
    ),
    "DiskFailed": ("kafka_log_logmanager_offlinelogdirectorycount 1x40",),
    "SlowSync": (
        f'{FLUSHES}"0.1"}} 0x40', f'{FLUSHES}"0.5"}} 0+10x40', f'{FLUSHES}"+Inf"}} 0+10x40'
    ),
    "SlowProduce": (
        f'{PRODUCES}"1"}} 0+8x40', f'{PRODUCES}"5"}} 0+10x40', f'{PRODUCES}"+Inf"}} 0+10x40'
    ),
    "BrokerBusy": ("kafka_server_kafkarequesthandlerpool_requesthandleravgidle_percent 0.2x40",),
    "GroupLag": ("kafka_consumergroup_group_max_lag_seconds 301x40",),
    "GroupLostRecords": ("streamlog_consumergroup_group_lost_records 0x30 5 0x9",),
    "WorkerDown": ('up{job="streamlog-apps"} 0x40',),
    "TaskStalled": ('streamlog_stalled_seconds{who="task 0_0"} 0+60x40',),
    "ResultHeldBack": ("streamlog_held_back_seconds 0+60x40",),
    "WorkerUnassigned": ("streamlog_assigned 0x40",),
    "ConnectorFailed": (f'{FAILED}{{connector="c"}} 0x10 1x30',),
    # One attempt a minute, the longest back-off, with half a minute for each.
    "ConnectorRetries": (f"{RETRIES} " + " ".join(f"{number}x2" for number in range(14)),),
    "SourceStandsStill": ('streamlog_connector_lag_seconds{connector="c",part="{}"} 0+30x40',),
    "SinkLag": (f"{READ} 0+30x10 300x30", f"{LAG} 0x10 0+90x30"),
    "SlotLag": (f"{KEPT} 12000000000x40",),
    "SlotLosesWal": (f"{KEPT} 950x40", f"{SAFE} 50x40"),
    # Both brokers report the decision, and it is one alert.
    "MirrorStopped": tuple(f'{MIRRORS}"{each}",state="STOPPED"}} 2x40' for each in "ab"),
    "MirrorLinkDown": ('streamlog_mirror_link_up{link="east",instance="a"} 0x40',),
    "MirrorLag": ('streamlog_mirror_lag_seconds{link="east",topic="t"} 0+30x40',),
}  # fmt: skip
"""Per alert, the series of 20 minutes in which it fires at the end."""
HAPPENED: dict[str, tuple[str, ...]] = {
    # Of the active controller, of one that becomes active, and from the first sample of a series.
    "UncleanElection": (f"{UNCLEAN} 0x38 1x2",),
    "UnreadableBatches": ("streamlog_cleaner_unreadable_batches_total 0x10 3x30",),
    "ConnectionsRefused": ("streamlog_connections_refused_total 5x36 9x4",),
    "DeadLetters": (f"{DEAD} _x36 1x4",),
    "ConnectorDeadLetters": (f"{LETTERS} 0x36 1x4",),
    "MirrorCut": ('streamlog_mirror_cuts_total{link="east"} 1x36 2x4',),
}
HEALTHY = (
    'up{job="streamlog-brokers"} 1x40',
    'up{job="streamlog-apps"} 1x40',
    # Two clusters with a controller each, and a third whose controller moves.
    f'{CONTROLLERS}{{cluster="x",instance="a"}} 1x40',
    f'{CONTROLLERS}{{cluster="y",instance="b"}} 1x40',
    f'{CONTROLLERS}{{cluster="z",instance="c"}} 1x20 0x20',
    f'{CONTROLLERS}{{cluster="z",instance="d"}} 0x21 1x19',
    "kafka_controller_kafkacontroller_offlinepartitionscount 0x40",
    # A broker restarts, and is in sync again after some minutes.
    "kafka_server_replicamanager_underreplicatedpartitions 0x20 7x10 0x10",
    "streamlog_log_directory_usable_bytes 11x40",
    "streamlog_log_directory_total_bytes 100x40",
    "kafka_log_logmanager_offlinelogdirectorycount 0x40",
    f'{FLUSHES}"0.1"}} 0+10x40',
    f'{FLUSHES}"+Inf"}} 0+10x40',
    f"{UNCLEAN} 1x10 1x30",
    DEAD.replace("dead letter", "late") + " 0+1x40",
    f"{DEAD} 4x40",
    "kafka_consumergroup_group_max_lag_seconds 0x10 900x5 0x25",
    "streamlog_assigned 1x40",
    f"{LETTERS} 4x40",
    # The target was away for a minute, which has seven attempts.
    f"{RETRIES} 0x10 4x1 7x28",
    'streamlog_connector_lag_seconds{connector="c",part="{}"} 0x10 299x30',
    # A sink that keeps up, one that has nothing to do, and one that waits for an hour to be full.
    f"{READ} 0+300x40",
    f"{LAG} 200x40",
    READ.replace('"c"', '"idle"') + " 7x40",
    LAG.replace('"c"', '"idle"') + " 0x40",
    f"{KEPT} 900x40",
    f"{SAFE} 150x40",
    f'{MIRRORS}"a",state="ACTIVE"}} 2x40',
    f'{MIRRORS}"a",state="STOPPED"}} 0x40',
    # The source restarts.
    'streamlog_mirror_link_up{link="east",instance="a"} 1x10 0x4 1x26',
    'streamlog_mirror_lag_seconds{link="east",topic="t"} 0x10 0+30x4 0x26',
    'streamlog_mirror_cuts_total{link="east"} 3x40',
)


def test_each_alert_has_a_section_in_the_runbooks_and_each_section_an_alert() -> None:
    sections = re.findall(r"^### (\S+)$", RUNBOOKS.read_text(), re.MULTILINE)
    assert sections == [alert.name for alert in ALERTS]


def test_links_lead_to_the_sections() -> None:
    links = re.findall(r'runbook_url: "([^"]+)"', alert_rules(docs="https://docs.example.org"))
    names = re.findall(r"- alert: (\S+)", alert_rules())
    base = "https://docs.example.org/runbooks.md#"
    assert links == [base + name.lower() for name in names]


@pytest.fixture(scope="module")
def exposed() -> set[str]:
    """The names of all metrics of a broker and of a worker."""

    async def of_broker() -> str:
        async with (
            Broker.open("data", files=MemoryFiles()) as broker,
            SocketServer(broker, [Listener()]),
        ):
            return (await exposition(broker.directory.metrics)).decode()

    async def of_worker() -> str:
        metrics = WorkerMetrics()
        metrics.describe(WorkerState)
        # What `PostgresCdc` measures, without a database.
        gauges = {"slot_retained_bytes": 0.0, "slot_safe_bytes": 0.0}
        task: Any = SimpleNamespace(
            name="c", number=0, held_records=0, held_bytes=0, gauges=gauges, readers=()
        )
        herder = Herder("w:8083", DeclaredPlugins(()))
        now = ConnectorFigures(
            sources={("c", 0): task}, sinks={}, read={}, written={}, own={}, herder=herder
        )
        metrics.registry.collect(ConnectMetrics(lambda: now, SystemClock()).collect)
        return (await exposition(metrics.registry)).decode()

    with asyncio.Runner(loop_factory=MeasuredLoop) as runner:
        text = runner.run(of_broker()) + runner.run(of_worker())
    return set(re.findall(r"^# TYPE (\S+) ", text, re.MULTILINE))


@pytest.mark.parametrize(
    "text",
    [
        *(pytest.param(alert.expr, id=alert.name) for alert in ALERTS),
        *(pytest.param(dashboard(board), id=board) for board in Board),
        pytest.param(RUNBOOKS.read_text(), id="runbooks"),
    ],
)
def test_each_metric_that_is_named_is_one_of_a_broker_or_a_worker(
    text: str, exposed: set[str]
) -> None:
    named = {name.removesuffix("_bucket") for name in NAME.findall(text)}
    assert named - exposed == set()


def promtool(*arguments: object) -> None:
    tool = shutil.which("promtool")
    if tool is None:
        pytest.skip("promtool is not installed (Debian's package prometheus)")
    done = subprocess.run([tool, *map(str, arguments)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_promtool_accepts_rules_and_configuration(tmp_path: Path) -> None:
    limits = AlertLimits(pending="30s", lag_seconds=12.5, disk_share=0.25, flush_seconds=0.5)
    (tmp_path / "streamlog-alerts.yml").write_text(alert_rules(limits))
    config = tmp_path / "prometheus.yml"
    config.write_text(scrape_config(["a:1", "b:2"], ["c:3"], cluster='a "b"', interval="5s"))
    # The configuration names the rules, so both are checked.
    promtool("check", "config", config)


def test_each_alert_fires_for_its_series_and_none_in_health(tmp_path: Path) -> None:
    (tmp_path / "rules.yml").write_text(alert_rules())
    cases = [
        *((f"Streamlog{name}", series) for name, series in (STEADY | HAPPENED).items()),
        ("", HEALTHY),
    ]
    assert {name for name, _ in cases} == {"", *(alert.name for alert in ALERTS)}
    tests = [
        {
            "name": name,
            "interval": "30s",
            "input_series": [
                {"series": each.partition("} ")[0] + "}", "values": each.partition("} ")[2]}
                if "}" in each
                else dict(zip(("series", "values"), each.split(" ", 1), strict=True))
                for each in series
            ],
            "promql_expr_test": [
                {
                    "expr": 'count by (alertname) (ALERTS{alertstate="firing"})',
                    "eval_time": "20m",
                    "exp_samples": [{"labels": f'{{alertname="{name}"}}', "value": 1}]
                    if name
                    else [],
                }
            ],
        }
        for name, series in cases
    ]
    checks = {"rule_files": ["rules.yml"], "evaluation_interval": "30s", "tests": tests}
    (tmp_path / "checks.yml").write_text(json.dumps(checks))
    promtool("test", "rules", tmp_path / "checks.yml")


@pytest.mark.parametrize("board", Board)
def test_panels_of_a_dashboard_fill_its_grid_without_overlap(board: Board) -> None:
    model = json.loads(dashboard(board))
    places = [panel["gridPos"] for panel in model["panels"]]
    taken = [
        (x, y)
        for place in places
        for x in range(place["x"], place["x"] + place["w"])
        for y in range(place["y"], place["y"] + place["h"])
    ]
    assert len(taken) == len({*taken})
    assert max(x for x, _ in taken) < 24
    assert len({panel["id"] for panel in model["panels"]}) == len(places)


@pytest.mark.parametrize("board", Board)
def test_a_dashboard_uses_the_choices_that_it_offers(board: Board) -> None:
    variables, _ = BOARDS[board]
    offered = {"source", *(each.name for each in variables)}
    used = set(re.findall(r"\$\{?([a-z]+)\b", dashboard(board)))
    assert used == offered
