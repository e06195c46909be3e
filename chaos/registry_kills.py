"""`python -m chaos.registry_kills`: the primary of the schema registry is killed, again and again.

Three brokers with a registry each run as processes. Clients register schemas through all of them,
some of them the same ones, and repeat what was not answered. In each round the broker that leads
`_schemas` gets SIGKILL, another one takes over, and the killed one starts again. At the end every
broker has to list the same schemas: no id stands for two, none that was acknowledged is missing,
and the ids are dense. With `--restart-every S` brokers are stopped in order instead, one every S
seconds, while the tests of Confluent's client run against all three, again and again.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from time import sleep
from typing import Any

from chaos.cluster import TEST_SETTINGS
from chaos.ports import reserved_ports
from streamlog.cli.cluster_init import NodeSetup, write_nodes
from streamlog.clock import SystemClock
from streamlog.registry.topic_records import TOPIC

CLIENTS = 6
TRY_S = 30.0
"""How long one request may take."""
RECOVERY_S = 90.0
"""How long a write may take to succeed after a kill."""
PAUSE_S = 0.05
UNANSWERED = (OSError, ValueError, http.client.HTTPException)
"""What a request raises whose broker is gone; the body may be cut off."""
CLOCK = SystemClock()
JSON_TYPE = "application/vnd.schemaregistry.v1+json"


@dataclass
class Acknowledged:
    """What the clients were told."""

    ids: dict[str, int] = field(default_factory=dict)
    """The id of each schema's name."""
    subjects: dict[str, str] = field(default_factory=dict)
    """The name of the schema that each subject has."""
    violations: list[str] = field(default_factory=list)
    longest_s: float = 0
    requests: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def note(self, subject: str, name: str, schema_id: int, took_s: float) -> None:
        """Note an answer; a second one for a schema has to have the same id."""
        with self.lock:
            self.requests += 1
            self.longest_s = max(self.longest_s, took_s)
            self.subjects[subject] = name
            known = self.ids.setdefault(name, schema_id)
            if known != schema_id:
                self.violations.append(f"{name} has id {known}, and was answered with {schema_id}")


