"""`python -m chaos.app_kills`: kills at each step of the promotion of an app whose source is lost.

Two brokers run as processes. In each round, a small app writes one record to each of three
partitions and commits its position, in one transaction after the other. Some of its mirrors are
paused, and its source gets SIGKILL. Then the app is cut and promoted, and at one step, before its
request, during it or after its answer, the target or the operator's command gets SIGKILL. The
command is run again, and the app continues at the target. Checked are, by the numbers in the
records:

- Each transaction is in all three partitions or in none, once, and none is missing before another.
- The app's group stands where the last of them has left it.
- What the app does after that follows without a gap.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import logging
import random
import tempfile
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import asynccontextmanager, closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from chaos.mirror_kills import (
    MOMENTS,
    Blow,
    OperatorKilled,
    Pair,
    Strike,
    more_than,
    processes,
    struck,
)
from chaos.shop import until_whole
from chaos.writing import values
from streamlog.cli.operate.app_promotion import carry_out, plan_promotion
from streamlog.client.admin import Admin, MirrorStatus, NewTopic
from streamlog.client.cluster import Cluster
from streamlog.client.offset_metadata import GroupMetadata, OffsetAndMetadata
from streamlog.errors import StreamlogError
from streamlog.log import Log
from streamlog.record import TopicPartition

STEPS: Final = (
    "pause its topics",
    "set its positions",
    "cut and promote",
    "wait for its leaders",
)
VICTIMS: Final = ("target", "operator")
BLOWS: Final = [Blow(*each) for each in itertools.product(STEPS, MOMENTS, VICTIMS)]
ROUND_S: Final = 120
COMMANDS_MAX: Final = 5
INPUT: Final = 10_000
"""Records of the input, more than a round reads."""
WARM: Final = 5
"""Transactions before the link, so that it finds what the app reads."""
RUNS: Final = 20
"""Transactions between the mark and the pause, and again between the pause and the loss."""
AFTER: Final = 5
DELIVERY_TIMEOUT_MS: Final = 3_000


@dataclass
class Outcome:
    """What happened in all rounds."""

    rounds: int = 0
    transactions: int = 0
    """Those that the apps committed at the source."""
    kept: int = 0
    """Those that were at the target after the promotion."""
    struck: int = 0
    """Rounds whose blow came."""
    repeated: int = 0
    """Commands that were run once more."""
    violations: list[str] = field(default_factory=list)


class StruckAdmin(Admin):
    """The target as the command sees it, with a blow around one request."""

    def __init__(self, cluster: Cluster, strike: Strike) -> None:
        super().__init__(cluster)
        self._strike = strike

    async def pause_mirrors(self, topics: Collection[str]) -> None:
        """See `Admin`."""
        await struck(self._strike, STEPS[0], super().pause_mirrors(topics))

    async def alter_group_offsets(
        self, group_id: str, offsets: Mapping[TopicPartition, int | OffsetAndMetadata]
    ) -> None:
        """See `Admin`."""
        await struck(self._strike, STEPS[1], super().alter_group_offsets(group_id, offsets))

    async def promote_app_now(self, cuts: Mapping[str, Mapping[int, int]]) -> None:
        """See `Admin`."""
        await struck(self._strike, STEPS[2], super().promote_app_now(cuts))

    async def ends_of(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """See `Admin`; one partition at a time is asked for when the mirrors are read."""
        asked = super().ends_of(partitions)
        if len(partitions) == 1:
            with closing(asked):
                return await asked
        return await struck(self._strike, STEPS[3], asked)


class SmallApp:
    """An app whose transaction n writes n to three partitions and commits position n + 1."""

    def __init__(self, app_id: str) -> None:
        self.id = app_id
        self.input = TopicPartition(f"{app_id}.in", 0)
        self.state, self.out = f"{app_id}-0-changelog", f"{app_id}.out"
        self.written = [
            TopicPartition(self.state, 0),
            TopicPartition(self.state, 1),
            TopicPartition(self.out, 0),
        ]
        self.committed: set[bytes] = set()

    async def create(self, log: Log) -> None:
        """Create its topics, and fill its input."""
        wanted = [NewTopic(self.input.topic, 1), NewTopic(self.state, 2), NewTopic(self.out, 1)]
        await log.admin().create_topics(wanted)
        async with log.producer() as producer:
            for _ in range(INPUT):
                await producer.send(self.input.topic, b"x", partition=0)
            await producer.flush()

    async def work(self, log: Log, first: int, count: int | None = None) -> None:
        """Make transactions from a number on, until something fails or they are enough."""
        numbers = itertools.count(first) if count is None else range(first, first + count)
        async with log.producer(
            transactional_id=f"{self.id}-0",
            delivery_timeout_ms=DELIVERY_TIMEOUT_MS,
            request_timeout_ms=DELIVERY_TIMEOUT_MS // 2,
        ) as producer:
            for number in numbers:
                value = b"%d" % number
                async with producer.transaction() as transaction:
                    for where in self.written:
                        await producer.send(where.topic, value, partition=where.partition)
                    await transaction.send_offsets(
                        {self.input: number + 1}, GroupMetadata(group_id=self.id)
                    )
                self.committed.add(value)

    async def found(self, log: Log) -> tuple[list[list[int]], int]:
        """Return the numbers in each partition, in their order, and the position of the group."""
        numbers = []
        for where in self.written:
            records = await values(log, where.topic, where.partition, is_committed=True)
            numbers.append([int(records[offset]) for offset in sorted(records)])
        return numbers, (await log.admin().group_offsets(self.id)).get(self.input, 0)


async def live(pair: Pair, name: str, blow: Blow, chance: random.Random, outcome: Outcome) -> None:
    """Live one round."""
    app = SmallApp(name)
    async with Log.open(f"kafka://{pair.processes['source'].address}") as source:
        await app.create(source)
        await app.work(source, 0, WARM)
        await link(pair, source, app)
        async with asyncio.TaskGroup() as group:
            working = group.create_task(_until_lost(app, source))
            await until_whole(pair.target, name)
            await more_than(app.committed, len(app.committed) + RUNS)
            admin = pair.target.admin()
            mirrors = (await admin.describe_mirrors()).mirrors
            mine = sorted(each.name for each in mirrors if each.link == name)
            await admin.pause_mirrors(chance.sample(mine, chance.randrange(len(mine))))
            await more_than(app.committed, len(app.committed) + RUNS)
            await pair.processes["source"].kill()
            await working
    await promote(pair, app, blow, outcome)
    told = f"{name}, {blow}"
    numbers, kept = await app.found(pair.target)
    found = fault(numbers, kept)
    if not found:
        await app.work(pair.target, kept, AFTER)
        numbers, position = await app.found(pair.target)
        gap = "" if position == kept + AFTER else f"the app went from {kept} to {position}"
        found = fault(numbers, position) or gap
    if found:
        outcome.violations.append(f"{told}: {found}")
        return
    outcome.rounds += 1
    outcome.transactions += len(app.committed) - AFTER
    outcome.kept += kept
    await pair.target.admin().delete_link(name)
    await pair.processes["source"].start()


def fault(numbers: Sequence[Sequence[int]], position: int) -> str:
    """Return what is wrong with the numbers in each partition, and with the app's position."""
    whole = [*range(max(map(len, numbers)))]
    if any([*each] != whole for each in numbers):
        return f"the records are {numbers}"
    return "" if position == len(whole) else f"the position is {position} behind {len(whole)}"


