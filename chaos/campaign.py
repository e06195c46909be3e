"""Campaign: one kind of fault, again and again, under the load; and the verdict.

It goes in rounds, each with a cluster of its own. After the last fault of a round all is healed:
every replica has to come in sync and every client to get on; then everything is read, the history
is checked, the brokers are stopped, and their directories are held against each other.
"""

from __future__ import annotations

import asyncio
import logging
import shutil
import sys
import tempfile
import traceback
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Final

from chaos.cluster import Cluster, running
from chaos.compare import held_against
from chaos.kinds import Kind
from simulation.checkers import check
from simulation.history import Outcome
from simulation.load import mix
from simulation.load.room import Room
from streamlog.clock import SystemClock

ROUND_FAULTS: Final = 25
ROUND_S: Final = 150.0
"""After so long a round begins no other fault: its history is checked in memory."""
WARM_S: Final = 2.0
WHOLE_SHARE: Final = 0.2
"""Of faults are waited out until every replica is in sync."""
WHOLE_S: Final = 60.0
"""Heals by then, or is stuck."""
CALM_S: Final = 10.0
END_S: Final = 120.0
"""A load that has not ended by then hangs."""
STOP_S: Final = 30.0
BAD_ROUNDS_MAX: Final = 2
"""Then it is known well enough."""
LOG_TOLD: Final = 3_000


@dataclass(slots=True)
class Verdict:
    """What many rounds of a kind of fault have come to."""

    kind: Kind
    wanted: int = 0
    """Of what the kind counts."""
    faults: int = 0
    rounds: int = 0
    seconds: float = 0.0
    counts: Counter[str] = field(default_factory=Counter)
    violations: list[str] = field(default_factory=list)
    seeds: list[int] = field(default_factory=list)
    """Of rounds in which something was violated."""
    logs: str = ""
    """The ends of the brokers' logs, of the first of them."""

    @property
    def done(self) -> int:
        """Of what the kind counts."""
        return self.faults if self.kind.counts == "faults" else self.counts[self.kind.counts]

    def as_json(self) -> dict[str, object]:
        """For a file."""
        return {
            "kind": self.kind.name,
            **({"wanted": f"{self.wanted} {self.kind.counts}"} if self.wanted else {}),
            "faults": self.faults,
            "rounds": self.rounds,
            "seconds": round(self.seconds, 1),
            "counts": dict(sorted(self.counts.items())),
            "violations": self.violations,
            "seeds of violations": self.seeds,
        }

    def line(self) -> str:
        """For a reader."""
        counts = ", ".join(f"{name} {count}" for name, count in sorted(self.counts.items()))
        return (
            f"{self.kind.name}: {self.faults} faults in {self.rounds} rounds, {self.seconds:.0f} s,"
            f" {len(self.violations)} violations ({counts})"
        )


async def campaign(
    kind: Kind,
    count: int,
    *,
    seed: int,
    brokers: int,
    limit_s: float,
    keep: Path | None = None,
    on_round: Callable[[Verdict], None] = lambda _: None,
) -> Verdict:
    """A kind of fault until it has happened as often as is wanted, or the time is up.

    Args:
        kind: what goes wrong.
        count: of what the kind counts.
        seed: of the first round; each has the next one.
        brokers: how many there are.
        limit_s: no fault begins later than that.
        keep: a directory for the files of rounds in which something was violated.
        on_round: told after each round what they have come to so far.
    """
    verdict, clock = Verdict(kind, wanted=count), SystemClock()
    began_ms = clock.now_ms()
    while verdict.done < count and len(verdict.seeds) < BAD_ROUNDS_MAX:
        passed_s = (clock.now_ms() - began_ms) / 1000
        if passed_s >= limit_s:
            break
        with tempfile.TemporaryDirectory(prefix="streamlog-chaos-") as directory:
            one = Round(verdict, Random(seed + verdict.rounds), count)
            bad = await one.run(Path(directory), min(limit_s - passed_s, ROUND_S), brokers)
            if bad and keep is not None:
                shutil.copytree(directory, keep / f"{kind.name}-{seed + verdict.rounds}")
        if bad:
            verdict.seeds.append(seed + verdict.rounds)
        verdict.rounds += 1
        verdict.seconds = (clock.now_ms() - began_ms) / 1000
        on_round(verdict)
    return verdict


