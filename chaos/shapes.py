"""`python -m chaos.shapes`: the shapes of docs/two-data-centres.md, set up and broken under a load.

Each begins with clusters of its own, one broker each, to which producers write with acks=all. The
commands are those of the document as they stand there. Names carry out some of the shapes.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from typing import Final, TypeAlias

from chaos.broker import BrokerProcess, build_shim
from chaos.experiments.story import Story
from chaos.shop import Feed, Workers, moved, until_whole, workers
from chaos.writing import Acknowledged, Writing, values, verdict
from streamlog.client.admin import MirrorDescription, NewTopic
from streamlog.clock import SystemClock
from streamlog.log import Log
from streamlog.record import TopicPartition
from streamlog.records.batch import split_batches

DOCUMENT: Final = Path(__file__).parent.parent / "docs" / "two-data-centres.md"
BLOCK: Final = re.compile(
    r"^ *<!-- procedure: ([a-z-]+) -->\n *```\n(.*?)^ *```", re.DOTALL | re.MULTILINE
)
TIME: Final = re.compile(r"\d{4}-\d\d-\d\dT[\d:]+Z")
"""The time in the document, which stands for one of the load's."""
TOPICS: Final = ("orders", "users")
GROUP: Final = "billing"
WITHIN_S: Final = 60.0
LOOK_S: Final = 0.05
TIMEOUT_MS: Final = 5_000
"""After which a producer gives up what it has sent."""
AFTER: Final = 1_000_000
"""The first number that is written after a move."""
LOAD_S: Final = 2.0
"""How long producers write before something happens."""

Carry: TypeAlias = Callable[["Places", Story], Awaitable[None]]


def blocks() -> dict[str, str]:
    """Return the commands of the document, by name."""
    return dict(BLOCK.findall(DOCUMENT.read_text()))