async def _until_lost(app: SmallApp, source: Log) -> None:
    with suppress(StreamlogError):
        await app.work(source, WARM)


async def link(pair: Pair, source: Log, app: SmallApp) -> None:
    """Let the target mirror an app, by a link of its name."""
    settings = {
        "bootstrap.servers": pair.processes["source"].address,
        "apps": app.id,
        "topics": f"{app.out},{app.input.topic}",
        "refresh.topics.interval.ms": "100",
    }
    await pair.target.admin().create_link(app.id, settings, source_cluster_id=source.cluster_id)


async def promote(pair: Pair, app: SmallApp, blow: Blow, outcome: Outcome) -> None:
    """Promote the app, with one blow; run the command again as an operator would."""
    is_struck = False

    async def strike(step: str, moment: str) -> None:
        nonlocal is_struck
        if not is_struck and (step, moment) == (blow.step, blow.moment):
            is_struck = True
            await pair.kill(blow.victim)

    for left in reversed(range(COMMANDS_MAX)):
        admin = StruckAdmin(pair.target.admin()._cluster, strike)  # noqa: SLF001
        try:
            await _run(admin, app.id)
        except OperatorKilled:
            outcome.repeated += 1
        except StreamlogError:
            outcome.repeated += 1
            if not left:
                raise
        else:
            break
    outcome.struck += is_struck


async def _run(admin: Admin, app_id: str) -> None:
    found = await admin.describe_mirrors()
    (link,) = (each for each in found.links if each.name == app_id)
    left = [
        each
        for each in found.mirrors
        if each.link == app_id and each.status is not MirrorStatus.PROMOTED
    ]
    if left:
        await carry_out(admin, await plan_promotion(admin, link, app_id, left))


@asynccontextmanager
async def running(directory: Path) -> AsyncIterator[Pair]:
    """Run two brokers."""
    with processes(directory) as both:
        try:
            for each in both:
                await each.start()
            async with (
                Log.open(f"kafka://{both[0].address}") as source,
                Log.open(f"kafka://{both[1].address}") as target,
                asyncio.TaskGroup() as group,
            ):
                yield Pair(both, (source, target), group)
        finally:
            for each in both:
                await each.kill()


async def campaign(directory: Path, blows: Sequence[Blow], seed: int) -> Outcome:
    """Live all rounds, until something is violated."""
    outcome, chance = Outcome(), random.Random(seed)
    async with running(directory) as pair:
        for number, blow in enumerate(blows):
            try:
                async with asyncio.timeout(ROUND_S):
                    await live(pair, f"app{number}", blow, chance, outcome)
            except TimeoutError:
                outcome.violations.append(f"app{number}, {blow}: not over after {ROUND_S} s")
            print(f"round {number}: {blow}, {outcome.kept} of {outcome.transactions}", flush=True)
            if outcome.violations:
                break
    return outcome


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the campaign; return 1 if anything was violated."""
    parser = argparse.ArgumentParser(prog="chaos.app_kills", description=__doc__)
    parser.add_argument("--rounds", type=int, default=24)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--report", type=Path, default=None, metavar="FILE")
    given = parser.parse_args(arguments)
    logging.basicConfig(level=logging.CRITICAL)  # Clients warn of everything that is done to them.
    chance = random.Random(given.seed)
    # Every blow comes up before one does again.
    blows: list[Blow] = []
    while len(blows) < given.rounds:
        blows += chance.sample(BLOWS, len(BLOWS))
    with tempfile.TemporaryDirectory(prefix="streamlog-app-kills-") as directory:
        outcome = asyncio.run(campaign(Path(directory), blows[: given.rounds], given.seed))
    report = {**vars(outcome), "seed": given.seed}
    print(json.dumps(report, indent=2), flush=True)
    if given.report is not None:
        given.report.parent.mkdir(parents=True, exist_ok=True)
        given.report.write_text(json.dumps(report, indent=2) + "\n")
    return 1 if outcome.violations else 0


if __name__ == "__main__":
    raise SystemExit(main())
