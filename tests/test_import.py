"""`import streamlog` stays light: what needs a library imports it when it is used."""

from __future__ import annotations

import subprocess
import sys

HEAVY = {
    "aiohttp",
    "asyncio",
    "cramjam",
    "croniter",
    "datasketches",
    "ddsketch",
    "fastavro",
    "numpy",
    "prometheus_client",
    "starlette",
    "uvicorn",
    "pandas",
    "pyarrow",
    "pydantic",
    "pyspark",
    "rich",
    "rocksdict",
    "streamlog.broker",
    "streamlog.client",
    "streamlog.worker",
    "typer",
}


def test_importing_streamlog_brings_in_no_heavy_module() -> None:
    program = "import sys, streamlog; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert {*done.stdout.split()} & HEAVY == set()
