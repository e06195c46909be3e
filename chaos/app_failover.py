"""`python -m chaos.app_failover`: an app with windows and a join moves to another cluster.

Each round has two clusters of one broker, a link with `--app`, a feed of numbered orders and two
workers as processes. In a planned round, the workers stop, the app is promoted without loss while
the feed writes, and the workers start at the target. In the other rounds, the source gets SIGKILL
at a random moment. Before that, the target may stand still, as if the link were cut, and some
topics may be copied less far than others. The target may be killed, too, and so may the command
that promotes, which is then run again. The feed continues at the target.

With `--source kafka`, the app begins at Apache Kafka, which can't be sealed: the feed stops before
a planned move. With `--brokers 3`, both clusters have three brokers, and one after the other is
killed while the app moves. A command that is then given up is run again.

The committed rows of all output topics must be those of one uninterrupted run, which `app_rows`
computes from the target's input log. `--without-cut` promotes by plain `--now`, and some rounds
must fail: that proves that they notice an inconsistent cut.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import signal
import sys
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Final

from chaos.app_sides import Kind, Side, kafka_side, our_side, striking
from chaos.broker import build_shim
from chaos.commands import OUTPUT, Command
from chaos.mirrored_app import APP_ID
from chaos.shop import STILL, Feed, Moved, Workers, moved, until_whole, workers
from conformance.kafka import Unavailable
from simulation.report import conditions
from streamlog.log import Log

LINK: Final = "standby"
LOOKS: Final = "refresh.topics.interval.ms=200"
"""Frequent looks: it is soon known how far the app is copied as a whole."""
ROUND_S: Final = 300.0
RUNS_S: Final = (0.5, 3.0)
"""How long the app runs once it is mirrored."""
STILL_S: Final = (0.0, 0.5)
LAGS_S: Final = (0.2, 3.0)
COMMAND_S: Final = (0.3, 2.0)
"""After what time a command is killed."""
COMMAND_WITHIN_S: Final = 60.0
COMMANDS_MAX: Final = 4
"""How often a command is run that brokers fail under."""
LOG_TOLD: Final = 2_000
IN_ORDER: Final = ("--app", APP_ID)
STILL_SHORTLY: Final = ("--still-ms", "2000")
"""For Apache Kafka, which the feed has left by then."""


@dataclass(frozen=True)
class Plan:
    """What happens in a round."""

    is_planned: bool
    runs_s: float
    still_s: float = 0.0
    """How long the target stands still before the source is killed; 0: not at all."""
    lags_s: float = 0.0
    """How long some topics have not been copied when the source is killed; 0: all are copied."""
    restarts_target: bool = False
    kills_command_after_s: float | None = None
    source: Kind = "ours"
    brokers: int = 1
    """Of each cluster; more than one are killed in turn while the app moves."""

    @classmethod
    def drawn(
        cls, chance: Random, *, is_planned: bool, source: Kind = "ours", brokers: int = 1
    ) -> Plan:
        """Return a random plan."""
        runs_s = chance.uniform(*RUNS_S)
        if is_planned:
            return cls(is_planned=True, runs_s=runs_s, source=source, brokers=brokers)
        return cls(
            is_planned=False,
            runs_s=runs_s,
            source=source,
            brokers=brokers,
            still_s=chance.choice([0.0, chance.uniform(*STILL_S)]),
            lags_s=chance.choice([0.0, chance.uniform(*LAGS_S), chance.uniform(*LAGS_S)]),
            restarts_target=chance.random() < 0.3,
            kills_command_after_s=chance.uniform(*COMMAND_S) if chance.random() < 0.3 else None,
        )

    def told(self) -> str:
        """Return the plan as one line."""
        return ", ".join(f"{name}={value}" for name, value in vars(self).items() if value)


@dataclass
class Outcome:
    """What happened in all rounds."""

    rounds: int = 0
    acknowledged: int = 0
    """Orders."""
    lost: int = 0
    """Acknowledged orders that the target never got."""
    failed: int = 0
    """Rounds with other rows."""
    violations: list[str] = field(default_factory=list)
    logs: str = ""
    """Of the last round that has failed."""


class Places:
    """Two clusters, clients of both, the app and its feed."""

    def __init__(
        self, directory: Path, sides: Sequence[Side], at_work: Workers, feed: Feed
    ) -> None:
        self.source, self.target = sides
        self.workers = at_work
        self.feed = feed
        self.directory = directory
        self._commands = 0

    def log_text(self) -> str:
        """Return the ends of all logs."""
        files = sorted(self.directory.glob(f"command-*/{OUTPUT}"))
        parts = [self.source.log_text, self.target.log_text]
        parts += [each.read_text()[-LOG_TOLD:] for each in files]
        return "\n----\n".join([*parts, self.workers.log_text()])

    async def command(self, *arguments: str, killed_after_s: float = 0) -> bool:
        """Run `streamlog mirror` for the target; return whether the command was killed on purpose.

        Raises:
            RuntimeError: it has failed.
        """
        directory = self.directory / f"command-{self._commands}"
        self._commands += 1
        command = Command("mirror", *arguments, "--log", url(self.target), directory=directory)
        code = await command.ended(killed_after_s or COMMAND_WITHIN_S)
        if code is None:
            command.send(signal.SIGKILL)
            code = await command.ended(COMMAND_WITHIN_S)
        if code and not killed_after_s:
            raise RuntimeError(f"mirror {' '.join(arguments)}: {code}, {command.output}")
        return bool(code)


def url(side: Side) -> str:
    """Return the log of a cluster."""
    return f"kafka://{side.address}"


@asynccontextmanager
async def running(directory: Path, shim: Path, chance: Random, plan: Plan) -> AsyncIterator[Places]:
    """Run two clusters, whose app has not started yet."""
    is_kafka = plan.source == "kafka"
    async with AsyncExitStack() as stack:
        place = directory / "source"
        sides: list[Side] = [
            stack.enter_context(kafka_side(place))
            if is_kafka
            else stack.enter_context(our_side(place, shim, plan.brokers)),
            stack.enter_context(our_side(directory / "target", shim, plan.brokers)),
        ]
        for each in sides:
            stack.push_async_callback(each.kill)
        await asyncio.gather(*(each.start() for each in sides))
        at_work = await stack.enter_async_context(workers(directory))
        # Kafka does not know of time marks; the settings of the target's brokers leave them out.
        yield Places(directory, sides, at_work, Feed(chance, {} if is_kafka else STILL))


async def live(places: Places, plan: Plan, promote: Sequence[str]) -> Moved:
    """Live one round."""

    async def link() -> None:
        at = ("--source", url(places.source), "--app", APP_ID, "--set", LOOKS)
        await places.command("create", LINK, *at)

    async def move(target: Log) -> None:
        await until_whole(target, LINK)
        async with AsyncExitStack() as stack:
            if plan.brokers > 1:
                sides = (places.source, places.target)
                await stack.enter_async_context(striking(sides, places.feed.chance))
            await asyncio.sleep(plan.runs_s)
            if plan.is_planned:
                await places.workers.end()
                if plan.source == "kafka":
                    places.feed.stop()
                await promoted(places, plan, (*IN_ORDER, *STILL_SHORTLY))
                return
        await fall_behind(target, plan, places.feed.chance)
        await lose_source(places, plan)
        async with AsyncExitStack() as stack:
            if plan.brokers > 1:
                await stack.enter_async_context(striking([places.target], places.feed.chance))
            await promoted(places, plan, promote)

    urls = url(places.source), url(places.target)
    return await moved(places.feed, places.workers, urls, link, move)


async def fall_behind(target: Log, plan: Plan, chance: Random) -> None:
    """Stop copying some topics, as if their leaders at the target were gone."""
    if plan.lags_s:
        names = sorted(each.name for each in (await target.admin().describe_mirrors()).mirrors)
        await target.admin().pause_mirrors(chance.sample(names, chance.randint(1, len(names) - 1)))
        await asyncio.sleep(plan.lags_s)


async def lose_source(places: Places, plan: Plan) -> None:
    """Kill the source, and the workers with it."""
    if plan.still_s:
        places.target.send(signal.SIGSTOP)
        await asyncio.sleep(plan.still_s)
    await places.source.kill()
    places.target.send(signal.SIGCONT)
    await places.workers.end(signal.SIGKILL)
    if plan.restarts_target:
        await places.target.kill()
        await places.target.start()


async def promoted(places: Places, plan: Plan, promote: Sequence[str]) -> None:
    """Promote; a command that was killed is run again."""
    arguments = ("promote", LINK, *promote, "--yes")
    if plan.kills_command_after_s and not await places.command(
        *arguments, killed_after_s=plan.kills_command_after_s
    ):
        return
    for left in reversed(range(COMMANDS_MAX if plan.brokers > 1 else 1)):
        try:
            await places.command(*arguments)
        except RuntimeError:
            if not left:
                raise
        else:
            return


async def campaign(
    directory: Path, plans: Sequence[Plan], promote: Sequence[str], seed: int
) -> Outcome:
    """Live all rounds."""
    outcome = Outcome()
    shim = build_shim(directory)
    for number, plan in enumerate(plans):
        place = directory / f"round-{number}"
        lost: set[int] = set()
        async with running(place, shim, Random(f"{seed} {number}"), plan) as places:
            try:
                async with asyncio.timeout(ROUND_S):
                    told, lost = await live(places, plan, promote)
            except (RuntimeError, TimeoutError, ExceptionGroup) as error:
                told = [repr(error)]
            outcome.acknowledged += len(places.feed.acknowledged)
            outcome.lost += len(lost)
            if lost and plan.is_planned:
                told = [*told, f"{len(lost)} acknowledged orders are lost by a planned move"]
            outcome.logs = places.log_text() if told else outcome.logs
        outcome.rounds += 1
        outcome.failed += bool(told)
        outcome.violations += [f"round {number}, {plan.told()}: {each}" for each in told]
        print(f"round {number}: {plan.told()}: {told[:2] or 'holds'}", flush=True)
    return outcome


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the campaign; return 1 if rows are wrong or, without a cut, if none are."""
    parser = argparse.ArgumentParser(prog="chaos.app_failover", description=__doc__)
    parser.add_argument("--rounds", type=int, default=20, help="rounds that lose the source")
    parser.add_argument("--planned", type=int, default=0, help="planned moves before those rounds")
    parser.add_argument("--source", choices=("ours", "kafka"), default="ours")
    parser.add_argument("--brokers", type=int, choices=(1, 3), default=1, help="of each cluster")
    parser.add_argument("--without-cut", action="store_true", help="some rounds have to fail")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--report", type=Path, default=None, metavar="FILE")
    given = parser.parse_args(arguments)
    logging.basicConfig(level=logging.CRITICAL)  # Clients warn of everything that is done to them.
    chance = Random(given.seed)
    plans = [
        Plan.drawn(chance, is_planned=is_planned, source=given.source, brokers=given.brokers)
        for is_planned, count in ((True, given.planned), (False, given.rounds))
        for _ in range(count)
    ]
    promote = ("--now",) if given.without_cut else ("--now", *IN_ORDER)
    try:
        with tempfile.TemporaryDirectory(prefix="streamlog-app-") as directory:
            outcome = asyncio.run(campaign(Path(directory), plans, promote, given.seed))
    except Unavailable as error:
        parser.error(str(error))
    report = {**conditions({"seed": given.seed}), **vars(outcome), "promote": promote}
    print(json.dumps({**report, "violations": len(outcome.violations)}, indent=2), flush=True)
    if given.report is not None:
        given.report.parent.mkdir(parents=True, exist_ok=True)
        given.report.write_text(json.dumps(report, indent=2) + "\n")
    return int(bool(outcome.failed) != given.without_cut)


if __name__ == "__main__":
    sys.exit(main())
