"""Imports: `import streamlog` and `streamlog broker` stay light.

A module that needs a heavy library imports it when it is used.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import streamlog
from tests.worker.processes import STREAMLOG, running

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


def test_importing_streamlog_loads_no_heavy_module() -> None:
    program = "import sys, streamlog; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert {*done.stdout.split()} & HEAVY == set()


NOT_OF_A_BROKER = {
    *(HEAVY - {"asyncio", "cramjam", "streamlog.broker", "streamlog.worker", "typer"}),
    "streamlog.app",
    "streamlog.dsl",
    "streamlog.serdes",
    "streamlog.topology",
    "streamlog.worker.worker",
} - {"pydantic"}
"""Streams, clients and console output are not needed; typer imports pydantic."""


def test_a_broker_imports_only_what_it_needs(tmp_path: Path) -> None:
    importing = (sys.executable, "-X", "importtime", *STREAMLOG[1:])
    options = ("--data", "log", "--listen", "127.0.0.1:0")
    with running(*importing, "broker", *options, cwd=tmp_path) as process:
        process.line("listening on ")
    loaded = {*re.findall(r"^import time:.*\| *(\S+)$", process.output, re.MULTILINE)}
    assert "streamlog.broker.broker" in loaded
    assert loaded & NOT_OF_A_BROKER == set()


def test_type_checkers_see_the_actual_exports() -> None:
    """Exports are named twice: for type checkers, and for the lazy imports."""
    tree = ast.parse(Path(streamlog.__file__).read_text())
    seen = {
        alias.name: node.module
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("streamlog.")
        for alias in node.names
    }
    assert sorted(seen) == streamlog.__all__
    for name, module in seen.items():
        assert getattr(streamlog, name) is getattr(import_module(module or ""), name)