class BrokerOfThree:
    """One broker process."""

    def __init__(self, setup: NodeSetup) -> None:
        self.setup = setup
        self.url = f"http://{setup.settings['schema.registry.listener']}"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it, without waiting."""
        log = self.setup.data.with_suffix(".log").open("ab")
        command = [sys.executable, "-m", "streamlog", "broker", "--config", str(self.setup.config)]
        self._process = subprocess.Popen(command, stdout=log, stderr=log)
        log.close()

    def end(self, how: signal.Signals) -> None:
        """Send a signal, and wait for the end."""
        process, self._process = self._process, None
        if process is not None:
            process.send_signal(how)
            process.wait(60)


def now_s() -> float:
    """Return the time on a clock that never goes back."""
    return CLOCK.now_ms() / 1000


def ask(url: str, path: str, body: object = None) -> Any:  # noqa: ANN401 - JSON
    """Return the JSON of an answer; raises OSError or ValueError if it is none."""
    request = urllib.request.Request(  # noqa: S310 - http to ourselves
        url + path,
        data=None if body is None else json.dumps(body).encode(),
        headers={"content-type": JSON_TYPE},
    )
    with urllib.request.urlopen(request, timeout=TRY_S) as answer:  # noqa: S310 - the same
        return json.loads(answer.read())


def register_until_answered(urls: list[str], subject: str, name: str, told: Acknowledged) -> None:
    """Register a schema through any broker, as often as it takes."""
    schema = {"type": "record", "name": name, "fields": [{"name": "x", "type": "int"}]}
    began = now_s()
    while now_s() < began + RECOVERY_S:
        url = random.choice(urls)
        try:
            found = ask(url, f"/subjects/{subject}/versions", {"schema": json.dumps(schema)})
        except urllib.error.HTTPError as error:
            if error.code < 500:
                told.violations.append(f"{subject}: {error.code} {error.read()[:200]!r}")
                return
        except UNANSWERED:
            sleep(PAUSE_S)
        else:
            told.note(subject, name, int(found["id"]), now_s() - began)
            return
    told.violations.append(f"{subject} could not be registered within {RECOVERY_S} s")


def load(urls: list[str], client: int, told: Acknowledged, stop: threading.Event) -> None:
    """Register one schema after the other; two clients register each schema."""
    number = 0
    while not stop.is_set():
        number += 1
        name = f"S{client // 2}x{number}"
        register_until_answered(urls, f"subject-{client}-{number}", name, told)
        sleep(PAUSE_S)


def leader_of(addresses: str) -> int | None:
    """Return the broker that leads `_schemas`; None if none does."""
    from confluent_kafka.admin import AdminClient  # noqa: PLC0415 - only the campaign needs it

    admin = AdminClient({"bootstrap.servers": addresses, "log_level": 0})
    try:
        topic = admin.list_topics(TOPIC, timeout=5).topics[TOPIC]
    except Exception:  # noqa: BLE001 - librdkafka's, while brokers are away
        return None
    leader = topic.partitions[0].leader if topic.partitions else -1
    return leader if leader > 0 else None


def all_schemas(url: str) -> Iterator[Any]:
    """Yield what a registry lists, page by page."""
    offset = 0
    while found := ask(url, f"/schemas?offset={offset}"):
        yield from found
        offset += len(found)


def check(brokers: list[BrokerOfThree], told: Acknowledged) -> int:
    """Compare what each broker lists with what was acknowledged; return the number of ids."""
    highest = 0
    for broker in brokers:
        names: dict[int, str] = {}
        held: dict[str, str] = {}
        for each in all_schemas(broker.url):
            name = json.loads(each["schema"])["name"]
            held[each["subject"]] = name
            if names.setdefault(each["id"], name) != name:
                told.violations.append(f"{broker.url}: id {each['id']} stands for two schemas")
        lost = [subject for subject, name in told.subjects.items() if held.get(subject) != name]
        if lost:
            told.violations.append(f"{broker.url}: {len(lost)} acknowledged are lost: {lost[:5]}")
        wrong = [name for name, number in told.ids.items() if names.get(number) != name]
        if wrong:
            told.violations.append(f"{broker.url}: {len(wrong)} have another id: {wrong[:5]}")
        highest = max(names, default=0)
        if sorted(names) != [*range(1, highest + 1)]:
            told.violations.append(f"{broker.url}: the ids up to {highest} have gaps")
    return highest


def kill_primary(
    brokers: list[BrokerOfThree], addresses: str, told: Acknowledged, number: int
) -> None:
    """Kill the primary, wait until a write succeeds, start it again, wait until it answers."""
    leader = None
    while leader is None:
        leader = leader_of(addresses)
    victim = next(each for each in brokers if each.setup.number == leader)
    victim.end(signal.SIGKILL)
    others = [each.url for each in brokers if each is not victim]
    register_until_answered(others, f"after-kill-{number}", f"K{number}", told)
    victim.start()
    wait_until_answering(victim)


def restart(broker: BrokerOfThree) -> None:
    """Stop a broker in order, and start it again."""
    broker.end(signal.SIGTERM)
    broker.start()
    wait_until_answering(broker)


def wait_until_answering(broker: BrokerOfThree) -> None:
    """Wait until a broker answers reads.

    Raises:
        TimeoutError: it does not.
    """
    deadline = now_s() + RECOVERY_S
    while now_s() < deadline:
        try:
            ask(broker.url, "/subjects?limit=1")
        except UNANSWERED:
            sleep(PAUSE_S)
        else:
            return
    raise TimeoutError(f"{broker.url} does not answer within {RECOVERY_S} s")


def run_client_tests(urls: list[str], told: Acknowledged, stop: threading.Event) -> None:
    """Run the tests of Confluent's client until `stop`, through all registries."""
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider"]
    command += ["-n", "0", "--timeout", "120", "tests/registry/test_confluent_client.py"]
    runs = 0
    while not stop.is_set():
        environment = {**os.environ, "STREAMLOG_REGISTRY_URL": ",".join(urls)}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        runs += 1
        if done.returncode:
            told.violations.append(f"Confluent's client, run {runs}: {done.stdout[-3_000:]}")
            break
    print(f"the tests of Confluent's client ran {runs} times", flush=True)


