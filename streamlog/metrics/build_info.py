"""Build information: the release of streamlog, and the modules that should be compiled.

Rule of the module: it looks only at modules that are imported already. A broker does not import
the modules of streams to find out that it does not use them.
"""

from __future__ import annotations

import importlib.metadata
import sys
from functools import cache

HOT_MODULES = (
    "streamlog.metrics.instruments",
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


@cache
def release() -> str:
    """Return the release of streamlog that is installed; empty if it runs from a bare checkout."""
    try:
        return importlib.metadata.version("streamlog")
    except importlib.metadata.PackageNotFoundError:
        return ""


def interpreted_modules() -> list[str]:
    """Return the hot modules that this process runs without compilation."""
    return [
        name
        for name in HOT_MODULES
        if name in sys.modules and str(sys.modules[name].__file__).endswith(".py")
    ]
