"""`python -m tests.oracle.mirror_to_kafka`: our mirror to Apache Kafka beside MirrorMaker 2.

A random history is written to a broker of ours, and mirrored to one real Apache Kafka by both,
while our worker is killed (-9) at random points, and then the target while a worker lives. After
that all three have to hold equal records in equal order. Kafka's own RemoteClusterUtils translates
the positions of groups: from ours, a reader has to continue exactly with its next record, also
where worker or target was killed since; from MirrorMaker 2's, how much it reads again is a figure.
Differences are printed; then the exit code is 1.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any, Final

from chaos.ports import reserved_ports
from conformance.kafka import ApacheKafka, Unavailable
from streamlog.cli.operate.connectors_command import ask_connect
from streamlog.errors import StreamlogError
from streamlog.log import Log
from streamlog.record import TopicPartition
from streamlog.records.batch import LogRecord
from tests.broker.process import BrokerProcess
from tests.oracle.java import JavaProgram
from tests.oracle.mirror_to_kafka.clusters import (
    GROUPS,
    OURS,
    RECENT,
    THEIRS,
    History,
    libraries,
    mirror_maker,
    our_mirror,
    our_worker,
    read,
)

PATH: Final = "/connectors/mirror/config"
PATIENCE_S: Final = 120
LOOK_S: Final = 0.5
Records = Mapping[TopicPartition, Sequence[LogRecord]]


async def main(arguments: argparse.Namespace) -> list[str]:
    """Run one history; returns the differences."""
    with (
        tempfile.TemporaryDirectory(prefix="streamlog-mirror-") as name,
        tempfile.TemporaryDirectory(prefix="streamlog-kafka-") as kafka_folder,
        reserved_ports(2) as ports,
        ApacheKafka(Path(kafka_folder), ports) as kafka,
        BrokerProcess(Path(name) / "data", flush="os") as source,
        JavaProgram(Path(__file__).parent / "RemoteClusters.java", libraries()) as java,
    ):
        folder, url, target = Path(name), f"kafka://{source.address}", kafka.address
        async with Log.open(url) as log, Log.open(f"kafka://{target}") as there:
            history = History(log, arguments.seed)
            await history.create()
            kills = await _mirrored_under_kills(folder, url, target, history, arguments)
            await _mirrored_under_strikes(folder, url, kafka, history, arguments)
            begins = await history.ends()
            with our_worker(folder, url), mirror_maker(folder, source.address, target):
                before = await read(log)
                lines = await _whole(there, OURS, before) + await _whole(there, THEIRS, before)
                await history.write(arguments.transactions // 4, 0.02)
                expected = await read(log)
                lines += await _whole(there, OURS, expected)
                lines += await _whole(there, THEIRS, expected)
                positions = await history.commit_groups(begins)
                lines += await _translations(java, target, there, expected, positions)
    records = sum(map(len, expected.values()))
    print(
        f"seed {arguments.seed}: {records} records, {kills} kills of our worker and"
        f" {arguments.strikes} of the target, {len(lines)} differences"
    )
    return lines


async def _mirrored_under_kills(
    folder: Path, url: str, target: str, history: History, arguments: argparse.Namespace
) -> int:
    """Write the history while our worker is killed again and again; returns how often."""
    chance = Random(arguments.seed)
    writing = asyncio.create_task(history.write(arguments.transactions, 0.02))
    kills = 0
    while not writing.done() or kills < arguments.kills:
        with our_worker(folder, url) as worker:
            service, settings = worker.line(r"(http://\S+)").group(1), our_mirror(target)
            await asyncio.to_thread(ask_connect, service, "PUT", PATH, settings)
            # It takes some seconds until the members of the group have their partitions.
            await asyncio.sleep(chance.uniform(0.5, 8))
            worker.kill()
            kills += 1
    await writing
    return kills


async def _mirrored_under_strikes(
    folder: Path, url: str, kafka: ApacheKafka, history: History, arguments: argparse.Namespace
) -> None:
    """Write more of the history while the target is killed again and again, and a worker lives."""
    chance = Random(arguments.seed)
    with our_worker(folder, url):
        for _ in range(arguments.strikes):
            async with asyncio.TaskGroup() as group:
                group.create_task(history.write(arguments.transactions // 4, 0.02))
                # From before its first flush to behind its last one.
                await asyncio.sleep(chance.uniform(0, 8))
                await asyncio.to_thread(kafka.kill)
                await asyncio.sleep(chance.choice((0, 3)))
                await asyncio.to_thread(kafka.start)


async def _whole(log: Log, alias: str, expected: Records) -> list[str]:
    """Wait until a mirror has as many records as the source, and return how they differ."""
    found: Records = {}
    try:
        async with asyncio.timeout(PATIENCE_S):
            while sum(map(len, found.values())) < sum(map(len, expected.values())):
                await asyncio.sleep(LOOK_S)
                try:
                    found = await read(log, alias)
                except StreamlogError:
                    # Its topics are not there yet.
                    continue
    except TimeoutError:
        pass
    return [
        f"{alias}.{at.topic}-{at.partition}: {len(found.get(at, ()))} records, not the"
        f" {len(records)} of the source, or in another order"
        for at, records in expected.items()
        if [*map(_shown, found.get(at, ()))] != [*map(_shown, records)]
    ]


def _shown(record: LogRecord) -> tuple[object, ...]:
    return record.timestamp_ms, record.key, record.value, tuple(record.headers)


async def _translations(
    java: JavaProgram,
    target: str,
    log: Log,
    expected: Records,
    positions: Mapping[str, Mapping[TopicPartition, int]],
) -> list[str]:
    """Compare the positions that RemoteClusterUtils gives; returns the differences."""
    lines = []
    for alias in (OURS, THEIRS):
        answer = await _asked(java, target, alias, positions)
        if alias not in answer["upstream"] or answer["hops"] != 1:
            # MirrorMaker 2 lacks them without a second flow, which would bring its heartbeats.
            print(f"{alias}: upstream {answer['upstream']}, hops {answer['hops']}")
            lines += ["eu is not among the upstream clusters"] if alias == OURS else []
        there = await read(log, alias)
        unknown = skipped = 0
        again: Counter[bool] = Counter()
        for group, offsets in positions.items():
            known = answer["groups"].get(group, {})
            for at, offset in offsets.items():
                unread = sum(record.offset >= offset for record in expected[at])
                translated = known.get(f"{alias}.{at.topic}-{at.partition}")
                if translated is None:
                    unknown += 1
                    continue
                left = sum(record.offset >= translated for record in there[at])
                again[group in RECENT] += max(left - unread, 0)
                skipped += max(unread - left, 0)
        told = (
            f"{alias}: {sum(map(len, positions.values()))} positions, {unknown} unknown, {skipped}"
            f" records skipped, {again[True]} read again of recent groups, {again[False]} of others"
        )
        print(told)
        if alias == OURS and (again.total() or unknown or skipped):
            lines.append(told)
    return lines


async def _asked(
    java: JavaProgram,
    target: str,
    alias: str,
    positions: Mapping[str, Mapping[TopicPartition, int]],
) -> dict[str, Any]:
    """Return the answer once it names all positions, or what there is after a while."""
    question = {"bootstrap": target, "alias": alias, "groups": list(GROUPS)}
    wanted = sum(map(len, positions.values()))
    for _ in range(20):
        answer = await asyncio.to_thread(java.ask, question)
        if sum(map(len, answer["groups"].values())) >= wanted:
            break
        await asyncio.sleep(1)
    return answer


def parsed(words: Sequence[str] | None = None) -> argparse.Namespace:
    """Return the arguments."""
    parser = argparse.ArgumentParser(prog="python -m tests.oracle.mirror_to_kafka")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--histories", type=int, default=1)
    parser.add_argument("--transactions", type=int, default=300)
    parser.add_argument("--kills", type=int, default=5)
    parser.add_argument("--strikes", type=int, default=3, help="kills of the target")
    return parser.parse_args(words)


if __name__ == "__main__":
    given = parsed()
    try:
        differences: list[str] = []
        for number in range(given.histories):
            given.seed += number > 0
            differences += asyncio.run(main(given))
    except Unavailable as reason:
        sys.exit(str(reason))
    print("\n".join(differences))
    sys.exit(bool(differences))
