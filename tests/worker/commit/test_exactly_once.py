"""Every row exactly once: a worker is killed at each step of its commits, repeatedly."""

from __future__ import annotations

import asyncio
import shutil
import sys
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest

from streamlog.client.admin import NewTopic
from streamlog.client.producer import Producer
from streamlog.clock import SystemClock
from streamlog.errors import LogDirectoryError
from streamlog.log import Log
from streamlog.record import TopicPartition
from streamlog.records.batch import LogRecord
from streamlog.records.packed_records import PackedRecords
from streamlog.records.record_columns import FieldColumns
from streamlog.tables.local_disk.rocksdb_store import RocksBudget
from streamlog.tables.local_disk.task_directory import WorkerIdentity
from streamlog.worker.commit.commit import ignore_step
from streamlog.worker.commit.exactly_once import CommitAborted, Transactor
from streamlog.worker.state.restore import Restorer
from tests.worker.commit_steps import IS_THOROUGH, write_program
from tests.worker.commit_steps import STEPS as ALL_STEPS
from tests.worker.processes import STREAMLOG, Process, attached, read_until, read_whole, running

STEPS = (
    ALL_STEPS
    if IS_THOROUGH
    else ("checkpointed", "changelogs written", "offsets sent", "committed")
)
WORDS = ("ada", "bob", "cy", "dee", "eve")
PARTITIONS = 2

# A static member: its replacement takes over at once, not after the session.
COUNTING = """
import sys

from mortal import run
from streamlog import App
from streamlog.records.builder import HEADER_BYTES
from streamlog.worker import commit

# Each change is a separate batch, so an interrupted checkpoint may be written in part.
commit.PACK_RECORDS, commit.CHECKPOINT_PACK_BYTES = 1, HEADER_BYTES + 1

app = App("counting", state_dir="./state", commit_interval="20ms")
words = app.topic("words", key=str, value=str, partitions=2)
lines = app.topic("lines", key=str, value=str, partitions=2)
counts = app.topic("counts", key=str, value=str, partitions=2)
stream = app.stream(words)
stream.map_values(lambda line: line.upper()).to(lines)
(
    stream.group_by(lambda _, line: line.split()[0], name="by-word")
    .count(name="n")
    .changes()
    .map(lambda word, n: (word, f"{word} {n}"))
    .to(counts)
)

run(app, sys.argv[1], sys.argv[2], int(sys.argv[3]), "one")
"""


async def say(producer: Producer, lines: Sequence[str]) -> None:
    for number, line in enumerate(lines):
        await producer.send("words", line.encode(), partition=number % PARTITIONS)
    await producer.flush()


def test_a_commit_counts_once_wherever_it_is_interrupted(tmp_path: Path) -> None:
    """The topics hold each line and each count exactly once, in order."""
    write_program(tmp_path, "counting.py", COUNTING)
    portions = [
        [f"{WORDS[number % len(WORDS)]} {portion}-{number}" for number in range(40)]
        for portion in range(len(STEPS) + 1)
    ]
    lines = [line for portion in portions for line in portion]
    totals = Counter(line.split()[0] for line in lines)
    with ExitStack() as stack:
        listen = ("broker", "--data", "log", "--listen", "127.0.0.1:0")
        broker = stack.enter_context(running(*STREAMLOG, *listen, cwd=tmp_path))
        url = "kafka://" + broker.line(r"listening on (\S+)").group(1)

        def worker(step: str, times: int) -> Process:
            command = (sys.executable, "counting.py", url, step, str(times))
            return stack.enter_context(running(*command, cwd=tmp_path))

        async def story(log: Log) -> tuple[list[str], list[str]]:
            last = worker("none", 0)
            await asyncio.to_thread(last.line, "^up$")
            assert await asyncio.to_thread(last.stop) == 0
            async with log.producer() as producer:
                for number, step in enumerate(STEPS):
                    await say(producer, portions[number])
                    # At the first commit, the second, the third.
                    assert await asyncio.to_thread(worker(step, number % 2).wait) == -9
                last = worker("none", 0)
                await say(producer, portions[-1])
            found = [
                await read_until(log, topic, lambda records: len(records) >= len(lines))
                for topic in ("lines", "counts")
            ]
            # A repeated record would precede the ones committed after it.
            assert await asyncio.to_thread(last.stop) == 0
            written, counted = [[(r.value or b"").decode() for _, r in each] for each in found]
            return written, counted

        written, counted = attached(url, story)
    assert Counter(written) == Counter(line.upper() for line in lines)
    for word, total in totals.items():
        assert [line for line in counted if line.split()[0] == word] == [
            f"{word} {number}" for number in range(1, total + 1)
        ]