def run_rounds(
    brokers: list[BrokerOfThree], told: Acknowledged, rounds: int, restart_every_s: float | None
) -> None:
    """Kill the primary, or restart one broker after the other, until something is wrong."""
    addresses = ",".join(each.setup.listeners for each in brokers)
    began = now_s()
    for number in range(1, rounds + 1):
        if restart_every_s is None:
            kill_primary(brokers, addresses, told, number)
        else:
            sleep(restart_every_s)
            restart(brokers[number % len(brokers)])
        if number % 10 == 0:
            print(
                f"round {number}: {len(told.subjects)} subjects, {len(told.ids)} schemas, longest"
                f" {told.longest_s:.1f} s, {now_s() - began:.0f} s",
                flush=True,
            )
        if told.violations:
            break


def campaign(directory: Path, rounds: int, restart_every_s: float | None) -> Acknowledged:
    """Run all rounds, and check."""
    told = Acknowledged()
    with reserved_ports(6) as ports:
        setups = _setups(directory, ports)
        write_nodes(setups, None)
        brokers = [BrokerOfThree(each) for each in setups]
        for each in brokers:
            each.start()
        stop = threading.Event()
        urls = [each.url for each in brokers]
        try:
            for each in brokers:
                wait_until_answering(each)
            register_until_answered(urls, "first", "First", told)
            clients = [
                threading.Thread(target=load, args=(urls, client, told, stop))
                for client in range(CLIENTS if restart_every_s is None else 0)
            ]
            if restart_every_s is not None:
                clients.append(threading.Thread(target=run_client_tests, args=(urls, told, stop)))
            for client in clients:
                client.start()
            run_rounds(brokers, told, rounds, restart_every_s)
            stop.set()
            for client in clients:
                client.join()
            highest = check(brokers, told) if restart_every_s is None else 0
            print(
                f"{rounds} rounds: {told.requests} registrations of {len(told.ids)} schemas, ids 1"
                f" to {highest}, longest {told.longest_s:.1f} s, {len(told.violations)} violations",
                *told.violations[:20],
                sep="\n",
                flush=True,
            )
        finally:
            stop.set()
            for each in brokers:
                each.end(signal.SIGTERM)
    return told


def _setups(directory: Path, ports: list[int]) -> list[NodeSetup]:
    voters = ",".join(f"{n}@127.0.0.1:{ports[n - 1]}" for n in (1, 2, 3))
    setups = []
    for number in (1, 2, 3):
        settings = {
            **TEST_SETTINGS,
            "node.id": str(number),
            "log.dirs": str((directory / f"broker-{number}").absolute()),
            "listeners": f"PLAINTEXT://127.0.0.1:{ports[number - 1]}",
            "controller.quorum.voters": voters,
            "schema.registry.listener": f"127.0.0.1:{ports[number + 2]}",
        }
        data = directory / f"broker-{number}"
        config = directory / f"broker-{number}.properties"
        setups.append(NodeSetup(number=number, data=data, config=config, settings=settings))
    return setups


def main() -> int:
    """Run the campaign; return 1 if anything was violated."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--restart-every", type=float, default=None, metavar="S")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="streamlog-registry-") as directory:
        told = campaign(Path(directory), given.kills, given.restart_every)
    return 1 if told.violations else 0


if __name__ == "__main__":
    sys.exit(main())
