"""`python -m chaos.soak`: brokers that live through an hour of trouble, and must not grow by it.

One cluster for all the time, under the load of the simulation, which is checked and begun anew
every few minutes, with topics of its own each time, and under a producer of 50 MB a minute into
a topic with retention. What goes wrong lets processes live: pauses, networks, slow disks, clocks.
Between two loads it is looked at what the processes hold: memory that is used grows by less than
1 % an hour, files stay as many as they were, and the topic as large as its retention says.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from random import Random
from types import MappingProxyType
from typing import Final

from chaos import faults, world
from chaos.campaign import ROUND_S, Round, Verdict, logging_to
from chaos.cluster import Cluster, running
from chaos.faults import NETWORK, Fault
from chaos.kinds import Kind
from chaos.load import BULK, BULK_PARTITIONS, RETENTION_BYTES, SEGMENT_BYTES, bulk
from chaos.vitals import Vitals, growth_per_hour, look
from simulation.load.mix import PARTITIONS
from simulation.report import conditions
from streamlog.clock import SystemClock

GROWTH_MAX: Final = 0.01
"""Of memory, an hour."""
FILES_GROWTH_MAX: Final = 5 * BULK_PARTITIONS
"""A partition may have one segment more than when it was looked at before: its files."""
PARTITION_BYTES_MAX: Final = RETENTION_BYTES + 2 * SEGMENT_BYTES
"""Retention leaves at least what it keeps, and one segment is being written."""
LOOKS_MIN: Final = 3
WARM_SHARE: Final = 0.2
"""Of the time, at the begin, in which memory may still grow."""
SETTINGS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "log.retention.check.interval.ms": "5000",
        "transactional.id.expiration.ms": "60000",
        "producer.id.expiration.ms": "120000",
        "offsets.retention.minutes": "1",
        "offsets.retention.check.interval.ms": "10000",
        "metadata.log.max.snapshot.interval.ms": "30000",
        "connections.max.idle.ms": "30000",
    }
)
"""Each load has producers, groups and topics of its own, which are to be forgotten meanwhile, and
connections, of which networks that break leave some half open: each has its buffers. All of that
is over in `CALM_S`: else what is held at a look depends on how many the last loads needed. A
producer is known for as long as its records are retried."""
DECIDED_S: Final = 2.0
"""A controller that stands still for so long decides no more."""
ROUND_OF_ALL_S: Final = 300.0
"""By then each has decided once."""
CALM_S: Final = 150.0
"""From a load's end to the look: retention has done its work, and what the load was is over."""
GENTLE: Final[Mapping[str, Fault]] = MappingProxyType(
    {
        "pause": faults.pause,
        "slow-sync": faults.slow_sync,
        "short-writes": faults.short_writes,
        "clock": faults.clock_jump,
    }
)
"""What a process lives through, without a network of our own."""


async def any_that_is_lived_through(cluster: Cluster, chance: Random, counts: Counter[str]) -> None:
    """One that ends no process."""
    kinds = {**GENTLE, **(NETWORK if cluster.network.breakable else {})}
    name = chance.choice(sorted(kinds))
    counts[f"a {name}"] += 1
    await kinds[name](cluster, chance, counts)


