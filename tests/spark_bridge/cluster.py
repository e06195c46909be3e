"""A standalone Spark cluster on this machine: processes of a master and its workers."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from threading import Event
from time import monotonic

import pyspark

from spark_bridge import ensure_java

ROOT = Path(__file__).parents[2]
LOOPBACK = "127.0.0.1"
PATIENCE_S = 120
SETTINGS = {
    "SPARK_LOCAL_IP": LOOPBACK,
    "SPARK_DAEMON_MEMORY": "256m",
    "SPARK_DAEMON_JAVA_OPTS": "-XX:TieredStopAtLevel=1",
    "PYTHONPATH": str(ROOT),
}


@contextmanager
def cluster(directory: Path, workers: int = 2) -> Iterator[str]:
    """Yield the master's URL; each worker has one core and its own host address."""
    with ExitStack() as stack:
        service = ("master.Master", "--host", LOOPBACK, "--port", "0", "--webui-port", "0")
        log = stack.enter_context(_process(directory / "master", *service))
        url = _wait_for_line(log, r"Starting Spark master at (spark://\S+)")
        for number in range(workers):
            home = directory / f"worker-{number}"
            host = f"127.0.0.{number + 2}"
            service = ("worker.Worker", "--host", host, "--webui-port", "0", "--cores", "1")
            more = ("--memory", "1g", "--work-dir", str(home), url)
            log = stack.enter_context(_process(home, *service, *more))
            _wait_for_line(log, r"(Successfully registered with master)")
        yield url


@contextmanager
def _process(home: Path, service: str, *arguments: str) -> Iterator[Path]:
    """Run a process and yield the file with its output."""
    home.mkdir(parents=True)
    log = home / "log"
    spark_home = Path(pyspark.__file__).parent
    environment = os.environ | SETTINGS
    environment |= {"JAVA_HOME": str(ensure_java()), "SPARK_HOME": str(spark_home)}
    environment["PYSPARK_PYTHON"] = sys.executable
    command = [spark_home / "bin" / "spark-class", f"org.apache.spark.deploy.{service}"]
    with log.open("wb") as file:
        process = subprocess.Popen(
            [*command, *arguments], stdout=file, stderr=file, env=environment, cwd=ROOT
        )
    try:
        yield log
    finally:
        process.terminate()
        try:
            process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _wait_for_line(log: Path, pattern: str) -> str:
    """Wait until the log matches; return the pattern's group."""
    deadline, pause = monotonic() + PATIENCE_S, Event()
    while (found := re.search(pattern, log.read_text())) is None:
        assert monotonic() < deadline, log.read_text()
        pause.wait(0.05)
    return found[1]
