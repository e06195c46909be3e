"""`python -m chaos.procedures`: the procedures of docs/operations.md, carried out under a load.

Each begins with a cluster of its own, to which producers write with acks=all all the time. At the
end everything that was acknowledged has to be there, once and in order. `--quick` takes short
time-outs and fewer rounds; names carry out some of them.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import shutil
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final, TypeAlias

from chaos.cluster import TEST_SETTINGS
from chaos.experiments.story import Story
from chaos.ports import reserved_ports
from chaos.site import PORTS, Site
from chaos.writing import Writing, values, verdict
from streamlog.broker.storage.catalog import new_id
from streamlog.client.admin.topic_admin import NewTopic
from streamlog.log import Log

TOPICS: Final = ("a", "b", "c")
ATTACH_MS: Final = 60_000
NODES: Final = (1, 2, 3)
INIT: Final = """
for n in 1 2 3; do
    streamlog cluster init --node $n --cluster-id {cluster_id} --voters $VOTERS \\
        --data log/broker-$n &
done
wait
"""
START: Final = """
for n in 1 2 3; do streamlog broker --config log/broker-$n.properties & done
streamlog cluster status --log $LOG --wait 60 || exit 1
"""

Carry: TypeAlias = Callable[[Site, Story, bool], Awaitable[None]]


async def replace_disks(site: Site, story: Story, is_quick: bool) -> None:  # noqa: FBT001 - one kind
    """Every broker in turn is killed, and its disk replaced."""
    await _three(site)
    async with _load(site, story, replicas=3, nodes=NODES):
        for node in NODES[: 2 if is_quick else None]:
            await site.kill(node)
            had_bytes = site.stored_bytes(node)
            shutil.rmtree(site.data(node))
            await site.carry_out("replace-disk", node)
            has_bytes = site.stored_bytes(node)
            told = f"broker {node} was killed with {had_bytes} bytes of records on its disk"
            story.must(has_bytes >= had_bytes, f"{told}; the status is well at {has_bytes}")


async def rolling_restart(site: Site, story: Story, is_quick: bool) -> None:  # noqa: FBT001 - one kind
    """Every broker in turn is stopped in order and started; no producer is refused anything."""
    await _three(site)
    async with _load(site, story, replicas=3, nodes=NODES, refuses=False):
        for node in NODES[: 1 if is_quick else None]:
            before = site.pid(node)
            await site.carry_out("rolling-restart", node)
            code = site.code_of(before)
            story.must(code == 0, f"broker {node} ended with {code}, and the status is well")


async def grow(site: Site, story: Story, is_quick: bool) -> None:  # noqa: FBT001 - one kind
    """One broker becomes three, and everything gets three copies; then one is lost."""
    await site.carry_out("begin-alone", brokers=(1,))
    async with _load(site, story, replicas=1, nodes=(1,)):
        await site.carry_out("grow", brokers=(1,))
        story.tell("three brokers, three copies of everything")
        if not is_quick:
            await site.kill(1)
            shutil.rmtree(site.data(1))
            await site.carry_out("replace-disk", 1)
            story.tell("the first one's disk was replaced: the others had everything")


async def move_and_drain(site: Site, story: Story, is_quick: bool) -> None:  # noqa: ARG001, FBT001 - one kind
    """A fourth broker comes, gets partitions, gives them back, and goes."""
    await _three(site)
    async with _load(site, story, replicas=3, nodes=NODES):
        await site.carry_out("add-broker", 4)
        await site.carry_out("move", 4)
        story.tell("a fourth broker was added, and everything moved to brokers 2, 3 and 4")
        pid = site.pid(4)
        await site.carry_out("drain", 4)
        code = site.code_of(pid)
        story.must(code == 0, f"what broker 4 held was moved away, and it ended with {code}")


PROCEDURES: Final[Mapping[str, Carry]] = {
    "replace-disks": replace_disks,
    "rolling-restart": rolling_restart,
    "grow": grow,
    "move-and-drain": move_and_drain,
}
SHORTENED: Final = {"replace-disks", "rolling-restart"}
"""Where every broker has the settings of the site, so that its time-outs may be short."""
CARRIED_OUT: Final = {
    "add-broker",
    "begin-alone",
    "drain",
    "grow",
    "move",
    "replace-disk",
    "rolling-restart",
}
"""The blocks of the document that these take."""


async def carry_out(name: str, directory: Path, *, is_quick: bool) -> Story:
    """Carry out a procedure; what did not hold is counted in the story."""
    story = Story()
    with reserved_ports(len(PORTS)) as ports:
        is_short = is_quick and name in SHORTENED
        site = Site(directory, ports, TEST_SETTINGS if is_short else {})
        try:
            await PROCEDURES[name](site, story, is_quick)
        except BaseException:
            story.tell(site.log_text())
            raise
        finally:
            await site.close()
    return story


async def _three(site: Site) -> None:
    """Three brokers, started at once."""
    await site.run(INIT.format(cluster_id=new_id()))
    site.configure(*NODES)
    await site.run(START)


@asynccontextmanager
async def _load(
    site: Site, story: Story, *, replicas: int, nodes: Sequence[int], refuses: bool = True
) -> AsyncIterator[None]:
    """Producers that write all the time; in the end nothing acknowledged is missing."""
    async with Log.attach(site.url(*nodes), timeout_ms=ATTACH_MS) as log:
        configs = {"min.insync.replicas": "2"} if replicas > 1 else {}
        await log.admin().create_topics(
            [NewTopic(topic, 1, replicas, dict(configs)) for topic in TOPICS]
        )
        writings = {topic: Writing(log, topic) for topic in TOPICS}
        async with asyncio.TaskGroup() as tasks:
            for each in writings.values():
                tasks.create_task(each.run())
            for each in writings.values():
                await each.gets_on(each.now_ms())
            yield
            for each in writings.values():
                await each.gets_on(each.now_ms())
                each.stop()
        for topic, each in writings.items():
            wrong = verdict(each.acknowledged, await values(log, topic))
            count = len(each.acknowledged)
            story.must(not wrong, f"{topic}: {count} acknowledged, all there, once {wrong[:3]}")
            if not refuses:
                story.must(not each.refused, f"{topic}: nothing was refused {each.refused[:1]}")


async def _all(names: Sequence[str], *, is_quick: bool) -> int:
    broken = 0
    for name in names:
        print(f"# {name}", flush=True)
        with tempfile.TemporaryDirectory(prefix="streamlog-procedure-") as directory:
            story = await carry_out(name, Path(directory) / "site", is_quick=is_quick)
        broken += story.broken
    return int(bool(broken))


def main() -> int:
    """Carry out what is named; 1 if anything did not hold."""
    logging.basicConfig(level=logging.ERROR)
    parser = argparse.ArgumentParser(prog="python -m chaos.procedures", description=__doc__)
    parser.add_argument("names", nargs="*", choices=[*PROCEDURES, []], help="default: all of them")
    parser.add_argument("--quick", action="store_true", help="short time-outs, fewer rounds")
    given = parser.parse_args()
    return asyncio.run(_all(given.names or list(PROCEDURES), is_quick=given.quick))


if __name__ == "__main__":
    sys.exit(main())
