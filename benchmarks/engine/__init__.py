"""The task engine, log to log, against Quix Streams, Faust-streaming and Bytewax.

Jobs, each on one partition: J1 filters, maps and produces, also as an agent; J2 counts and sums per
key and tumbling window, with state on disk and a changelog: a row for every update, the newest rows
per commit, or final rows only; J3 joins a stream with a table that is persisted. What counts is the
CPU time of the worker process per record, the broker's left out. Ours and the peers take turns on
the same broker.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

from benchmarks.engine.contest import Contest, Cost, Failed
from benchmarks.engine.environment import environment
from benchmarks.engine.participants import ENTERED, OURS, VARIANTS, ours, peer
from benchmarks.harness import broker
from streamlog.log import Log


async def figures(directory: Path, records: int) -> AsyncIterator[Cost]:
    """Every job, by us and then by each peer; a peer that can't is left out with the reason."""
    where = environment()
    for name, reason in where.missing.items():
        print(f"{name} is left out: it can't be installed here: {reason}")
    with broker(directory / "log", flush="os") as (_, url):
        async with Log.open(url) as log:
            contest = Contest(log, url.removeprefix("kafka://"), directory / "runs")
            await contest.prepare()
            for job, variants in VARIANTS.items():
                for variant in variants:
                    yield await contest.run(ours(job), Cost(job, variant, OURS, records))
                for name in ENTERED[job]:
                    if name in where.missing:
                        continue
                    participant = peer(name, job, where)
                    cost = Cost(job, "", name, records // participant.share)
                    try:
                        yield await contest.run(participant, cost)
                    except Failed as failure:
                        print(f"{name} is left out of {job}: {failure}")
