"""Services: what running workers leave in the topics, for the stores and the workers of the others.

One group and its three topics go from our worker to Apache's stores, back to ours, to Apache's own
worker, and to ours again. A source counts on all the time: its topic has each number once.
"""

from __future__ import annotations

import asyncio
import http.client
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple

import msgspec

from streamlog.connect_service.herder_shell import ServiceSettings
from streamlog.log import Log
from streamlog.record import TopicPartition
from tests.oracle.connect_rest.answers import WAIT_S, Worker, differences
from tests.oracle.connect_rest.apache_worker import apache_worker
from tests.oracle.connect_rest.our_worker import our_worker
from tests.oracle.connect_rest.requests import Ask, Step, Wait
from tests.oracle.connect_storage.account import canonical
from tests.oracle.connect_storage.java_stores import JavaStores, store_settings

GROUP: Final = "taken-over"
TOPICS: Final = {"config": "taken-configs", "status": "taken-status", "offset": "taken-offsets"}
SETTINGS: Final = ServiceSettings(
    group_id=GROUP,
    configs_topic=TOPICS["config"],
    offsets_topic=TOPICS["offset"],
    status_topic=TOPICS["status"],
    offsets_partitions=3,
    status_partitions=2,
    commit_ms=200,
)
PARTS: Final = 3
NUMBERS: Final = {"connector.class": "Numbers", "parts": str(PARTS), "tasks.max": "2"}
RUNS: Final = ("n", "a-1")
HELD: Final = {"held": "PAUSED", "over": "STOPPED"}
NAMES: Final = (*RUNS, *HELD, "gone", "java")
PARTS_READ: Final = ("connectors", "tasks", "targets", "statuses", "topics", "offsets")
JAVA_OFFSET: Final = 7
"""Where the connector of Apache's stores has read its first part to."""


class Read(NamedTuple):
    """What is waited for: the connector's offsets say that each part was read to a count."""

    name: str
    count: int


def services(java: JavaStores, bootstrap: str) -> list[str]:
    """Hand the topics on from one to the next; returns the differences."""
    settings = store_settings(bootstrap, TOPICS, group=GROUP)
    with our_worker(bootstrap, SETTINGS) as url:
        worker = Worker(url)
        _run(worker, _life())
        java.open(settings)
        read = java.state(NAMES)
        found = [] if read["session_key"] else ["Apache's stores: there is no session key"]
        found += _unlike(worker, {each: read[each] for each in PARTS_READ}, "Apache's stores")
    for asked in _changes_of_java():
        java.do(asked)
    left = java.state(NAMES)
    with our_worker(bootstrap, SETTINGS) as url:
        worker = Worker(url)
        _run(worker, [Wait("n", "PAUSED", 2), Wait("held", "RUNNING", 2), *_counted("java", 20)])
        found += _unlike(
            worker, {each: left[each] for each in ("connectors", "targets")}, "our worker"
        )
        _run(worker, [Ask("PUT", "/connectors/n/resume"), *_counted("n", 40)])
    with apache_worker(bootstrap, {**settings, "offset.flush.interval.ms": "200"}) as url:
        worker = Worker(url)
        _run(worker, [*_counted("n", 60), *_counted("java", 60), Wait("over", "STOPPED", 0)])
    with our_worker(bootstrap, SETTINGS) as url:
        worker = Worker(url)
        _run(worker, [*_counted("n", 80), *_counted("java", 80), Wait("over", "STOPPED", 0)])
    found += [
        f"numbers of {name}: {each}" for name in ("n", "java") for each in _wrong(name, bootstrap)
    ]
    return found


def _run(worker: Worker, steps: Iterable[Step | Read]) -> None:
    """Take steps; a request that is refused raises an error."""
    for step in steps:
        if isinstance(step, Read):
            _read(worker, step)
            continue
        for answer in worker.run([step]):
            if answer.status >= http.client.BAD_REQUEST:
                raise RuntimeError(f"{step}: {answer.status} {answer.body}")


def _read(worker: Worker, step: Read) -> None:
    deadline = time.monotonic() + WAIT_S
    while True:
        found = _offsets_of(worker, step.name)
        if [each["at"] for each in found.values()] == [step.count] * PARTS:
            return
        if time.monotonic() > deadline:
            raise TimeoutError(f"{step.name} is not read to {step.count}: {found}")
        time.sleep(0.1)


def _config(name: str, count: int) -> dict[str, str]:
    return {**NUMBERS, "name": name, "topic": f"numbers-{name}", "count": str(count)}


