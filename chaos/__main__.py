"""`python -m chaos --seconds 60 --seed n`: one broker, a load, and trouble for so long."""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from random import Random

from chaos.broker import BrokerProcess, build_shim
from simulation.checkers import check
from simulation.faults import Fault, drawn
from simulation.history import Outcome
from simulation.load import mix
from simulation.load.room import Room
from simulation.report import conditions
from streamlog.clock import SystemClock
from streamlog.log import Log

KINDS = (
    "kill",
    "stop",
    "pause",
    "slow sync",
    "refused sync",
    "full disk",
    "short writes",
    "clock",
)
FAULT_EVERY_S = 2.5
"""On average."""
CALM_S = 10.0
END_S = 300.0
"""A load that has not ended by then hangs."""
CLOCK_JUMPS_MS = (-31_536_000_000, -3_600_000, 3_600_000, 31_536_000_000)
TOLD_MAX = 20


class Trial:
    """One broker under load, and its trouble."""

    def __init__(self, broker: BrokerProcess, room: Room, seconds: float, seed: int) -> None:
        self.broker = broker
        self.room = room
        self.counts: Counter[str] = Counter()
        self.violations: list[str] = []
        self._seconds = seconds
        self._seed = seed
        self._ending = asyncio.Lock()

    async def run(self) -> None:
        """From the load's begin to the verdict."""
        await mix.create(self.room)
        async with asyncio.TaskGroup() as clients:
            for program in mix.programs(self.room):
                clients.create_task(program)
            await self._trouble()
            self.broker.turn({})
            await self._restart()
            healed_ms = self.room.now_ms()
            await asyncio.sleep(CALM_S)
            self.room.stopping.set()
        self.violations += mix.standing_still(self.room, healed_ms)
        await mix.finish(self.room)
        self.violations += map(str, check(self.room.history))

    async def _trouble(self) -> None:
        plan: list[Fault] = []
        many = max(int(self._seconds / FAULT_EVERY_S), 1)
        for number in range(many):
            plan += drawn(self._seed * 1_000 + number, KINDS, until_s=self._seconds)[:1]
        async with asyncio.TaskGroup() as faults:
            for fault in plan:
                faults.create_task(self._befall(fault))

    async def _befall(self, fault: Fault) -> None:
        await asyncio.sleep(fault.at_s)
        self.counts[fault.kind] += 1
        match fault.kind:
            case "kill" | "stop" | "refused sync":
                async with self._ending:
                    await self._end(fault)
            case "pause":
                self.broker.send(signal.SIGSTOP)
                await asyncio.sleep(min(fault.lasts_s, 5.0))
                self.broker.send(signal.SIGCONT)
            case "clock":
                jump = CLOCK_JUMPS_MS[int(fault.draw * len(CLOCK_JUMPS_MS))]
                await self._turned({"clock_ms": jump}, fault.lasts_s)
            case "slow sync":
                await self._turned({"sync_ms": int(fault.draw * 1_500)}, fault.lasts_s)
            case "full disk":
                await self._turned({"enospc": 1}, fault.lasts_s)
            case "short writes":
                await self._turned({"short": 1 + int(fault.draw * 5)}, fault.lasts_s)

    async def _end(self, fault: Fault) -> None:
        if fault.kind == "refused sync":
            self.broker.turn({"sync_eio": 1})
            await asyncio.sleep(min(fault.lasts_s, 3.0))
            self.broker.turn({})
        if fault.kind == "stop":
            await self.broker.stop()
        else:
            await self.broker.kill()
        await asyncio.sleep(min(fault.lasts_s, 2.0))
        await self.broker.start()

    async def _turned(self, knobs: dict[str, int], lasts_s: float) -> None:
        self.broker.turn(knobs)
        await asyncio.sleep(min(lasts_s, 5.0))
        self.broker.turn({})

    async def _restart(self) -> None:
        """What an operator does after a disk was full, or has failed."""
        async with self._ending:
            await self.broker.kill()
            await self.broker.start()


async def _trial(directory: Path, seconds: float, seed: int) -> Trial:
    broker = BrokerProcess(directory, build_shim(directory))
    await broker.start()
    clock = SystemClock()
    try:
        async with Log.open(f"kafka://{broker.address}") as log:
            room = Room(log=log, chance=Random(seed), now_ms=clock.now_ms)
            trial = Trial(broker, room, seconds, seed)
            try:
                async with asyncio.timeout(seconds + END_S):
                    await trial.run()
            except TimeoutError:
                trial.violations.append(f"stuck: it has come to no end {END_S} s after the trouble")
            return trial
    finally:
        with suppress(ProcessLookupError):
            await broker.kill()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run, tell, and return 1 if anything was violated."""
    parser = argparse.ArgumentParser(prog="chaos", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0, help="of trouble")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--report", type=Path, help="where to write the JSON report")
    given = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="streamlog-chaos-") as directory:
        trial = asyncio.run(_trial(Path(directory), given.seconds, given.seed))
        if trial.violations:
            print(trial.broker.log_text[-4_000:])
    history = trial.room.history
    counts = trial.counts + trial.room.counts
    counts["acknowledged"] = sum(send.outcome is Outcome.OK for send in history.sends)
    counts["read"] = sum(len(poll.records) for poll in history.polls)
    counts["starts"] = trial.broker.starts
    print(", ".join(f"{name} {count}" for name, count in sorted(counts.items())))
    print(f"{len(trial.violations)} violations (--seed {given.seed})")
    print(*trial.violations[:TOLD_MAX], sep="\n")
    if given.report is not None:
        facts = conditions({"seed": given.seed})
        told = {"seconds": given.seconds, "counts": counts, "violations": trial.violations}
        given.report.write_text(json.dumps({**facts, **told}, indent=2) + "\n")
    return int(bool(trial.violations))


if __name__ == "__main__":
    sys.exit(main())
