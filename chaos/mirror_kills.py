"""`python -m chaos.mirror_kills`: clusters and operators are killed at each step of a promotion.

Two brokers run as processes, and one mirrors the other. In each round a topic moves without loss
under a producer that fails over by what it is refused, and then the old cluster follows. At one
step, before its request, during it or after its answer, one of these gets SIGKILL: the source, the
target, or the operator's command, which then does nothing more at all. The command is run again.
Checked are:

- Every acknowledged record is in the cluster that leads the topic, and its source has no other one.
- After a command that was given up, the source takes records again, or the error says what to do.
- A group is never ahead of the mirror's end.
- After the fail back, both logs are equal, and nothing was cut: `lost-and-found` has no file.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import random
import tempfile
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Coroutine,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import AsyncExitStack, asynccontextmanager, closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from chaos.broker import BrokerProcess, build_shim
from chaos.ports import reserved_ports
from chaos.writing import values
from streamlog.client.admin import MirrorDescription, MirrorStatus, NewTopic, PromotionPatience
from streamlog.client.admin.lossless_promotion import LosslessPromotion, PromotionSide
from streamlog.client.cluster import Cluster
from streamlog.errors import PromotionGivenUp, StreamlogError
from streamlog.log import Log
from streamlog.protocol.messages.mirror_messages import (
    AlterableSeal,
    MirrorResult,
    SealResult,
)
from streamlog.record import TopicPartition

R = TypeVar("R")

STEPS = ("begin the promotion", "seal the source", "promote", "note the promotion", "fail back")
MOMENTS = ("before", "during", "after")
VICTIMS = ("source", "target", "operator")
DOWN_S = 0.3
"""How long a killed broker is away."""
ROUND_S = 120
DELIVERY_TIMEOUT_MS = 60_000
LINK = {"refresh.topics.interval.ms": "100", "groups": "readers", "topics": ".*"}
PATIENCE = PromotionPatience(timeout_ms=60_000)


class OperatorKilled(BaseException):
    """Nothing of the command runs any more: no handler of errors, and no way back."""


@dataclass(frozen=True)
class Blow:
    """Who is killed when."""

    step: str
    moment: str
    victim: str


Strike = Callable[[str, str], Awaitable[None]]
"""Called with a step and a moment."""
BLOWS = [Blow(*each) for each in itertools.product(STEPS, MOMENTS, VICTIMS)]


@dataclass
class Outcome:
    """What happened in all rounds."""

    rounds: int = 0
    acknowledged: int = 0
    done: int = 0
    """Promotions that the blow did not stop."""
    undone: int = 0
    """Those that were given up, or whose operator was killed, and that were repeated."""
    violations: list[str] = field(default_factory=list)


async def struck(strike: Strike, step: str, asked: Coroutine[Any, Any, R]) -> R:
    """Return the answer to a request, with the blows around it."""
    with closing(asked):
        await strike(step, "before")
        answers = await asyncio.gather(asked, _swing(strike, step))
    found: R = answers[0]
    await strike(step, "after")
    return found


async def _swing(strike: Strike, step: str) -> None:
    await strike(step, "during")


class StruckSide(PromotionSide):
    """A cluster as the command sees it, with a blow around one request."""

    def __init__(self, cluster: Cluster, strike: Strike) -> None:
        super().__init__(cluster)
        self._strike = strike

    async def alter(self, what: str, mirrors: Mapping[str, int], state: int) -> list[MirrorResult]:
        """See `PromotionSide`."""
        asked = super().alter(what, mirrors, state)
        return await struck(self._strike, what, asked)

    async def seal(
        self, what: str, target_cluster_id: str, topics: list[AlterableSeal]
    ) -> list[SealResult]:
        """See `PromotionSide`."""
        asked = super().seal(what, target_cluster_id, topics)
        return await struck(self._strike, what, asked)


class StruckPromotion(LosslessPromotion):
    """The shipped promotion, with a blow at one of its steps."""

    def __init__(self, target: Cluster, source: Cluster, strike: Strike) -> None:
        super().__init__(target, source, patience=PATIENCE, on_wait=lambda _: None)
        self._target, self._source = StruckSide(target, strike), StruckSide(source, strike)


class Pair:
    """Two brokers, clients of both, and what was acknowledged."""

    def __init__(
        self, processes: Sequence[BrokerProcess], logs: Sequence[Log], group: asyncio.TaskGroup
    ) -> None:
        self._group = group
        self.processes = {"source": processes[0], "target": processes[1]}
        self.source, self.target = logs

    async def mirror(self, topic: str, log: Log) -> MirrorDescription | None:
        """Return a mirror topic; None if there is none of this name."""
        found = (await log.admin().describe_mirrors()).mirrors
        return next((each for each in found if each.name == topic), None)

    async def until_mirrored(self, topic: str, log: Log) -> MirrorDescription:
        """Wait until a topic is a mirror that copies."""
        while True:
            found = await self.mirror(topic, log)
            if found is not None and found.status in (MirrorStatus.ACTIVE, MirrorStatus.LAGGING):
                return found
            await asyncio.sleep(0.05)

    async def kill(self, victim: str) -> None:
        """Kill a process; it starts again a moment later, while the command meets its absence."""
        if victim == "operator":
            raise OperatorKilled
        process = self.processes[victim]
        await process.kill()
        self._group.create_task(self._revive(process))

    async def _revive(self, process: BrokerProcess) -> None:
        await asyncio.sleep(DOWN_S)
        await process.start()


async def write(
    pair: Pair,
    topic: str,
    stop: asyncio.Event,
    acknowledged: set[bytes],
    *,
    delivery_timeout_ms: int = DELIVERY_TIMEOUT_MS,
) -> None:
    """Write where records are taken, and note what was acknowledged."""
    request_timeout_ms = delivery_timeout_ms // 2
    logs = itertools.cycle((pair.source, pair.target))
    numbers = itertools.count()
    while not stop.is_set():
        with suppress(StreamlogError):
            async with next(logs).producer(
                delivery_timeout_ms=delivery_timeout_ms, request_timeout_ms=request_timeout_ms
            ) as producer:
                while not stop.is_set():
                    value = str(next(numbers)).encode()
                    await (await producer.send(topic, value, partition=0))
                    acknowledged.add(value)
        await asyncio.sleep(0.02)


async def more_than(acknowledged: set[bytes], count: int) -> None:
    """Wait until more records are acknowledged."""
    while len(acknowledged) <= count:  # noqa: ASYNC110 - counted by another task
        await asyncio.sleep(0.01)


async def read_along(pair: Pair, topic: str, stop: asyncio.Event) -> None:
    """Commit the end of the source for a group, now and then."""
    where = TopicPartition(topic, 0)
    while not stop.is_set():
        with suppress(StreamlogError):
            async with pair.source.consumer() as consumer:
                end = (await consumer.end_offsets([where]))[where]
            await pair.source.admin().alter_group_offsets("readers", {where: end})
        await asyncio.sleep(0.2)


async def promote(pair: Pair, topic: str, blow: Blow) -> bool:
    """Promote, with one blow; run the command again if need be; return whether that was needed."""
    is_struck = False

    async def strike(step: str, moment: str) -> None:
        nonlocal is_struck
        if not is_struck and (step, moment) == (blow.step, blow.moment):
            is_struck = True
            await pair.kill(blow.victim)

    async def run() -> None:
        target, source = (each.admin()._cluster for each in (pair.target, pair.source))  # noqa: SLF001
        outcome = await StruckPromotion(target, source, strike).run([topic], copies_groups=True)
        if outcome.trouble:
            raise PromotionGivenUp(outcome.trouble)

    try:
        await run()
    except (PromotionGivenUp, OperatorKilled):
        await run()
        return True
    return False


async def fail_back(pair: Pair, topic: str, blow: Blow) -> None:
    """Let the source follow, with one blow before or after the request."""

    async def strike(step: str, moment: str) -> None:
        if (step, moment) == (blow.step, blow.moment):
            await pair.kill(blow.victim)

    async def ask() -> None:
        await pair.source.admin().fail_back("back", pair.target.admin(), {topic: topic})

    try:
        await struck(strike, STEPS[-1], ask())
    except OperatorKilled:
        await ask()


async def live(pair: Pair, topic: str, blow: Blow, outcome: Outcome) -> None:
    """Live one round."""
    await pair.source.admin().create_topics([NewTopic(topic, 1)])
    await pair.until_mirrored(topic, pair.target)
    stop, acknowledged = asyncio.Event(), set[bytes]()
    where = TopicPartition(topic, 0)
    async with asyncio.TaskGroup() as group:
        group.create_task(write(pair, topic, stop, acknowledged))
        group.create_task(read_along(pair, topic, stop))
        await more_than(acknowledged, 20)
        repeated = await promote(pair, topic, blow)
        await more_than(acknowledged, len(acknowledged) + 20)
        stop.set()
    here, there = await values(pair.target, topic), await values(pair.source, topic)
    violations = outcome.violations
    if lost := acknowledged - {*here.values()}:
        violations.append(
            f"{topic}, {blow}: {len(lost)} acknowledged records are lost: {[*lost][:3]}"
        )
    if fork := {offset: each for offset, each in there.items() if here.get(offset) != each}:
        violations.append(f"{topic}, {blow}: the source has others: {[*fork.items()][:3]}")
    positions = await pair.target.admin().group_offsets("readers")
    if positions.get(where, 0) > max(here, default=-1) + 1:
        violations.append(f"{topic}, {blow}: the group is ahead, at {positions[where]}")
    await fail_back(pair, topic, blow)
    while await values(pair.source, topic) != here:  # noqa: ASYNC110 - another process
        await asyncio.sleep(0.1)
    outcome.rounds += 1
    outcome.acknowledged += len(acknowledged)
    outcome.undone += repeated
    outcome.done += not repeated


@contextmanager
def processes(directory: Path) -> Iterator[list[BrokerProcess]]:
    """Two brokers, not started yet, with ports of their own."""
    shim = build_shim(directory)
    with reserved_ports(2) as ports:
        yield [
            BrokerProcess(directory / name, shim, port=port)
            for name, port in zip(("source", "target"), ports, strict=True)
        ]


@asynccontextmanager
async def linked(both: Sequence[BrokerProcess]) -> AsyncIterator[Pair]:
    """Run two brokers that mirror each other."""
    try:
        for each in both:
            await each.start()
        async with (
            Log.open(f"kafka://{both[0].address}") as source,
            Log.open(f"kafka://{both[1].address}") as target,
        ):
            for log, name, other, address in (
                (target, "east", source, both[0].address),
                (source, "back", target, both[1].address),
            ):
                settings = {**LINK, "bootstrap.servers": address}
                await log.admin().create_link(name, settings, source_cluster_id=other.cluster_id)
            async with asyncio.TaskGroup() as group:
                yield Pair(both, (source, target), group)
    finally:
        for each in both:
            await each.stop()


async def campaign(directory: Path, blows: Sequence[Blow]) -> Outcome:
    """Live all rounds, until something is violated."""
    outcome = Outcome()
    async with AsyncExitStack() as stack:
        both = stack.enter_context(processes(directory))
        pair = await stack.enter_async_context(linked(both))
        for number, blow in enumerate(blows):
            try:
                async with asyncio.timeout(ROUND_S):
                    await live(pair, f"round-{number}", blow, outcome)
            except TimeoutError:
                outcome.violations.append(f"round-{number}, {blow}: not over after {ROUND_S} s")
            if (number + 1) % 10 == 0:
                print(f"round {number + 1}: {outcome.acknowledged} acknowledged", flush=True)
            if outcome.violations:
                break
    return outcome


def cut_off(directory: Path) -> list[str]:
    """Return the files of records that a fail back has cut off."""
    return [each.name for each in directory.glob("*/data/lost-and-found/*")]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the campaign; return 1 if anything was violated."""
    parser = argparse.ArgumentParser(prog="chaos.mirror_kills", description=__doc__)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--report", type=Path, default=None, metavar="FILE")
    given = parser.parse_args(arguments)
    chance = random.Random(given.seed)
    # Every blow comes up before one does again.
    blows: list[Blow] = []
    while len(blows) < given.rounds:
        blows += chance.sample(BLOWS, len(BLOWS))
    with tempfile.TemporaryDirectory(prefix="streamlog-mirror-") as directory:
        outcome = asyncio.run(campaign(Path(directory), blows[: given.rounds]))
        if kept := cut_off(Path(directory)):
            outcome.violations.append(f"records were cut off: {kept[:5]}")
    report = {**vars(outcome), "seed": given.seed}
    print(json.dumps(report, indent=2), flush=True)
    if given.report is not None:
        given.report.parent.mkdir(parents=True, exist_ok=True)
        given.report.write_text(json.dumps(report, indent=2) + "\n")
    return 1 if outcome.violations else 0


if __name__ == "__main__":
    raise SystemExit(main())
