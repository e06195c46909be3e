"""J1 over Avro from log to log: workers by registry and by hand, in turns on one broker.

Both workers run all the time. In turns, one of them is stopped by SIGSTOP while its events are
loaded, let go by SIGCONT, and watched until its group has committed them all; meanwhile the other
one is idle. CPU time is that of the worker process alone, since wall time depends on what else the
machine does. Every row is compared with plain Python's.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
from collections import Counter, deque
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from statistics import median
from threading import Thread
from time import perf_counter

from benchmarks.engine.events import amount_of, ts_of, user_of
from benchmarks.engine.jobs import Event
from benchmarks.harness import Process, Reading, cpu_of, running
from benchmarks.registered_jobs import VARIANTS, job_of
from streamlog import App
from streamlog.client.admin import NewTopic
from streamlog.log import Log
from streamlog.record import TopicPartition
from streamlog.registry_client import RegistryClient, RegistrySettings
from streamlog.serdes.registered import RegistrySerde

ROUNDS = 3
ROUND_RECORDS_MAX = 200_000
CHUNK = 10_000
LOOK_S = 0.02
STALL_TIMEOUT_S = 120
RATE_LEAST = 0.6
"""The least rate by registry, as a share of the rate by hand."""
Cost = tuple[float, float]
"""Of one round: records per second of wall time, and of the worker's CPU time."""


async def figures(directory: Path, records: int) -> AsyncIterator[Reading]:
    """Yield the rates of both workers, and their ratio."""
    count = min(records, ROUND_RECORDS_MAX)
    with _broker(directory / "log") as (url, registry):
        async with Log.open(url) as log:
            costs = await _in_turns(directory, log, (url, registry), count)
    rates = {name: [median(each) for each in zip(*costs[name], strict=True)] for name in VARIANTS}
    for name, (wall, cpu) in rates.items():
        title = f"J1 from log to log, Avro by {name}"
        yield Reading(title, wall, "records/s", digits=0)
        yield Reading(f"{title}, the worker", cpu, "records/s of CPU", digits=0)
    share = rates["registry"][1] / rates["hand"][1]
    name = "J1 from log to log, Avro: by registry over by hand"
    yield Reading(name, share, "", least=RATE_LEAST, digits=2)


async def _in_turns(
    directory: Path, log: Log, urls: tuple[str, str], count: int
) -> dict[str, list[Cost]]:
    topics = [NewTopic(f"{kind}-{name}", 1) for kind in ("events", "output") for name in VARIANTS]
    await log.admin().create_topics(topics)
    apps = {name: job_of(name, log=urls[0], registry=urls[1], state="") for name in VARIANTS}
    # The subject of a topic belongs to those that write it.
    serde = apps["registry"].topics["events-registry"].value
    if isinstance(serde, RegistrySerde):
        RegistryClient(RegistrySettings.of(urls[1])).register(serde.subject, serde.schema)
    costs: dict[str, list[Cost]] = {name: [] for name in VARIANTS}
    with _worker(directory, urls, "hand") as hand, _worker(directory, urls, "registry") as other:
        contestants = [
            Contestant(log, apps[name], process)
            for name, process in zip(VARIANTS, (hand, other), strict=True)
        ]
        for each in contestants:
            await each.warm_up()
        for _ in range(ROUNDS):
            for each in contestants:
                costs[each.name].append(await each.round(count))
        for each in contestants:
            await each.check()
    return costs


class Contestant:
    """One worker with its topics."""

    def __init__(self, log: Log, app: App, worker: Process) -> None:
        self.name = app.id.removeprefix("by-")
        self._log = log
        self._app = app
        self._pid = worker.popen.pid
        self._entry = TopicPartition(f"events-{self.name}", 0)
        self._output = TopicPartition(f"output-{self.name}", 0)
        self._sent = 0

    async def warm_up(self) -> None:
        """Wait until the worker has registered its schemas and committed a record."""
        await self._until_committed(0)
        await self._load(1)
        await self._until_committed(1)

    async def round(self, count: int) -> Cost:
        """Let the worker do that many events."""
        os.kill(self._pid, signal.SIGSTOP)
        try:
            await self._load(count)
        finally:
            cpu_s, began_s = cpu_of(self._pid), perf_counter()
            os.kill(self._pid, signal.SIGCONT)
        await self._until_committed(self._sent)
        return count / (perf_counter() - began_s), count / (cpu_of(self._pid) - cpu_s)

    async def check(self) -> None:
        """Compare the rows.

        Raises:
            AssertionError: one is wrong, missing, or there twice.
        """
        loads = self._app.topics[self._output.topic].value.loads
        rows = [loads(each.value or b"") for each in await self._log.read_range(self._output)]
        found = Counter((row.user, row.amount, row.ts) for row in rows)
        wanted = Counter(
            (event.user, 2 * event.amount, event.ts)
            for event in map(_event, range(self._sent))
            if event.amount % 2 == 0
        )
        if found != wanted:
            raise AssertionError(f"the rows by {self.name} are not plain Python's")

    async def _load(self, count: int) -> None:
        dumps = self._app.topics[self._entry.topic].value.dumps
        numbers = range(self._sent, self._sent + count)
        events = [
            (event.ts, event.user.encode(), dumps(event), ()) for event in map(_event, numbers)
        ]
        async with self._log.producer() as producer:
            for start in range(0, count, CHUNK):
                await producer.send_batch(self._entry.topic, 0, events[start : start + CHUNK])
            await producer.flush()
        self._sent += count

    async def _until_committed(self, offset: int) -> None:
        began_s = perf_counter()
        while perf_counter() - began_s < STALL_TIMEOUT_S:
            # An empty topic has no commit: the group with its member is what there is to wait for.
            found = await self._log.admin().group_offsets(self._app.id, [self._entry])
            if found.get(self._entry, 0) >= offset and (offset or await self._is_member()):
                return
            await asyncio.sleep(LOOK_S)
        raise TimeoutError(f"the worker by {self.name} did not commit all there is")

    async def _is_member(self) -> bool:
        admin = self._log.admin()
        # A group that does not exist can't be described.
        known = [each.group_id for each in await admin.list_groups()]
        groups = await admin.describe_groups([each for each in known if each == self._app.id])
        return any(member.assignment for group in groups for member in group.members)


def _event(number: int) -> Event:
    return Event(f"user-{user_of(number):05d}", "an item", amount_of(number), ts_of(number))


def _worker(directory: Path, urls: tuple[str, str], name: str) -> AbstractContextManager[Process]:
    return running(
        "streamlog",
        "-A",
        "benchmarks.registered_jobs",
        "worker",
        REGISTERED_BY=name,
        REGISTERED_LOG=urls[0],
        REGISTERED_URL=urls[1],
        REGISTERED_STATE=str(directory / name),
    )


@contextmanager
def _broker(directory: Path) -> Iterator[tuple[str, str]]:
    """Run a broker with a registry; yields the URLs of both."""
    options = ("--listen", "127.0.0.1:0", "--registry", "127.0.0.1:0", "--flush", "os")
    with running("streamlog", "broker", "--data", str(directory), *options) as process:
        said = ""
        for line in process.popen.stdout or ():
            said += line
            registry = re.search(r"http://127\.0\.0\.1:\d+", said)
            if listening := re.search(r"listening on (127\.0\.0\.1:\d+)", said):
                # What it says from now on is read, or it would wait for that in the end.
                Thread(target=deque, args=(process.popen.stdout, 0), daemon=True).start()
                yield f"kafka://{listening[1]}", registry[0] if registry else ""
                return
        raise RuntimeError(f"the broker did not start:\n{said}")