def _life() -> Iterator[Step | Read]:
    """Yield what is done with our worker: connectors in each state, and one that was deleted."""
    for name in (*RUNS, *HELD, "gone"):
        yield Ask("PUT", f"/connectors/{name}/config", _config(name, 20))
        yield Wait(name, "RUNNING", 2)
    yield Ask("PUT", "/connectors/held/pause")
    yield Ask("PUT", "/connectors/over/stop")
    yield Ask("DELETE", "/connectors/gone")
    yield Ask("POST", "/connectors/n/restart?includeTasks=true")
    yield Wait("held", "PAUSED", 2)
    yield Wait("over", "STOPPED", 0)
    yield Wait("gone", "GONE")
    for name in RUNS:
        yield from _counted(name, 20)


def _counted(name: str, count: int) -> Iterator[Step | Read]:
    """Yield the steps that let a connector count on, and wait until it has."""
    yield Ask("PUT", f"/connectors/{name}/config", _config(name, count))
    yield Wait(name, "RUNNING", 2)
    yield Read(name, count)


def _changes_of_java() -> Iterator[dict[str, Any]]:
    """Yield what Apache's stores change while no worker runs."""
    yield {"call": "connector", "name": "java", "config": _config("java", 20), "state": "STARTED"}
    tasks = [{"task.class": "NumbersTask", "first": f"{number}"} for number in range(2)]
    yield {"call": "tasks", "name": "java", "tasks": tasks}
    offset = {"at": JAVA_OFFSET}
    yield {"call": "offset", "name": "java", "part": {"part": 0}, "offset": offset}
    yield {"call": "target", "name": "n", "state": "PAUSED"}
    yield {"call": "target", "name": "held", "state": "STARTED"}
    yield {"call": "delete", "name": "a-1"}
    yield {"call": "restart", "name": "n", "include_tasks": True, "only_failed": False}


def _unlike(worker: Worker, read: Mapping[str, Any], reader: str) -> Iterator[str]:
    """Yield where a worker's answers differ from what stores have read, for each part of that."""
    names: list[str] = worker.ask(Ask("GET", "/connectors")).body
    said = [(name, _said(worker, name)) for name in names]
    if sorted(read["connectors"]) != sorted(names):
        yield f"{reader}: connectors {sorted(read['connectors'])}, the worker has {sorted(names)}"
    for part, values in read.items():
        for name, answers in said:
            known = _PLAIN.get(part, lambda value: value)(values.get(name))
            for place in differences(known, answers[part]):
                yield f"{reader}: {part} of {name}: {place}"


def _said(worker: Worker, name: str) -> dict[str, Any]:
    def get(what: str) -> Any:
        return worker.ask(Ask("GET", f"/connectors/{name}/{what}")).body

    status = get("status")
    state = status["connector"]["state"]
    states = {"": status["connector"], **{f"{each['id']}": each for each in status["tasks"]}}
    return {
        "connectors": get("config"),
        "tasks": [each["config"] for each in get("tasks")],
        "targets": "STARTED" if state == "RUNNING" else state,
        "statuses": {each: [at["state"], at["worker_id"]] for each, at in states.items()},
        "topics": get("topics")[name]["topics"],
        "offsets": _offsets_of(worker, name),
    }


_PLAIN: Final[Mapping[str, Callable[[Any], Any]]] = {
    "statuses": lambda found: {each: status[:2] for each, status in found.items()},
    "topics": sorted,
    "offsets": lambda pairs: {canonical(part): at for part, at in pairs},
}
"""What is compared of a part of the stores' answer."""


def _offsets_of(worker: Worker, name: str) -> dict[str, Any]:
    found = worker.ask(Ask("GET", f"/connectors/{name}/offsets")).body["offsets"]
    return {canonical(each["partition"]): each["offset"] for each in found}


def _wrong(name: str, bootstrap: str) -> Iterator[str]:
    """Yield the numbers of each part that are missing or double."""
    found = asyncio.run(_numbers(f"numbers-{name}", bootstrap))
    first = {0: JAVA_OFFSET} if name == "java" else {}
    expected = Counter(
        (part, number) for part in range(PARTS) for number in range(first.get(part, 0), 80)
    )
    for part, number in sorted((expected - found) + (found - expected)):
        times, wanted = found[part, number], expected[part, number]
        yield f"part {part} has {number} {times} times, instead of {wanted}"


async def _numbers(topic: str, bootstrap: str) -> Counter[tuple[int, int]]:
    found = Counter[tuple[int, int]]()
    async with Log.open(f"kafka://{bootstrap}") as log:
        (described,) = await log.admin().describe_topics([topic])
        for number in range(described.partitions):
            for record in await log.read_range(TopicPartition(topic, number)):
                value = msgspec.json.decode(record.value or b"")
                found[value["part"], value["number"]] += 1
    return found
