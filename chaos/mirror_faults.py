"""`python -m chaos.mirror_faults`: what goes wrong between two clusters that mirror each other.

`python -m chaos.mirror_faults link-cut --rounds 20` runs 20 rounds of one kind; without a name, all
kinds run.

- `link-cut`: packets between the clusters are lost, in one direction or both, while clients reach
  both; a promotion without loss begins meanwhile. Needs a network of our own (`world`).
- `lost-cluster`: the source gets SIGKILL, the target is promoted at once, and the source returns
  and follows. The mirror may have stood still before.
- `clocks-apart`: the clock of one cluster is off by an hour or a year, from before a promotion
  without loss until after the fail back.

One producer writes numbers to the cluster that takes them. At the end of each round, every
acknowledged number is in the cluster that leads the topic, once and in order, or, after a lost
cluster, in the `lost-and-found` of that cluster. A group is not ahead of the topic's end. After the
fail back, both logs are equal.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import signal
import sys
import tempfile
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from types import MappingProxyType
from typing import Final, TypeAlias

from chaos import world
from chaos.broker import BrokerProcess, build_shim
from chaos.faults import CLOCK_JUMPS_MS
from chaos.mirror_kills import PATIENCE, Pair, linked, more_than, processes, read_along, write
from chaos.network import Bridge, Network
from chaos.shapes import lost_and_found
from chaos.writing import values
from simulation.report import conditions
from streamlog.client.admin import NewTopic
from streamlog.errors import PromotionGivenUp
from streamlog.record import TopicPartition

CUT_S: Final = (0.2, 4.0)
WITHIN_S: Final = (0.0, 1.0)
"""When in a cut the promotion begins."""
STILL_S: Final = (0.0, 0.6)
APART_S: Final = (0.2, 1.5)
DELIVERY_TIMEOUT_MS: Final = 3_000
RECORDS: Final = 30
"""Acknowledged before something happens, and after it."""
ROUND_S: Final = 120.0
FOREVER: Final = {"retention.ms": "-1", "message.timestamp.after.max.ms": str(2**63 - 1)}
"""A clock that is a year ahead would be right to delete records of today, and one that is a year
behind to refuse them."""
SOURCE, TARGET = 1, 2
"""Their places in the network."""


@dataclass
class Trial:
    """A round."""

    pair: Pair
    network: Network | None
    topic: str
    chance: Random
    counts: Counter[str]
    acknowledged: set[bytes] = field(default_factory=set)
    may_lose: bool = False
    """Whether acknowledged records may have to be looked for in `lost-and-found`."""

    async def some_more(self) -> None:
        """Wait until producers have got on."""
        await more_than(self.acknowledged, len(self.acknowledged) + RECORDS)

    async def promote(self) -> None:
        """Promote without loss; a promotion that was given up is repeated."""
        while True:
            mirror = await self.pair.mirror(self.topic, self.pair.target)
            if mirror is None:
                raise RuntimeError(f"{self.topic} is no mirror")
            target, source = (each.admin() for each in (self.pair.target, self.pair.source))
            try:
                await target.promote_mirrors(
                    source, [mirror], copies_groups=True, patience=PATIENCE
                )
            except PromotionGivenUp:
                self.counts["promotions that were given up"] += 1
            else:
                return


Fault: TypeAlias = Callable[[Trial], Awaitable[None]]


async def link_cut(trial: Trial) -> None:
    """Packets between the clusters are lost while a promotion begins."""
    network, chance = trial.network, trial.chance
    if network is None:
        raise RuntimeError("there is no network to cut")
    how = chance.choice(("all", "requests of the target", "to the target", "to the source"))
    trial.counts[f"lost: {how}"] += 1
    if how != "to the source":
        network.lose(SOURCE, TARGET)
    if how.startswith("requests"):
        network.heal()
        network.lose(TARGET, SOURCE, requests_only=True)
    elif how != "to the target":
        network.lose(TARGET, SOURCE)
    cut_s = chance.uniform(*CUT_S)
    try:
        async with asyncio.TaskGroup() as tasks:
            await asyncio.sleep(min(cut_s, chance.uniform(*WITHIN_S)))
            tasks.create_task(trial.promote())
            await asyncio.sleep(cut_s)
            network.heal()
    finally:
        network.heal()
    await trial.some_more()


async def lost_cluster(trial: Trial) -> None:
    """The source is killed, and comes back when the target takes its records."""
    source, target = (trial.pair.processes[name] for name in ("source", "target"))
    trial.may_lose = True
    if trial.chance.random() < 0.7:
        target.send(signal.SIGSTOP)
        await asyncio.sleep(trial.chance.uniform(*STILL_S))
    await source.kill()
    target.send(signal.SIGCONT)
    await trial.pair.target.admin().promote_mirrors_now([trial.topic])
    await trial.some_more()
    await source.start()


async def clocks_apart(trial: Trial) -> None:
    """The clock of one of them is wrong from now on; the round ends with both in order."""
    name = trial.chance.choice(("source", "target"))
    jump_ms = trial.chance.choice(CLOCK_JUMPS_MS)
    trial.counts[f"{name} by {jump_ms // 3_600_000} h"] += 1
    trial.pair.processes[name].turn({"clock_ms": jump_ms})
    await asyncio.sleep(trial.chance.uniform(*APART_S))
    await trial.promote()
    await trial.some_more()


FAULTS: Final[Mapping[str, Fault]] = MappingProxyType(
    {"link-cut": link_cut, "lost-cluster": lost_cluster, "clocks-apart": clocks_apart}
)
NEEDS_NETWORK: Final = "link-cut"


@dataclass
class Outcome:
    """What the rounds of a kind have come to."""

    kind: str
    rounds: int = 0
    acknowledged: int = 0
    kept: int = 0
    """Acknowledged records that only the lost cluster had; they are in `lost-and-found`."""
    counts: Counter[str] = field(default_factory=Counter)
    violations: list[str] = field(default_factory=list)


async def live(trial: Trial, fault: Fault) -> list[str]:
    """Live one round; return what is violated."""
    pair, topic = trial.pair, trial.topic
    await pair.source.admin().create_topics([NewTopic(topic, 1, configs=FOREVER)])
    await pair.until_mirrored(topic, pair.target)
    stop = asyncio.Event()
    async with asyncio.TaskGroup() as tasks:
        writing = write(
            pair, topic, stop, trial.acknowledged, delivery_timeout_ms=DELIVERY_TIMEOUT_MS
        )
        tasks.create_task(writing)
        tasks.create_task(read_along(pair, topic, stop))
        await trial.some_more()
        await fault(trial)
        stop.set()
    here = await values(pair.target, topic)
    told = [*await _wrong(trial, here)]
    await pair.source.admin().fail_back("back", pair.target.admin(), {topic: topic})
    while await values(pair.source, topic) != here:  # noqa: ASYNC110 - another process
        await asyncio.sleep(0.1)
    kept = {*lost_and_found(pair.processes["source"]).get(topic, [])}
    missing = trial.acknowledged - {*here.values()}
    trial.counts["kept"] += len(missing & kept)
    if missing - kept:
        told.append(f"{len(missing - kept)} acknowledged records are lost: {[*missing - kept][:3]}")
    if kept and not trial.may_lose:
        told.append(f"{len(kept)} records were cut off after a promotion without loss")
    return told


async def _wrong(trial: Trial, here: Mapping[int, bytes]) -> Sequence[str]:
    """Return what is wrong with the cluster that leads the topic now."""
    told, pair, topic = [], trial.pair, trial.topic
    numbers = [int(here[offset]) for offset in sorted(here)]
    if numbers != sorted({*numbers}):
        told.append("numbers are there twice, or in another order")
    there = {} if trial.may_lose else await values(pair.source, topic)
    if fork := {offset: each for offset, each in there.items() if here.get(offset) != each}:
        told.append(f"the source has others: {[*fork.items()][:3]}")
    position = (await pair.target.admin().group_offsets("readers")).get(TopicPartition(topic, 0), 0)
    if position > max(here, default=-1) + 1:
        told.append(f"the group is ahead, at {position}")
    return told


@contextmanager
def clusters(directory: Path) -> Iterator[tuple[list[BrokerProcess], Network | None]]:
    """Two brokers, not started yet, with a network that can be broken if there can be one."""
    if not world.is_inside():
        with processes(directory) as both:
            yield both, None
        return
    shim, network = build_shim(directory), Bridge(2)
    both = []
    for number, name in ((SOURCE, "source"), (TARGET, "target")):
        host, port = network.address(number)
        command = network.command(number)
        both.append(BrokerProcess(directory / name, shim, host=host, port=port, command=command))
    try:
        yield both, network
    finally:
        network.close()


async def campaign(directory: Path, kind: str, rounds: int, seed: int) -> Outcome:
    """Live the rounds of a kind, until something is violated."""
    outcome = Outcome(kind)
    async with AsyncExitStack() as stack:
        both, network = stack.enter_context(clusters(directory))
        pair = await stack.enter_async_context(linked(both))
        for number in range(rounds):
            chance = Random(f"{seed} {kind} {number}")
            trial = Trial(pair, network, f"round-{number}", chance, outcome.counts)
            try:
                async with asyncio.timeout(ROUND_S):
                    told = await live(trial, FAULTS[kind])
            except TimeoutError:
                told = [f"not over after {ROUND_S} s"]
            for each in pair.processes.values():
                each.turn({})
            outcome.rounds += 1
            outcome.acknowledged += len(trial.acknowledged)
            outcome.violations += [f"{kind}, round {number}: {each}" for each in told]
            print(f"{kind}, round {number}: {len(trial.acknowledged)} acknowledged", flush=True)
            if told:
                break
    outcome.kept = outcome.counts.pop("kept", 0)
    return outcome


async def _all(given: argparse.Namespace) -> list[Outcome]:
    outcomes = []
    for kind in given.kinds or FAULTS:
        if kind == NEEDS_NETWORK and not world.is_inside():
            print(f"{kind}: left out, this system gives us no network of our own to break")
            continue
        with tempfile.TemporaryDirectory(prefix="streamlog-mirror-") as directory:
            outcome = await campaign(Path(directory), kind, given.rounds, given.seed)
        print(json.dumps(vars(outcome), indent=2), flush=True)
        outcomes.append(outcome)
    return outcomes


def main(arguments: Sequence[str] | None = None) -> int:
    """Run, tell, and return 1 if anything was violated."""
    parser = argparse.ArgumentParser(prog="chaos.mirror_faults", description=__doc__)
    parser.add_argument("kinds", nargs="*", choices=[[], *FAULTS], metavar="KIND")
    parser.add_argument("--rounds", type=int, default=20, help="of each kind")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--report", type=Path, default=None, metavar="FILE")
    given = parser.parse_args(arguments)
    if world.is_inside():
        world.settle()
    else:
        world.enter("chaos.mirror_faults", sys.argv[1:] if arguments is None else arguments)
    logging.basicConfig(level=logging.CRITICAL)  # Clients warn of everything that is done to them.
    outcomes = asyncio.run(_all(given))
    if given.report is not None:
        told = {**conditions({"seed": given.seed}), "kinds": [vars(each) for each in outcomes]}
        given.report.parent.mkdir(parents=True, exist_ok=True)
        given.report.write_text(json.dumps(told, indent=2) + "\n")
    return int(any(each.violations for each in outcomes))


if __name__ == "__main__":
    sys.exit(main())
