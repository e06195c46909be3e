"""The equality contract: the driver, one worker, and three killed workers write equal records.

The committed records of every output topic (partition, key, value, timestamp, headers) are compared
as multisets. Workers are processes on a broker process; in the third run, they are killed
(SIGKILL), paused for longer than their session, stopped, and joined by others at random. All
randomness comes from the seed, except the machine's own.
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
"""By output of the program: its records with their counts."""

DEADLINE_S = 120
WORKERS_MAX = 4
PAUSE_S = 1.5 * member.SESSION_TIMEOUT_MS / 1000
text, whole = serde_for(str), serde_for(int)

_EXIT_CODE_LOCK = Lock()
"""Starting a process polls the others' exit codes; of two threads that poll one process at a time,
one gets 255 instead of the real code."""
context = multiprocessing.get_context("forkserver")
context.set_forkserver_preload(["tests.equality.member"])


class Unequal(AssertionError):
    """A run wrote other records than the driver."""


class Fleet:
    """The workers of one run."""

    def __init__(self, seed: int, run: str, log: str, directory: Path, **settings: str) -> None:
        self._arguments = (seed, run, log)
        self._directory = directory
        self._settings = settings
        self._processes: list[BaseProcess] = []
        self._paused: set[BaseProcess] = set()
        self._started = 0
        self.events: list[str] = []
        self.patience = 1

    def __len__(self) -> int:
        return len(self._processes)

    def start(self, **settings: str) -> BaseProcess:
        """Start a worker. Few state directories are used in turn, so that some have state."""
        directory = self._directory / f"state-{self._started % WORKERS_MAX}"
        directory.mkdir(parents=True, exist_ok=True)
        self._started += 1
        arguments = (*self._arguments, str(directory), {**self._settings, **settings})
        process = context.Process(target=member.work, args=arguments)
        with _EXIT_CODE_LOCK:
            process.start()
        self._processes.append(process)
        self._note("start", process)
        return process

    def end(self, at: int, number: signal.Signals) -> None:
        """Send SIGTERM or SIGKILL, and wait for the worker's end."""
        self.check()
        process = self._processes.pop(at)
        self._note(number.name, process)
        self._resume(process)
        os.kill(process.pid or 0, number)
        code = _exit_code(process, DEADLINE_S)
        if code is None:
            process.kill()
            raise Unequal(f"a worker did not stop: {self._output(process)}")
        # A worker without its handlers installed yet ends by the signal itself.
        if number is signal.SIGTERM and code not in {0, -signal.SIGTERM}:
            raise Unequal(f"a worker ended with {code}: {self._output(process)}")

    def pause(self, at: int) -> None:
        """Send SIGSTOP; `resume` or `end` continues the worker."""
        process = self._processes[at]
        self._note("SIGSTOP", process)
        os.kill(process.pid or 0, signal.SIGSTOP)
        self._paused.add(process)

    def resume(self) -> None:
        """Send SIGCONT to all paused workers."""
        for process in [*self._paused]:
            self._note("SIGCONT", process)
            self._resume(process)

    def until_killed(self, process: BaseProcess) -> None:
        """Wait until the worker has killed itself."""
        code = _exit_code(process, DEADLINE_S)
        if code != -signal.SIGKILL:
            raise Unequal(f"a worker ended with {code}: {self._output(process)}")
        self._processes.remove(process)

    def check(self) -> None:
        """Raise `Unequal` with a worker's output if the worker has ended by itself."""
        for process in self._processes:
            code = _exit_code(process)
            if code is not None:
                raise Unequal(f"a worker ended with {code}: {self._output(process)}")

    def close(self) -> None:
        """Kill all workers."""
        for process in self._processes:
            process.kill()
            _exit_code(process, DEADLINE_S)

    def _resume(self, process: BaseProcess) -> None:
        if process in self._paused:
            self._paused.remove(process)
            os.kill(process.pid or 0, signal.SIGCONT)

    def _note(self, event: str, process: BaseProcess) -> None:
        self.events.append(f"{monotonic() % 1000:.2f} {event} {process.pid}")

    def _output(self, process: BaseProcess) -> str:
        files = self._directory.glob(f"*/{process.pid}.log")
        return "\n".join(file.read_text()[-3_000:] for file in files)


