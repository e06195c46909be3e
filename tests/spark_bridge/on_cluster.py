"""The driver of a cluster: reads a log without a broker and runs histories despite failures.

`python -m tests.spark_bridge.on_cluster MASTER DIRECTORY` prints its results as JSON, last.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from threading import Event
from typing import Any

from spark_bridge import session
from streamlog import App
from streamlog.history.job import BackfillJob
from streamlog.snapshots.snapshot import Snapshot

END = "2100-01-01"
FIRST_COMPILER = "-XX:TieredStopAtLevel=1"
WAIT_S = 240
CONF = {
    "spark.driver.extraJavaOptions": FIRST_COMPILER,
    "spark.executor.extraJavaOptions": FIRST_COMPILER,
    "spark.executor.memory": "512m",
    "spark.speculation": "true",
    "spark.speculation.interval": "100ms",
    "spark.speculation.quantile": "0.4",
    "spark.speculation.multiplier": "1.1",
    "spark.speculation.minTaskRuntime": "0ms",
}


def shop(directory: Path, change: Callable[[int], int]) -> App:
    """Build sums by shop, through a repartition, of orders that a function changes."""
    # Relative to this process: the executors have other working directories.
    log = f"embedded:{os.path.relpath(directory / 'log')}"
    app = App("shop", log=log, state_dir=str(directory / "state"))
    orders = app.topic("orders", key=str, value=int, partitions=2)
    totals = app.topic("totals", key=str, value=int, partitions=2)
    grouped = app.stream(orders).map_values(change, name="changed").group_by(_by_shop, name="by")
    grouped.reduce(_added, name="sum").changes().to(totals)
    return app


def unchanged(value: int) -> int:
    return value


def kill_once_with(marker: Path) -> Callable[[int], int]:
    """Return a function that kills the JVM of its task's executor, once."""

    def kill_once(value: int) -> int:
        if value == 1_500 and not marker.exists():
            marker.touch()
            daemon = os.getppid()
            status = Path(f"/proc/{daemon}/status").read_text().split("PPid:")[1]
            os.kill(int(status.split()[0]), signal.SIGKILL)
            Event().wait(WAIT_S)
        return value

    return kill_once


def lag_once_with(directory: Path) -> Callable[[int], int]:
    """Return a function that blocks until a second attempt at its task catches up."""

    def lag_once(value: int) -> int:
        if value == 1_500:
            try:
                (directory / "lags").touch(exist_ok=False)
            except FileExistsError:
                (directory / "overtaken").touch()
                return value
            pause = Event()
            for _ in range(WAIT_S * 10):
                if (directory / "overtaken").exists():
                    return value
                pause.wait(0.1)
            raise RuntimeError("Spark did not start this task a second time")
        return value

    return lag_once


def content(job: BackfillJob, snapshot: Snapshot) -> dict[str, Any]:
    """Return the results of a history without the names of attempts."""
    staged = snapshot.manifest.staged
    return {
        "rows": job.rows["totals"],
        "staged": sorted([part.topic, part.partition, part.records, part.crc] for part in staged),
        "state": snapshot.manifest.rows,
    }


def main(master: str, directory: Path) -> dict[str, object]:
    spark = session("on a cluster", master, CONF)
    frame = spark.read.format("streamlog").option("path", str(directory / "log"))
    rows = frame.option("subscribe", "orders").option("minPartitions", "4").load()
    found: dict[str, object] = {"read": rows.count()}
    changes = {"killed": kill_once_with(directory / "killed"), "lagging": lag_once_with(directory)}
    for name, change in {"calm": unchanged, **changes}.items():
        job = shop(directory, change).backfill(
            engine="spark",
            spark=spark,
            until=END,
            outputs="stage",
            directory=str(directory / f"of-{name}"),
        )
        found[name] = content(job, job.run())
    spark.stop()
    return found


def _by_shop(key: str, _value: int) -> str:
    return key


def _added(left: int, right: int) -> int:
    return left + right


if __name__ == "__main__":
    sys.stdout.write("\n" + json.dumps(main(sys.argv[1], Path(sys.argv[2]))) + "\n")
