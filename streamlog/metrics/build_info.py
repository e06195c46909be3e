"""Build information: the package's name, its release, and the modules that should be compiled.

The Python package index has another project called `streamlog`, so the distribution has a name of
its own; the import is `streamlog`.

Rule of the module: it looks only at modules that are imported already. A broker does not import
the modules of streams to find out that it does not use them.
"""

from __future__ import annotations

import sys
from functools import cache

DISTRIBUTION = "streamlog-py"
"""The name on the package index."""

HOT_MODULES = (
    "streamlog.clock",
    "streamlog.metrics.instruments",
    "streamlog.metrics.event_loop",
    "streamlog.records.varint",
    "streamlog.records.record_columns",
    "streamlog.records.murmur2",
    "streamlog.records.arrow_rows",
    "streamlog.records.byte_spans",
    "streamlog.records.builder",
    "streamlog.records.batch",
    "streamlog.records.record_scan",
    "streamlog.records.arrow",
    "streamlog.connect.arrow_columns.value_buffers",
    "streamlog.connect.row_spans.copied_rows",
    "streamlog.connect.row_spans.json_rows",
    "streamlog.connectors.postgres_cdc.row_reader",
    "streamlog.connectors.syslog.bsd_message_scan",
    "streamlog.connectors.syslog.message_scan",
    "streamlog.protocol.frame_reader",
    "streamlog.protocol.fetch_patterns",
    "streamlog.protocol.produce_runs",
    "streamlog.client.producer.open_batches",
    "streamlog.client.producer.deliveries",
    "streamlog.broker.server.socket_writer",
    "streamlog.broker.server.request_flow",
    "streamlog.broker.storage.disk.os_file",
    "streamlog.broker.storage.log.batch_run",
    "streamlog.broker.storage.log.batch_headers",
    "streamlog.tables.folds.folding",
    "streamlog.tables.folds.plain_values",
    "streamlog.tables.state.write_buffer",
    "streamlog.processing.windows.window_fold",
    "streamlog.worker.process.arenas",
)
"""The modules that `setup.py` compiles."""


def install_command(extra: str | None = None) -> str:
    """Return the command that installs the package, or one of its extras: `pip install ...`."""
    if extra is None:
        return f"pip install {DISTRIBUTION}"
    return f"pip install '{DISTRIBUTION}[{extra}]'"


@cache
def release() -> str:
    """Return the release of streamlog that is installed; empty if it runs from a bare checkout."""
    # Most processes never ask, and importing it takes some milliseconds.
    from importlib.metadata import PackageNotFoundError, version  # noqa: PLC0415

    try:
        return version(DISTRIBUTION)
    except PackageNotFoundError:
        return ""


def interpreted_modules() -> list[str]:
    """Return the hot modules that this process runs without compilation."""
    return [
        name
        for name in HOT_MODULES
        if name in sys.modules and str(sys.modules[name].__file__).endswith(".py")
    ]