def test_a_worker_that_opens_its_tasks_late_disturbs_no_owner(tmp_path: Path) -> None:
    """A worker suspended while it opens its tasks resumes after others have taken over.

    Its fences follow those of the owner, whose commits still count.
    """
    write_program(tmp_path, "counting.py", COUNTING)
    portions = [
        [f"{WORDS[number % len(WORDS)]} {portion}-{number}" for number in range(20)]
        for portion in range(3)
    ]
    lines = [line for portion in portions for line in portion]
    totals = Counter(line.split()[0] for line in lines)

    async def open_late(log: Log) -> None:
        async with log.producer(linger_ms=0) as producer:
            for number in range(PARTITIONS):
                restorer = Restorer(
                    log,
                    producer,
                    changelog=TopicPartition("counting-1-changelog", number),
                    path=str(tmp_path / f"late-{number}"),
                    budget=RocksBudget(),
                    clock=SystemClock(),
                )
                state = await restorer.run()
                state.front.close()

    async def counted(log: Log, count: int) -> None:
        await read_until(log, "counts", lambda records: len(records) >= count)

    with ExitStack() as stack:
        listen = ("broker", "--data", "log", "--listen", "127.0.0.1:0")
        broker = stack.enter_context(running(*STREAMLOG, *listen, cwd=tmp_path))
        url = "kafka://" + broker.line(r"listening on (\S+)").group(1)

        def worker() -> Process:
            command = (sys.executable, "counting.py", url, "none", "0")
            return stack.enter_context(running(*command, cwd=tmp_path))

        async def story(log: Log) -> list[str]:
            owner = worker()
            await asyncio.to_thread(owner.line, "^up$")
            async with log.producer() as producer:
                await say(producer, portions[0])
                await counted(log, 20)
                await open_late(log)
                await say(producer, portions[1])
                await counted(log, 40)
                assert await asyncio.to_thread(owner.stop) == 0
                # The next worker has only the state in the changelog.
                shutil.rmtree(tmp_path / "state")
                owner = worker()
                await say(producer, portions[2])
                await counted(log, 60)
                assert await asyncio.to_thread(owner.stop) == 0
            return [(r.value or b"").decode() for _, r in await read_whole(log, "counts")]

        found = attached(url, story)
    for word, total in totals.items():
        assert [line for line in found if line.split()[0] == word] == [
            f"{word} {number}" for number in range(1, total + 1)
        ]


def test_a_transaction_without_offsets_is_not_committed(tmp_path: Path) -> None:
    """The offsets let the group coordinator check that the worker is still a member."""

    async def main() -> list[LogRecord]:
        async with (
            Log.open(f"embedded:{tmp_path}/log", listen=False) as log,
            log.consumer(group_id="counting") as member,
            Transactor(log, "counting-1", on_step=ignore_step) as transactor,
        ):
            await log.admin().create_topics([NewTopic("counts", 1)])
            pack = PackedRecords()
            pack.extend(FieldColumns.alike(0, [b"ada"], [b"1"], ()))
            topic_partition = TopicPartition("counts", 0)
            with pytest.raises(CommitAborted, match="no offsets"):
                await transactor.write({topic_partition: [pack]}, [], {}, consumer=member)
            async with log.consumer(auto_offset_reset="earliest") as reader:
                reader.assign([topic_partition])
                return (await reader.poll(timeout_ms=100)).get(topic_partition, [])

    assert asyncio.run(main()) == []


def test_each_worker_on_a_state_directory_keeps_its_own_transactional_id(
    tmp_path: Path,
) -> None:
    def identity() -> WorkerIdentity:
        return WorkerIdentity("app", str(tmp_path / "state"))

    with identity() as first, identity() as second:
        names = [first.transactional_id, second.transactional_id]
    assert len({*names}) == len(names)
    assert all(name.startswith("app-") for name in names)
    with identity() as first, identity() as second, identity() as third:
        assert [first.transactional_id, second.transactional_id] == names
        assert third.transactional_id not in names
    # A partly written id is replaced.
    (tmp_path / "state/workers/0.name").write_bytes(b"abc")
    with identity() as first:
        name = first.transactional_id
        assert name not in names
    with identity() as first:
        assert first.transactional_id == name


def test_a_state_directory_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "state").touch()
    with (
        pytest.raises(LogDirectoryError, match="can't be used"),
        WorkerIdentity("app", str(tmp_path / "state")),
    ):
        pass