def _exit_code(process: BaseProcess, timeout_s: float = 0) -> int | None:
    """Return the exit code, or None if the process has not ended in time."""
    wait([process.sentinel], timeout_s)
    with _EXIT_CODE_LOCK:
        return process.exitcode


def compare(seed: int, address: str, directory: Path, *, patience: int = 1) -> None:
    """Compare the three runs of the program of this seed.

    Args:
        seed: of the program.
        address: of the broker.
        directory: for state and logs.
        patience: the factor of sessions, pauses and deadlines: on a busy machine, a worker may
            lose its session again and again before it makes progress.

    Raises:
        Unequal: the runs differ; the message has the differences and the command to repeat them.
    """
    driver = build(seed, "driver")
    fed = history(seed, driver)
    expected = driven(driver, fed)
    log = f"kafka://{address}"
    asyncio.run(_fill(log, driver, fed))
    for run, scenario in (("one", _run_undisturbed), ("three", _run_with_failures)):
        program = build(seed, run)
        settings = {"session_ms": str(member.SESSION_TIMEOUT_MS * patience)}
        settings["pace_ms"] = "0" if run == "one" else "3"
        fleet = Fleet(seed, run, log, directory / run, **settings)
        fleet.patience = patience
        try:
            scenario(fleet, Random(seed), lambda p=program: _is_complete(log, p, expected))  # type: ignore[misc]
            while len(fleet):
                fleet.end(0, signal.SIGTERM)
            found = asyncio.run(_read(Log.open(log), program))
        finally:
            fleet.close()
        if found != expected:
            lines = [f"seed {seed}, run {run!r}: {', '.join(driver.operators)}"]
            lines += [*_difference(expected, found), "", driver.app.topology().describe(), ""]
            lines += [*fleet.events, f"again: python -m tests.equality --seed {seed} --runs 1"]
            raise Unequal("\n".join(lines))
    shutil.rmtree(directory, ignore_errors=True)


def compare_killed_in_commits(seed: int, log: str, directory: Path, number: int) -> None:
    """Kill a worker at each step of its commits in turn; then let it finish.

    Args:
        seed: of the program.
        log: of the broker; an embedded broker dies with each worker.
        directory: for state and logs.
        number: of the commit in which each worker is killed.

    Raises:
        Unequal: the final output is not the driver's.
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
        _until(fleet, lambda: _is_complete(log, program, expected))
        fleet.end(0, signal.SIGTERM)
        found = asyncio.run(_read(Log.open(log), program))
    finally:
        fleet.close()
    if found != expected:
        lines = [f"seed {seed}, killed at {killed}: {', '.join(driver.operators)}"]
        lines += [*_difference(expected, found), "", driver.app.topology().describe()]
        raise Unequal("\n".join([*lines, *fleet.events]))


def driven(program: Program, fed: list[Fed]) -> Results:
    """Return the driver's output. It gets all records before it starts, as workers do."""
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


def _run_undisturbed(fleet: Fleet, _rng: Random, done: Callable[[], bool]) -> None:
    fleet.start()
    _until(fleet, done)


def _run_with_failures(fleet: Fleet, rng: Random, done: Callable[[], bool]) -> None:
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
    """Wait until the output is as large as the driver's, or until the deadline."""
    deadline = monotonic() + DEADLINE_S * fleet.patience
    while not done() and monotonic() < deadline:
        fleet.check()
        sleep(0.1)


def _is_complete(log: str, program: Program, expected: Results) -> bool:
    attached = Log.attach(log, timeout_ms=DEADLINE_S * 1000)
    found = asyncio.run(_read(attached, program))
    return all(found[at].total() >= rows.total() for at, rows in expected.items())


async def _fill(url: str, program: Program, fed: list[Fed]) -> None:
    async with Log.open(url) as log:
        admin = log.admin()
        # The driver's time stops after the last record, so the workers' must stop, too.
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