class Round:
    """One cluster, one load, some faults."""

    def __init__(self, verdict: Verdict, chance: Random, count: int) -> None:
        self._verdict = verdict
        self._kind = verdict.kind
        self._chance = chance
        self._count = count
        self._clock = SystemClock()
        self._began_ms = self._clock.now_ms()
        self._times_ms: list[int] = []
        self._bad = False

    async def run(self, directory: Path, lasts_s: float, brokers: int) -> bool:
        """From the first start to the last look; whether anything was violated."""
        async with (
            logging_to(directory / "clients.log"),
            running(directory, brokers=brokers, lossy=self._kind.is_lossy) as cluster,
        ):
            await self.live(cluster, lasts_s)
        return self._bad

    async def live(self, cluster: Cluster, lasts_s: float, *, is_last: bool = True) -> bool:
        """The load, the trouble and the look at it; whether anything was violated.

        Args:
            cluster: it runs, and has no topic of the load.
            lasts_s: no fault begins later than that.
            is_last: stop the brokers then, and hold what they have against each other.
        """
        room = Room(log=cluster.log, chance=self._chance, now_ms=self._clock.now_ms)
        try:
            async with asyncio.timeout(lasts_s + END_S):
                await self._lived(cluster, room, lasts_s)
                if is_last:
                    await self._compare(cluster)
        except TimeoutError:
            self._violated(f"stuck: it has come to no end {END_S} s after the trouble")
        except Exception as error:  # noqa: BLE001 - whatever it is, it is part of the verdict
            self._violated("".join(traceback.format_exception(error)))
        self._sum_up(room)
        if self._bad and not self._verdict.logs:
            self._verdict.logs = "\n".join(
                f"--- broker {each.node_id}\n{each.log_text[-LOG_TOLD:]}"
                for each in cluster.brokers.values()
            )
        return self._bad

    async def _lived(self, cluster: Cluster, room: Room, lasts_s: float) -> None:
        await mix.create(room, replication_factor=cluster.replication_factor)
        more = self._kind.more
        async with asyncio.TaskGroup() as clients:
            for program in mix.programs(room) + ([] if more is None else more(room)):
                clients.create_task(program)
            await asyncio.sleep(WARM_S)
            refused = Counter(room.counts)
            try:
                await self._trouble(cluster, room, room.now_ms() + round(lasts_s * 1000))
            except RuntimeError as error:
                self._violated(str(error))
            cluster.heal()
            await cluster.start()
            self._violated(*await cluster.all_in_sync(WHOLE_S))
            healed_ms = room.now_ms()
            self._tell("healed")
            await asyncio.sleep(CALM_S)
            room.stopping.set()
        if not self._kind.is_noticed:
            self._violated(*_noticed(room, refused))
        self._violated(*mix.standing_still(room, healed_ms))
        self._tell("clients have ended")
        await mix.finish(room)
        self._tell("all is read")
        self._violated(*map(str, check(room.history)))
        self._violated(*await cluster.all_in_sync(WHOLE_S))

    async def _trouble(self, cluster: Cluster, room: Room, until_ms: int) -> None:
        for _ in range(ROUND_FAULTS):
            if room.now_ms() >= until_ms or self._done(room) >= self._count:
                return
            self._times_ms.append(room.now_ms())
            self._verdict.faults += 1
            self._tell(f"fault {self._verdict.faults}")
            before = Counter(self._verdict.counts)
            await self._kind.fault(cluster, self._chance, self._verdict.counts)
            if befallen := self._verdict.counts - before:
                self._tell(f"it was {', '.join(befallen)}")
            await asyncio.sleep(self._chance.expovariate(1 / self._kind.between_s))
            if self._chance.random() < WHOLE_SHARE:
                self._violated(*await cluster.all_in_sync(WHOLE_S))

    def _done(self, room: Room) -> int:
        under_way = len(room.history.transactions) if self._kind.counts == "transactions" else 0
        return self._verdict.done + under_way

    async def _compare(self, cluster: Cluster) -> None:
        """Stop them, and look at what they have."""
        for each in cluster.brokers.values():
            try:
                async with asyncio.timeout(STOP_S):
                    code = await each.stop()
            except TimeoutError:
                self._violated(f"stuck: broker {each.node_id} has not ended in {STOP_S} s")
            else:
                if code:
                    self._violated(f"broker {each.node_id} has ended with {code}")
        directories = {number: each.data for number, each in cluster.brokers.items()}
        self._violated(*await asyncio.to_thread(held_against, directories))

    def _sum_up(self, room: Room) -> None:
        counts, history = self._verdict.counts, room.history
        counts.update(room.counts)
        counts["acknowledged"] += sum(send.outcome is Outcome.OK for send in history.sends)
        counts["unknown"] += sum(send.outcome is Outcome.UNKNOWN for send in history.sends)
        counts["read"] += sum(len(poll.records) for poll in history.polls)
        counts["transactions"] += len(history.transactions)
        counts["faults with sends under way"] += sum(
            any(send.began_ms < at_ms < send.ended_ms for send in history.sends)
            for at_ms in self._times_ms
        )

    def _violated(self, *what: str) -> None:
        for each in what:
            self._tell(each)
        self._verdict.violations += what
        self._bad = self._bad or bool(what)

    def _tell(self, what: str) -> None:
        """As it happens, for who waits."""
        passed_s = (self._clock.now_ms() - self._began_ms) / 1000
        where = f"{self._kind.name}, round {self._verdict.rounds}"
        print(f"{where}, {passed_s:.1f} s: {what}", file=sys.stderr, flush=True)


@asynccontextmanager
async def logging_to(path: Path) -> AsyncIterator[None]:
    """What clients say of all that is done to them goes to a file."""
    handler = logging.FileHandler(path)
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
    clients = logging.getLogger("streamlog")
    clients.setLevel(logging.INFO)
    clients.propagate = False
    clients.addHandler(handler)
    try:
        yield
    finally:
        clients.removeHandler(handler)
        handler.close()


def _noticed(room: Room, before: Counter[str]) -> list[str]:
    """What clients were told of a trouble that they are not to notice."""
    errors = {name: many - before[name] for name, many in room.counts.items() if ": " in name}
    # Whoever aborts a transaction takes back what is still to be sent; errors are counted above.
    ended = room.history.transactions
    aborted = {each.name for each in ended if each.outcome is Outcome.FAILED}
    unsure = sum(
        send.outcome is not Outcome.OK and send.transaction not in aborted
        for send in room.history.sends
    )
    told = [f"noticed: {name}, {many} times" for name, many in errors.items() if many]
    return told + ([f"noticed: {unsure} records were not acknowledged"] if unsure else [])