class Places:
    """A cluster in each place, and the load."""

    def __init__(self, directory: Path) -> None:
        shim = build_shim(directory)
        self.directory = directory
        self.brokers = {
            name: BrokerProcess(directory / name, shim) for name in ("east", "west", "hub")
        }
        self._blocks = blocks()

    def url(self, place: str) -> str:
        """Return the log of a place."""
        return f"kafka://{self.brokers[place].address}"

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Run all clusters."""
        try:
            for each in self.brokers.values():
                await each.start()
            yield
        finally:
            for each in self.brokers.values():
                await each.kill()

    async def carry_out(self, name: str, *, time_ms: int | None = None) -> str:
        """Run the commands of a block, confirm what they ask, and return what they said.

        Raises:
            RuntimeError: one of them has failed.
        """
        commands = self._blocks[name]
        for place, broker in self.brokers.items():
            commands = commands.replace(f"{place}-1:9092", broker.address)
        if time_ms is not None:
            at = datetime.fromtimestamp(time_ms / 1000, UTC).isoformat(timespec="milliseconds")
            commands = TIME.sub(at.replace("+00:00", "Z"), commands)
        script = f'streamlog() {{ "{sys.executable}" -m streamlog "$@"; }}\nset -e\n{commands}'
        root = str(DOCUMENT.parent.parent)
        done = await asyncio.to_thread(
            subprocess.run,
            ["bash", "-c", script],
            input="y\n" * 9,
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, "PYTHONPATH": root, "COLUMNS": "200"},
        )
        if done.returncode:
            raise RuntimeError(
                f"{commands}ended with {done.returncode}:\n{done.stdout}{done.stderr}"
            )
        return done.stdout

    async def create(self, place: str) -> None:
        """Create the topics."""
        async with Log.open(self.url(place)) as log, log.admin() as admin:
            await admin.create_topics([NewTopic(name, 1) for name in TOPICS])

    async def mirrors(self, place: str) -> dict[str, MirrorDescription]:
        """Return the mirrors of a place."""
        async with Log.open(self.url(place)) as log, log.admin() as admin:
            return {each.name: each for each in (await admin.describe_mirrors()).mirrors}

    async def until_copied(self, place: str, topics: Mapping[str, int]) -> None:
        """Wait until mirrors end at these offsets."""
        async with asyncio.timeout(WITHIN_S):
            while True:
                ends = {
                    name: part.log_end_offset
                    for name, each in (await self.mirrors(place)).items()
                    for part in each.partitions
                }
                if topics.items() <= ends.items():
                    return
                await asyncio.sleep(LOOK_S)

    async def values(self, place: str, topic: str) -> dict[int, bytes]:
        """Return what a topic has, by offset."""
        async with Log.open(self.url(place)) as log:
            return await values(log, topic)

    async def times(self, place: str, topic: str) -> dict[int, int]:
        """Return the timestamps of the records of a topic, by number, in their order."""
        found: dict[int, int] = {}
        async with Log.open(self.url(place)) as log, log.consumer() as consumer:
            at = TopicPartition(topic, 0)
            consumer.assign([at])
            consumer.seek(at, 0)
            end = (await consumer.end_offsets([at]))[at]
            while await consumer.position(at) < end:
                for each in (await consumer.poll(timeout_ms=500)).get(at, ()):
                    found[int(each.value or b"")] = each.timestamp_ms
        return found

    async def committed(self, place: str) -> int:
        """Return the position of the group in `orders`; 0 before the first."""
        async with Log.open(self.url(place)) as log, log.admin() as admin:
            return (await admin.group_offsets(GROUP)).get(TopicPartition("orders", 0), 0)

    async def read(self, place: str, count: int) -> list[int]:
        """Read so many numbers of `orders` as the group, and commit behind them."""
        found: list[int] = []
        async with (
            Log.open(self.url(place)) as log,
            log.consumer(group_id=GROUP, auto_offset_reset="earliest") as consumer,
        ):
            await consumer.subscribe(["orders"])
            async with asyncio.timeout(WITHIN_S):
                while len(found) < count:
                    for records in (await consumer.poll(timeout_ms=500)).values():
                        found += [int(each.value or b"") for each in records]
            await consumer.commit()
        return found


@asynccontextmanager
async def load(
    places: Places, *names: str, first: int = 0
) -> AsyncIterator[dict[str, dict[str, Writing]]]:
    """Producers that write to all topics of places; they stop with the block, or before."""
    async with AsyncExitStack() as stack:
        writings: dict[str, dict[str, Writing]] = {}
        tasks = await stack.enter_async_context(asyncio.TaskGroup())
        for name in names:
            log = await stack.enter_async_context(
                Log.attach(places.url(name), timeout_ms=TIMEOUT_MS)
            )
            writings[name] = {
                topic: Writing(log, topic, first=first, timeout_ms=TIMEOUT_MS) for topic in TOPICS
            }
        running = [
            tasks.create_task(each.run()) for of in writings.values() for each in of.values()
        ]
        await asyncio.sleep(LOAD_S)
        yield writings
        for each in (each for of in writings.values() for each in of.values()):
            each.stop()
        await asyncio.wait(running)


def ends(writings: Mapping[str, Writing], prefix: str = "") -> dict[str, int]:
    """Return where the mirrors of what was acknowledged have to end."""
    return {
        f"{prefix}{topic}": max(each.offset for each in of.acknowledged) + 1
        for topic, of in writings.items()
    }


async def compare(
    places: Places, story: Story, place: str, topic: str, acknowledged: Sequence[Acknowledged]
) -> None:
    """What was acknowledged is in a topic, once, in order and at its offset."""
    wrong = verdict([*acknowledged], await places.values(place, topic))
    story.must(not wrong, f"{place} has {len(acknowledged)} records in {topic} {wrong[:3]}")


async def hub_and_spoke(places: Places, story: Story) -> None:
    """Two places write, and the third one has everything under the names of the places."""
    for place in ("east", "west"):
        await places.create(place)
    async with load(places, "east", "west") as writings:
        await places.carry_out("hub")
        await asyncio.sleep(LOAD_S)
        await places.brokers["hub"].kill()
        await asyncio.sleep(LOAD_S)
        await places.brokers["hub"].start()
        story.tell("the hub was killed and started again")
    for place, of in writings.items():
        await places.until_copied("hub", ends({"orders": of["orders"]}, f"{place}."))
        await compare(places, story, "hub", f"{place}.orders", of["orders"].acknowledged)


async def active_active(places: Places, story: Story) -> None:
    """Both places write and mirror each other; nothing comes back."""
    for place in ("east", "west"):
        await places.create(place)
    async with load(places, "east", "west") as writings:
        await places.carry_out("active-active")
        await asyncio.sleep(LOAD_S)
    for place, other in (("east", "west"), ("west", "east")):
        there = writings[other]["orders"]
        await places.until_copied(place, ends({"orders": there}, f"{other}."))
        await compare(places, story, place, f"{other}.orders", there.acknowledged)
        await compare(places, story, place, "orders", writings[place]["orders"].acknowledged)
        mirrors = sorted(await places.mirrors(place))
        story.must(mirrors == [f"{other}.orders"], f"{place} mirrors {mirrors}, and no mirrors")


async def planned_move(places: Places, story: Story) -> None:
    """The standby takes over while producers write, and the other place follows; and back."""
    await places.create("east")
    await places.carry_out("standby")
    async with load(places, "east") as writings:
        read = await places.read("east", 50)
        await places.carry_out("verify")
        await places.carry_out("move")
        refused = [each.refused[:1] for each in writings["east"].values()]
        story.must(all("POLICY_VIOLATION" in each[0] for each in refused), f"refused: {refused[0]}")
    east = writings["east"]
    read += await places.read("west", len(east["orders"].acknowledged) - len(read))
    story.must(read == sorted({*read}), f"the group read {len(read)} records, each once")
    # Numbers of their own: what east refused or did not answer may be in its log.
    async with load(places, "west", first=AFTER) as writings:
        await places.carry_out("return")
        await asyncio.sleep(LOAD_S)
    for topic, west in writings["west"].items():
        both = [*east[topic].acknowledged, *west.acknowledged]
        await places.until_copied("east", ends({topic: west}))
        for place in ("west", "east"):
            await compare(places, story, place, topic, both)
    kept = lost_and_found(places.brokers["east"])
    story.must(not kept, f"east had nothing to cut {kept}")


async def source_lost(places: Places, story: Story) -> None:
    """The source is killed under load; the standby is promoted at once, and the source returns."""
    await places.create("east")
    await places.carry_out("standby")
    async with load(places, "east") as writings:
        await places.read("east", 50)
        at_ms = SystemClock().wall_ms()
        await asyncio.sleep(LOAD_S)
        # The mirror falls behind, so that there is something to miss.
        places.brokers["west"].send(signal.SIGSTOP)
        await asyncio.sleep(LOAD_S / 4)
        await places.brokers["east"].kill()
        places.brokers["west"].send(signal.SIGCONT)
    east = writings["east"]
    said = await places.carry_out("lost")
    story.tell("promote --now said: " + " / ".join(said.split("\n")[:12]))
    lost: dict[str, list[int]] = {}
    for topic, of in east.items():
        found = await places.values("west", topic)
        lost[topic] = [each.number for each in of.acknowledged if each.offset not in found]
        here = [each for each in of.acknowledged if each.offset in found]
        wrong = verdict(here, found)
        tail = [each.number for each in of.acknowledged[len(here) :]]
        story.must(
            not wrong and lost[topic] == tail,
            f"west has the first {len(here)} of {len(of.acknowledged)} in {topic} {wrong[:3]}",
        )
    position, stamps = await places.committed("west"), await places.times("west", "orders")
    story.must(50 <= position <= len(stamps), f"the group is at {position} of {len(stamps)}")
    await places.carry_out("reset", time_ms=at_ms)
    expected = next(number for number, time_ms in stamps.items() if time_ms >= at_ms)
    again = await places.read("west", 1)
    story.must(again[0] == expected, f"the group begins with {again[0]} at the time it is reset to")
    # Numbers of their own: what east refused or did not answer may be in its log.
    async with load(places, "west", first=AFTER) as writings:
        await places.brokers["east"].start()
        await places.carry_out("return")
        await asyncio.sleep(LOAD_S)
    for topic, west in writings["west"].items():
        await places.until_copied("east", ends({topic: west}))
        there, here_now = [await places.values(each, topic) for each in ("west", "east")]
        story.must(there == here_now, f"{topic} has {len(there)} records in both places")
    kept = lost_and_found(places.brokers["east"])
    told = {topic: [*map(int, kept.get(topic, []))] for topic in TOPICS}
    story.must(
        all({*lost[topic]} <= {*told[topic]} for topic in TOPICS),
        f"lost-and-found has the {sum(map(len, lost.values()))} records that west lacks",
    )


async def app_moves(places: Places, story: Story) -> None:
    """An app with windows and a join stops in one place, and goes on in the other one."""

    async def move(_: Log, at_work: Workers) -> None:
        await asyncio.sleep(LOAD_S)
        await at_work.end()
        await places.carry_out("app-move")

    lost = await _app_goes_on(places, story, move)
    story.must(not lost, f"west lacks none of the acknowledged orders {[*lost][:3]}")


async def app_lost(places: Places, story: Story) -> None:
    """The source of an app is killed, and the app goes on with what was copied as a whole."""

    async def move(west: Log, at_work: Workers) -> None:
        await until_whole(west, "shop-standby")
        await asyncio.sleep(LOAD_S)
        # Some of its topics fall behind the others.
        await west.admin().pause_mirrors(["shop-0-changelog", "sales"])
        await asyncio.sleep(LOAD_S)
        await places.brokers["east"].kill()
        await at_work.end(signal.SIGKILL)
        said = await places.carry_out("app-lost")
        story.tell("promote --now --app said: " + " / ".join(said.split("\n")[-8:]))

    lost = await _app_goes_on(places, story, move)
    story.tell(f"west lacks {len(lost)} of the acknowledged orders")


async def _app_goes_on(
    places: Places, story: Story, move: Callable[[Log, Workers], Awaitable[None]]
) -> set[int]:
    """Let an app move from east to west, and return the orders that west lacks."""
    feed, urls = Feed(Random(0)), (places.url("east"), places.url("west"))
    async with workers(places.directory) as at_work:
        wrong, lost = await moved(
            *(feed, at_work, urls),
            link=lambda: places.carry_out("app-standby"),
            move=lambda west: move(west, at_work),
        )
    story.must(
        not wrong, f"the rows for {len(feed.acknowledged)} orders are those of one run {wrong[:3]}"
    )
    return lost


def lost_and_found(broker: BrokerProcess) -> dict[str, list[bytes]]:
    """Return the values of the records that a broker has cut off and kept, by topic."""
    found: dict[str, list[bytes]] = {}
    for file in sorted((broker.data / "lost-and-found").glob("*.log")):
        topic = file.name.rsplit("-", 2)[0]
        for batch in split_batches(file.read_bytes()):
            found.setdefault(topic, []).extend(each.value or b"" for each in batch.records())
    return found


SHAPES: Final[Mapping[str, Carry]] = {
    "hub-and-spoke": hub_and_spoke,
    "active-active": active_active,
    "planned-move": planned_move,
    "source-lost": source_lost,
    "app-moves": app_moves,
    "app-lost": app_lost,
}
CARRIED_OUT: Final = {
    "hub",
    "active-active",
    "standby",
    "verify",
    "move",
    "lost",
    "reset",
    "return",
    "app-standby",
    "app-move",
    "app-lost",
}
"""The blocks of the document that these take."""


async def carry_out(name: str, directory: Path) -> Story:
    """Carry out a shape; what did not hold is counted in the story."""
    story = Story()
    places = Places(directory)
    try:
        async with places.running():
            await SHAPES[name](places, story)
    except BaseException:
        for place, broker in places.brokers.items():
            story.tell(f"---- {place}\n{broker.log_text[-3_000:]}")
        raise
    return story


async def _all(names: Sequence[str]) -> int:
    broken = 0
    for name in names:
        print(f"# {name}", flush=True)
        with tempfile.TemporaryDirectory(prefix="streamlog-shape-") as directory:
            broken += (await carry_out(name, Path(directory))).broken
    return int(bool(broken))


def main() -> int:
    """Carry out what is named; 1 if anything did not hold."""
    logging.basicConfig(level=logging.ERROR)
    parser = argparse.ArgumentParser(prog="python -m chaos.shapes", description=__doc__)
    parser.add_argument("names", nargs="*", choices=[*SHAPES, []], help="default: all of them")
    return asyncio.run(_all(parser.parse_args().names or list(SHAPES)))


if __name__ == "__main__":
    sys.exit(main())
