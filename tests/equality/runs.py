"""The equality contract: the driver, one worker and three that are killed write the same.

What is compared are the records of every output topic (partition, key, value, timestamp,
headers) as multisets, read committed. Workers are processes on a broker process; in the third
run they are killed (SIGKILL), paused for longer than their session, stopped and joined by others at
random. Everything random comes from the seed, except what the machine adds.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import shutil
import signal
from collections import Counter
from collections.abc import Callable
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from random import Random
from threading import Lock
from time import monotonic, sleep

from streamlog.client.admin import NewTopic
from streamlog.log import Log
from streamlog.record import TopicPartition
from streamlog.serdes import serde_for
from tests.equality import member
from tests.equality.programs import Fed, Program, build, history
from tests.worker.commit_steps import STEPS
from tests.worker.processes import still

Rows = Counter[tuple[object, ...]]
Results = dict[int, Rows]
"""Per output of the program: its records and how often each is there."""

DEADLINE_S = 120
WORKERS_MAX = 4
PAUSE_S = 1.5 * member.SESSION_TIMEOUT_MS / 1000
text, whole = serde_for(str), serde_for(int)

_LOOKING = Lock()
"""Who starts a process looks whether others have ended, and of two threads that look at the same
one at once one is told 255, whatever it was."""
context = multiprocessing.get_context("forkserver")
context.set_forkserver_preload(["tests.equality.member"])


class Unequal(AssertionError):
    """A run wrote something else than the driver."""


class Fleet:
    """The workers of one run."""

    def __init__(self, seed: int, run: str, log: str, directory: Path, **settings: str) -> None:
        self._arguments = (seed, run, log)
        self._directory = directory
        self._settings = settings
        self._processes: list[BaseProcess] = []
        self._paused: set[BaseProcess] = set()
        self._started = 0
        self.story: list[str] = []
        self.patience = 1

    def __len__(self) -> int:
        return len(self._processes)

    def start(self, **settings: str) -> BaseProcess:
        """One more worker. A few state directories are used in turn: some find state of theirs."""
        directory = self._directory / f"state-{self._started % WORKERS_MAX}"
        directory.mkdir(parents=True, exist_ok=True)
        self._started += 1
        arguments = (*self._arguments, str(directory), {**self._settings, **settings})
        process = context.Process(target=member.work, args=arguments)
        with _LOOKING:
            process.start()
        self._processes.append(process)
        self._tell("start", process)
        return process

    def end(self, at: int, number: signal.Signals) -> None:
        """SIGTERM or SIGKILL, and wait for its end."""
        self.check()
        process = self._processes.pop(at)
        self._tell(number.name, process)
        self._resume(process)
        os.kill(process.pid or 0, number)
        code = _exit_code(process, DEADLINE_S)
        if code is None:
            process.kill()
            raise Unequal(f"a worker did not stop: {self._output(process)}")
        # One that has not come to its handlers yet ends by the signal itself.
        if number is signal.SIGTERM and code not in {0, -signal.SIGTERM}:
            raise Unequal(f"a worker ended with {code}: {self._output(process)}")

    def pause(self, at: int) -> None:
        """SIGSTOP; it goes on before it is told anything else, or by `resume`."""
        process = self._processes[at]
        self._tell("SIGSTOP", process)
        os.kill(process.pid or 0, signal.SIGSTOP)
        self._paused.add(process)

    def resume(self) -> None:
        """SIGCONT to all."""
        for process in [*self._paused]:
            self._tell("SIGCONT", process)
            self._resume(process)

    def until_killed(self, process: BaseProcess) -> None:
        """Wait until it has ended itself."""
        code = _exit_code(process, DEADLINE_S)
        if code != -signal.SIGKILL:
            raise Unequal(f"a worker ended with {code}: {self._output(process)}")
        self._processes.remove(process)

    def check(self) -> None:
        """Raise `Unequal` with its output if a worker has ended by itself."""
        for process in self._processes:
            code = _exit_code(process)
            if code is not None:
                raise Unequal(f"a worker ended with {code}: {self._output(process)}")

    def close(self) -> None:
        """Nothing is left behind."""
        for process in self._processes:
            process.kill()
            _exit_code(process, DEADLINE_S)

    def _resume(self, process: BaseProcess) -> None:
        if process in self._paused:
            self._paused.remove(process)
            os.kill(process.pid or 0, signal.SIGCONT)

    def _tell(self, what: str, process: BaseProcess) -> None:
        self.story.append(f"{monotonic() % 1000:.2f} {what} {process.pid}")

    def _output(self, process: BaseProcess) -> str:
        files = self._directory.glob(f"*/{process.pid}.log")
        return "\n".join(file.read_text()[-3_000:] for file in files)


def _exit_code(process: BaseProcess, timeout_s: float = 0) -> int | None:
    """None if it has not ended by then."""
    wait([process.sentinel], timeout_s)
    with _LOOKING:
        return process.exitcode


def compare(seed: int, address: str, directory: Path, *, patience: int = 1) -> None:
    """All three ways of running the program of this number.

    Args:
        seed: of the program.
        address: of the broker.
        directory: for state and logs.
        patience: so many times longer are sessions, pauses and deadlines: on a busy machine a
            worker is given up again and again before it has done anything.

    Raises:
        Unequal: they differ; the message says how, with what to do to see it again.
    """
    driver = build(seed, "driver")
    fed = history(seed, driver)
    expected = driven(driver, fed)
    log = f"kafka://{address}"
    asyncio.run(_fill(log, driver, fed))
    for run, play in (("one", _calm), ("three", _chaos)):
        program = build(seed, run)
        settings = {"session_ms": str(member.SESSION_TIMEOUT_MS * patience)}
        settings["pace_ms"] = "0" if run == "one" else "3"
        fleet = Fleet(seed, run, log, directory / run, **settings)
        fleet.patience = patience
        try:
            play(fleet, Random(seed), lambda p=program: _holds(log, p, expected))  # type: ignore[misc]
            while len(fleet):
                fleet.end(0, signal.SIGTERM)
            found = asyncio.run(_read(Log.open(log), program))
        finally:
            fleet.close()
        if found != expected:
            lines = [f"seed {seed}, run {run!r}: {', '.join(driver.told)}"]
            lines += [*_difference(expected, found), "", driver.app.topology().describe(), ""]
            lines += [*fleet.story, f"again: python -m tests.equality --seed {seed} --runs 1"]
            raise Unequal("\n".join(lines))
    shutil.rmtree(directory, ignore_errors=True)


def compare_killed_in_commits(seed: int, log: str, directory: Path, number: int) -> None:
    """A worker is killed at every step of its commits, one after the other; then it goes on.

    Args:
        seed: of the program.
        log: of the broker; an embedded one dies with each worker.
        directory: for state and logs.
        number: of the commit in which each one is killed.

    Raises:
        Unequal: what is there in the end is not what the driver writes.
    """
    run = f"steps{number}"
    driver = build(seed, "driver")
    fed = history(seed, driver)
    expected = driven(driver, fed)
    asyncio.run(_fill(log, driver, fed))
    program = build(seed, run)
    settings = {"pace_ms": "10", "instance_id": "one", "commit_interval": "50ms"}
    fleet = Fleet(seed, run, log, directory / run, **settings)
    killed: list[str] = []

    try:
        for step in STEPS:
            fleet.until_killed(fleet.start(die_at=f"{step}:{number}"))
            killed.append(step)
        fleet.start()
        _until(fleet, lambda: _holds(log, program, expected))
        fleet.end(0, signal.SIGTERM)
        found = asyncio.run(_read(Log.open(log), program))
    finally:
        fleet.close()
    if found != expected:
        lines = [f"seed {seed}, killed at {killed}: {', '.join(driver.told)}"]
        lines += [*_difference(expected, found), "", driver.app.topology().describe()]
        raise Unequal("\n".join([*lines, *fleet.story]))


def driven(program: Program, fed: list[Fed]) -> Results:
    """What the driver writes. It is given everything before it starts, as the workers are."""
    test = program.app.test()
    for each in fed:
        test.topic(each.topic).append(
            None if each.value is None else whole.dumps(each.value),
            key=None if each.key is None else text.dumps(each.key),
            timestamp_ms=each.timestamp_ms,
            partition=each.partition,
        )
    with test:
        return {
            at: Counter(
                (partition, r.key, r.value, r.timestamp_ms, tuple(r.headers))
                for partition, r in test.topic(topic.name).arrivals
            )
            for at, topic in enumerate(program.outputs)
        }


def _calm(fleet: Fleet, _rng: Random, done: Callable[[], bool]) -> None:
    fleet.start()
    _until(fleet, done)


def _chaos(fleet: Fleet, rng: Random, done: Callable[[], bool]) -> None:
    for _ in range(3):
        fleet.start()
    for _ in range(rng.randint(2, 5)):
        sleep(rng.uniform(0.1, 1.2))
        fleet.check()
        at = rng.randrange(len(fleet))
        match rng.choice(["kill", "kill", "kill", "pause", "leave", "join"]):
            case "kill":
                fleet.end(at, signal.SIGKILL)
                if rng.random() < 0.7 or not len(fleet):
                    fleet.start()
            case "pause":
                fleet.pause(at)
                sleep(rng.choice([0.2, PAUSE_S * fleet.patience]))
                fleet.resume()
            case "leave" if len(fleet) > 1:
                fleet.end(at, signal.SIGTERM)
            case _ if len(fleet) < WORKERS_MAX:
                fleet.start()
            case _:
                pass
    _until(fleet, done)


def _until(fleet: Fleet, done: Callable[[], bool]) -> None:
    """Wait until there is as much as the driver wrote. Is it too little, the caller compares."""
    deadline = monotonic() + DEADLINE_S * fleet.patience
    while not done() and monotonic() < deadline:
        fleet.check()
        sleep(0.1)


def _holds(log: str, program: Program, expected: Results) -> bool:
    attached = Log.attach(log, timeout_ms=DEADLINE_S * 1000)
    found = asyncio.run(_read(attached, program))
    return all(found[at].total() >= rows.total() for at, rows in expected.items())


async def _fill(url: str, program: Program, fed: list[Fed]) -> None:
    async with Log.open(url) as log:
        admin = log.admin()
        # The driver's time stands still when all is read, so that of the workers has to.
        configs = await still(log)
        topics = [
            NewTopic(name, partitions, configs=configs)
            for name, partitions in program.inputs.items()
        ]
        await admin.create_topics(topics)
        async with log.producer() as producer:
            for each in fed:
                await producer.send(
                    each.topic,
                    None if each.value is None else whole.dumps(each.value),
                    key=None if each.key is None else text.dumps(each.key),
                    timestamp_ms=each.timestamp_ms,
                    partition=each.partition,
                )
            await producer.flush()


async def _read(opening: Log, program: Program) -> Results:
    results: Results = {}
    async with opening as log:
        names = {topic.name for topic in program.outputs}
        known = {each.name: each.partitions for each in await log.admin().find_topics(names)}
        for at, topic in enumerate(program.outputs):
            parts = [TopicPartition(topic.name, n) for n in range(known.get(topic.name, 0))]
            results[at] = await _records(log, parts)
    return results


async def _records(log: Log, parts: list[TopicPartition]) -> Rows:
    rows: Rows = Counter()
    if not parts:
        return rows
    settings = {"isolation_level": "read_committed", "auto_offset_reset": "earliest"}
    async with asyncio.timeout(DEADLINE_S), log.consumer(**settings) as consumer:  # type: ignore[arg-type]
        consumer.assign(parts)
        ends = await consumer.end_offsets(parts)
        left = {part for part in parts if ends[part]}
        while left:
            for part, records in (await consumer.poll(timeout_ms=100)).items():
                for r in records:
                    rows[part.partition, r.key, r.value, r.timestamp_ms, tuple(r.headers)] += 1
            positions = consumer.positions()
            left = {part for part in left if positions.get(part, 0) < ends[part]}
    return rows


def _difference(expected: Results, found: Results) -> list[str]:
    lines = []
    for at, rows in expected.items():
        missing, more = rows - found[at], found[at] - rows
        lines.append(
            f"output {at}: {rows.total()} records, "
            f"{missing.total()} missing, {more.total()} too many"
        )
        lines += [f"  missing {row}" for row in list(missing)[:5]]
        lines += [f"  too many {row}" for row in list(more)[:5]]
    return lines
