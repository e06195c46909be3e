"""Connectors beside their peers: the bars of the design, in one run on one broker.

Each row is run with its peers one after the other, so that what else the machine does is the same
for all. Rates are of wall time, and depend on the machine being at rest; CPU time is that of the
worker's or the peer's process alone, and hardly does.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import AsyncIterator
from pathlib import Path

from benchmarks.connect import sink_rows, source_rows
from benchmarks.connect.lab import Lab
from benchmarks.engine.environment import environment
from benchmarks.harness import Reading, broker
from streamlog.log import Log
from tests.servers.postgres import PostgresServer

ROWS = ("tail", "runtime", "sql-sink", "sql-source", "cdc", "objects", "webhook", "syslog")
CHOSEN = os.environ.get("CONNECT_ROWS", "")
"""Names of rows, with commas between; all by default."""


async def figures(directory: Path, records: int) -> AsyncIterator[Reading]:
    """All rows, with so many records each."""
    where = environment()
    with broker(directory / "log") as (_, url), PostgresServer() as server:
        async with Log.open(url) as log, log.consumer(auto_offset_reset="none") as looking:
            lab = Lab(log, looking, url, directory)
            for name, reason in where.missing.items():
                print(f"{name} is left out: {reason}")
            rows = {
                "tail": lambda: source_rows.tail(lab, records, where),
                "runtime": lambda: sink_rows.runtime(lab, records),
                "sql-sink": lambda: sink_rows.sql_sink(lab, records, server, where),
                "sql-source": lambda: source_rows.sql_source(lab, records, server),
                "cdc": lambda: source_rows.cdc(lab, records, server),
                "objects": lambda: sink_rows.objects(lab, records),
                "webhook": lambda: sink_rows.webhook(lab),
                "syslog": lambda: source_rows.syslog(lab),
            }
            if shutil.which("wrk") is None:
                del rows["webhook"]
                print("webhook is left out: install wrk (apt-get install wrk)")
            for name in CHOSEN.split(",") if CHOSEN else ROWS:
                if name not in rows and name in ROWS:
                    continue
                async for reading in rows[name]():
                    yield reading
