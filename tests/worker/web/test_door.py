"""A worker with a web server: real processes that answer over HTTP while they work."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import msgspec
import pytest

from streamlog import App
from streamlog.errors import ConfigError
from streamlog.log import Log
from streamlog.worker.worker import Worker
from tests.worker.processes import STREAMLOG, attached, read_until, running, streamlog
from tests.worker.web.requests import get

COUNTS = """
from streamlog import App

app = App("counts", log="embedded:./log", state_dir="./state", commit_interval="50ms")
words = app.topic("words", key=str, value=str, partitions=2)
counts = app.topic("counts", key=str, value=int, partitions=1)
app.stream(words).group_by_key().count(name="per-word").changes().to(counts)
"""
WORKER = (*STREAMLOG, "-A", "counts", "worker")


def test_a_worker_reports_liveness_readiness_and_metrics(tmp_path: Path) -> None:
    (tmp_path / "counts.py").write_text(COUNTS)
    with running(*WORKER, "--web", "127.0.0.1:0", cwd=tmp_path) as worker:
        url = worker.line(r"web +(http://127\.0\.0\.1:\d+)").group(1)
        assert get(f"{url}/live").status == 200
        worker.line("rebalance: this worker has 2 partitions")

        async def feed(log: Log) -> None:
            async with log.producer() as producer:
                for number in range(30):
                    await producer.send("words", b"x", key=f"{number % 3}".encode())
            await read_until(log, "counts", lambda records: len(records) >= 30)

        attached("embedded:" + str(tmp_path / "log"), feed)
        ready = get(f"{url}/ready")
        assert (ready.status, msgspec.json.decode(ready.body)["tasks"]) == (
            200,
            {"running": 2, "of": 2},
        )
        metrics = get(f"{url}/metrics").body.decode()
        assert 'streamlog_records_out_total{topic="counts"} 30' in metrics
        assert 'streamlog_task_state_bytes{task="0_1"}' in metrics
        consumed = "kafka_consumer_consumer_fetch_manager_metrics_records_consumed_total"
        assert f'{consumed}{{client_id="counts-consumer",topic="words"}} 30' in metrics
        assert 'kafka_consumer_consumer_coordinator_metrics_rebalance_total{client_id="' in metrics
        assert 'producer_metrics_record_error_total{client_id="counts-producer"} 0' in metrics
        other = url.rpartition(":")[2]
        code, output = streamlog(
            "-A", "counts", "worker", "--web", f"127.0.0.1:{other}", cwd=tmp_path
        )
        assert code == 6, output
        assert "the port is taken" in output
        assert worker.stop() == 0
        assert "Traceback" not in worker.output


def test_a_worker_without_the_web_extra_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    for module in ("worker.web.worker_server", "worker.web.web_server", "http_server"):
        monkeypatch.delitem(sys.modules, f"streamlog.{module}", raising=False)
        monkeypatch.delattr(f"streamlog.{module}", raising=False)
    app = App("bare", log=f"embedded:{tmp_path}/log", web=":0")
    worker = Worker(app.program(), log_url=app.log, announce=lambda _start: None)
    with pytest.raises(ConfigError, match=r"pip install 'streamlog-py\[web\]'"):
        asyncio.run(worker.run(asyncio.Event()))


def test_an_invalid_web_address_is_refused(tmp_path: Path) -> None:
    app = App("wrong", log=f"embedded:{tmp_path}/log", web="8080")
    worker = Worker(app.program(), log_url=app.log, announce=lambda _start: None)
    with pytest.raises(ConfigError, match="web='8080' is not HOST:PORT"):
        asyncio.run(worker.run(asyncio.Event()))