class Soak:
    """A cluster, and what its brokers held from load to load."""

    def __init__(self, cluster: Cluster, seed: int, lasts_s: float) -> None:
        fault = any_that_is_lived_through
        self.verdict = Verdict(Kind(name="soak", fault=fault, short=1, nightly=1, more=bulk))
        self.vitals: dict[int, list[Vitals]] = {number: [] for number in cluster.brokers}
        self._cluster = cluster
        self._seed = seed
        self._lasts_s = lasts_s
        self._clock = SystemClock()
        self._began_ms = self._clock.now_ms()

    async def run(self) -> None:
        """Load after load, until the time is up; then the brokers are stopped and compared."""
        async with asyncio.timeout(ROUND_OF_ALL_S):
            await self._let_all_decide()
        is_last = False
        while not (is_last or self.verdict.violations):
            is_last = self._passed_s() + 2 * ROUND_S > self._lasts_s
            one = Round(self.verdict, Random(self._seed + self.verdict.rounds), sys.maxsize)
            if not is_last:
                await one.live(self._cluster, ROUND_S, is_last=False)
                await self._cluster.log.admin().delete_topics(list(PARTITIONS))
                await asyncio.sleep(CALM_S)
                await self._look()
            else:
                await one.live(self._cluster, ROUND_S)
            self.verdict.rounds += 1
        self.verdict.seconds = self._passed_s()
        self.verdict.violations += self._judged()

    async def _let_all_decide(self) -> None:
        """What deciding takes is loaded when a broker does it first, and is no growth later."""
        left = set(self._cluster.brokers)
        while left:
            deciding = await self._cluster.controller()
            left -= {deciding}
            if left and deciding is not None:
                await self._cluster.brokers[deciding].stand_still(DECIDED_S)

    async def _look(self) -> None:
        (described,) = await self._cluster.log.admin().describe_topics([BULK])
        for number, broker in self._cluster.brokers.items():
            taken = await look(broker, self._passed_s(), described.topic_id, described.partitions)
            self.vitals[number].append(taken)
            print(f"broker {number}: {taken}", file=sys.stderr, flush=True)

    def _judged(self) -> list[str]:
        wrong = []
        for number, taken in self.vitals.items():
            if self._cluster.brokers[number].starts > 1:
                wrong.append(f"broker {number} has ended, which nobody has done to it")
            wrong += [f"broker {number}: {each}" for each in grown(taken, self._lasts_s)]
        return wrong

    def _passed_s(self) -> float:
        return (self._clock.now_ms() - self._began_ms) / 1000


def grown(taken: Sequence[Vitals], lasts_s: float) -> list[str]:
    """What a process holds more of than it should, after it has become warm."""
    warm = [each for each in taken if each.at_s >= WARM_SHARE * lasts_s]
    if len(warm) < LOOKS_MIN:
        return [f"it was looked at {len(warm)} times once it was warm: let it last for longer"]
    growth = growth_per_hour(warm)
    files = warm[-1].open_files - warm[0].open_files
    most = max(each.partition_bytes for each in warm)
    wrong = []
    if growth >= GROWTH_MAX:
        wrong.append(f"its memory grows by {growth:.1%} an hour")
    if files > FILES_GROWTH_MAX:
        wrong.append(f"it has {files} open files more than at the begin")
    if most > PARTITION_BYTES_MAX:
        wrong.append(f"a partition has {most} bytes, and is to keep {RETENTION_BYTES}")
    return wrong


async def _soak(directory: Path, given: argparse.Namespace) -> Soak:
    lasts_s = given.hours * 3_600
    async with (
        logging_to(directory / "clients.log"),
        running(
            directory, brokers=given.brokers, settings=SETTINGS, module="chaos.loaded"
        ) as cluster,
    ):
        soak = Soak(cluster, given.seed, lasts_s)
        await soak.run()
        return soak


def main(arguments: Sequence[str] | None = None) -> int:
    """Run, tell, and return 1 if anything was violated or has grown."""
    parser = argparse.ArgumentParser(prog="chaos.soak", description=__doc__)
    parser.add_argument("--hours", type=float, default=2.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--brokers", type=int, default=3)
    parser.add_argument("--report", type=Path, help="where to write the JSON report")
    given = parser.parse_args(arguments)
    if world.is_inside():
        world.settle()
    else:
        world.enter("chaos.soak", sys.argv[1:] if arguments is None else arguments)
    logging.basicConfig(level=logging.ERROR)
    with tempfile.TemporaryDirectory(prefix="streamlog-soak-") as directory:
        soak = asyncio.run(_soak(Path(directory), given))
    verdict = soak.verdict
    print(verdict.line(), *verdict.violations, verdict.logs, sep="\n")
    if given.report is not None:
        vitals = {
            str(number): [each.as_json() for each in taken] for number, taken in soak.vitals.items()
        }
        told = {**conditions({"seed": given.seed}), **verdict.as_json(), "vitals": vitals}
        given.report.write_text(json.dumps(told, indent=2) + "\n")
    return int(bool(verdict.violations))


if __name__ == "__main__":
    sys.exit(main())
