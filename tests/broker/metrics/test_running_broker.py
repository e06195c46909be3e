"""The metrics of a broker process, held against its files, the system and Kafka's own client."""

from __future__ import annotations

import os
import re
import select
import socket
import subprocess
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from urllib.request import urlopen

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from prometheus_client.parser import text_string_to_metric_families

from chaos.ports import reserved_ports
from tests.broker.process import BrokerProcess

DOCUMENT = Path(__file__).parents[3] / "docs" / "metrics.md"
LOG = "kafka_log_log_"
PURGATORY = "kafka_server_delayedoperationpurgatory_purgatorysize"
SOCKETS = "kafka_server_socket_server_metrics_"
GROUPS = "kafka_coordinator_group_groupmetadatamanager_numgroups"


class Running:
    """A broker process with its metrics."""

    def __init__(self, data: Path, web_port: int, **settings: str) -> None:
        self.data = data
        self._web_port = web_port
        self.process = BrokerProcess(
            data,
            settings={
                "web.listener": f"127.0.0.1:{web_port}",
                **settings,
            },
        )

    @property
    def address(self) -> str:
        return self.process.address

    def text(self) -> str:
        with urlopen(f"http://127.0.0.1:{self._web_port}/metrics", timeout=30) as answer:
            return str(answer.read(), "utf-8")

    def look(self) -> dict[str, float]:
        """Return all samples; the name of one contains its labels, by name."""
        found: dict[str, float] = {}
        for family in text_string_to_metric_families(self.text()):
            for sample in family.samples:
                labels = ",".join(f"{k}={v}" for k, v in sorted(sample.labels.items()))
                found[sample.name + (f"{{{labels}}}" if labels else "")] = sample.value
        return found


@contextmanager
def running(tmp_path: Path, **settings: str) -> Iterator[Running]:
    with reserved_ports(2) as (port, web_port):
        listeners = {"listeners": f"PLAINTEXT://127.0.0.1:{port}"}
        broker = Running(tmp_path / "data", web_port, **(listeners | settings))
        with broker.process:
            yield broker


def documented() -> set[str]:
    return set(re.findall(r"^\| `(\w+)` \|", DOCUMENT.read_text(), re.MULTILINE))


def test_the_documentation_lists_the_metrics_of_a_running_broker(tmp_path: Path) -> None:
    with running(tmp_path, **{"schema.registry.listener": "127.0.0.1:0"}) as broker:
        served = set(re.findall(r"^# TYPE (\S+) ", broker.text(), re.MULTILINE))
        # The names of other pages: each belongs to one of them.
        assert served - documented() == set()
        assert documented() - served == set()


def log_bytes(data: Path) -> list[int]:
    """Return the bytes of the log files in each partition folder, in order of size."""
    return sorted(sum(file.stat().st_size for file in files) for files in log_files(data))


def log_files(data: Path) -> list[list[Path]]:
    """Return the log files in each partition folder: none before the first record."""
    return [list(folder.glob("*.log")) for folder in data.glob("p-*")]


def test_sizes_and_offsets_are_those_of_the_files_also_after_a_restart(tmp_path: Path) -> None:
    with running(tmp_path, **{"log.segment.bytes": "20000"}) as broker:
        admin = AdminClient({"bootstrap.servers": broker.address})
        for created in admin.create_topics([NewTopic("orders", 3, 1)]).values():
            created.result()
        producer = Producer({"bootstrap.servers": broker.address, "linger.ms": 0})
        for number in range(300):
            producer.produce("orders", os.urandom(500), partition=number % 2)
            producer.flush()

        def check() -> None:
            found = broker.look()
            name = LOG + "{}{{partition={},topic=orders}}"
            # Of all topics, since the consumer has made one for its offsets.
            sizes = [value for each, value in found.items() if each.startswith(f"{LOG}size{{")]
            # A partition without records has no folder yet: it has no bytes, and one segment.
            folders = log_bytes(broker.data)
            empty = len(sizes) - len(folders)
            assert sorted(sizes) == sorted([0] * empty + folders)
            counts = [value for each, value in found.items() if each.startswith(f"{LOG}numlogse")]
            segments = sum(max(1, len(files)) for files in log_files(broker.data))
            assert sum(counts) == segments + empty
            consumer = Consumer({"bootstrap.servers": broker.address, "group.id": "g"})
            for index in range(3):
                low, high = consumer.get_watermark_offsets(TopicPartition("orders", index))
                assert found[name.format("logstartoffset", index)] == low
                assert found[name.format("logendoffset", index)] == high
            consumer.close()

        check()
        assert log_bytes(broker.data)[-1] > 2 * 20_000
        broker.process.kill_and_restart()
        check()


def test_the_disk_is_as_the_system_says(tmp_path: Path) -> None:
    with running(tmp_path) as broker:
        found, disk = broker.look(), os.statvfs(broker.data)
        labels = f"{{logdirectory={broker.data}}}"
        assert (
            found[f"streamlog_log_directory_total_bytes{labels}"] == disk.f_blocks * disk.f_frsize
        )
        usable = found[f"streamlog_log_directory_usable_bytes{labels}"]
        # Others write to the same disk meanwhile.
        assert usable == pytest.approx(disk.f_bavail * disk.f_frsize, rel=0.05)


def test_connections_are_counted_by_listener(tmp_path: Path) -> None:
    listeners = "PLAINTEXT://127.0.0.1:0,SECOND://127.0.0.1:0"
    settings = {
        "listeners": listeners,
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,SECOND:PLAINTEXT",
        "max.connections.per.ip": "5",
    }
    with running(tmp_path, **settings) as broker, ExitStack() as stack:
        ports = sorted(listening_ports(broker))
        # The bound holds for both listeners together. Either the sixth connection is refused, or,
        # if that comes late, an older one makes room.
        clients = [
            stack.enter_context(socket.create_connection(("127.0.0.1", ports[which])))
            for which in (0, 0, 0, 1, 1, 1)
        ]
        closed, _, _ = select.select(clients, [], [], 30)
        left = Counter(each.getpeername()[1] for each in clients if each not in closed)
        found = broker.look()
        names = ("PLAINTEXT", "SECOND")
        counts = [found[f"{SOCKETS}connection_count{{listener={name}}}"] for name in names]
        assert len(closed) == 1
        assert sorted(counts) == sorted(left.values())
        assert found["streamlog_connections"] == 5
        gone = ("refused", "evicted")
        assert sum(found[f"streamlog_connections_{each}_total"] for each in gone) == 1


def listening_ports(broker: Running) -> set[int]:
    process = broker.process._process
    assert process is not None
    web = {broker._web_port}
    owned = set()
    for entry in Path(f"/proc/{process.pid}/fd").iterdir():
        link = str(entry.readlink())
        if link.startswith("socket:["):
            owned.add(link[8:-1])
    lines = Path(f"/proc/{process.pid}/net/tcp").read_text().splitlines()[1:]
    fields = [line.split() for line in lines]
    listening = {int(f[1].split(":")[1], 16) for f in fields if f[3] == "0A" and f[9] in owned}
    return listening - web


def test_groups_and_transactions_are_counted_by_state(tmp_path: Path) -> None:
    with running(tmp_path, **{"group.initial.rebalance.delay.ms": "0"}) as broker:
        admin = AdminClient({"bootstrap.servers": broker.address})
        for created in admin.create_topics([NewTopic("orders", 2, 1)]).values():
            created.result()
        consumers = []
        for group, protocol in (("one", "classic"), ("two", "classic"), ("three", "consumer")):
            consumer = Consumer(
                {
                    "bootstrap.servers": broker.address,
                    "group.id": group,
                    "group.protocol": protocol,
                }
            )
            consumer.subscribe(["orders"])
            consumers.append(consumer)
        for consumer in consumers:
            while not consumer.assignment():
                consumer.poll(0.1)
        consumers[0].commit(offsets=[TopicPartition("orders", 0, 0)], asynchronous=False)
        consumers[1].close()
        listed = admin.list_consumer_groups().result().valid
        states = sorted((each.group_id, each.state.name) for each in listed)
        assert [group for group, _ in states][:1] == ["one"]
        found = broker.look()
        named = dict(states)
        assert (named["one"], named["three"]) == ("STABLE", "STABLE")
        assert found[GROUPS] == len(states)
        assert found[f"{GROUPS}stable"] == 1
        assert found[f"{GROUPS}empty"] == list(named.values()).count("EMPTY")
        prefix = "kafka_server_group_coordinator_metrics_"
        assert found[f"{prefix}consumer_group_count{{state=Stable}}"] == 1
        # One member each: it joined once. (A classic member that leaves ends no rebalance.)
        assert found[f"{prefix}group_completed_rebalance_count"] == 2
        assert found[f"{prefix}consumer_group_rebalance_count"] == 1
        assert found["kafka_coordinator_group_groupmetadatamanager_numoffsets"] == 1
        for consumer in (consumers[0], consumers[2]):
            consumer.close()

        ids = "streamlog_transactional_ids{{state={}}}"
        producers = [
            Producer({"bootstrap.servers": broker.address, "transactional.id": f"t{number}"})
            for number in range(3)
        ]
        for producer in producers:
            producer.init_transactions()
        for producer in producers[1:]:
            producer.begin_transaction()
            producer.produce("orders", b"x")
            producer.flush()
        producers[2].commit_transaction()
        found = broker.look()
        assert found[ids.format("Empty")] == 1
        assert found[ids.format("Ongoing")] == 1
        assert found[ids.format("PrepareCommit")] + found[ids.format("CompleteCommit")] == 1
        assert 0 <= found["streamlog_transaction_oldest_open_seconds"] < 60
        producers[1].abort_transaction()
        assert broker.look()["streamlog_transaction_oldest_open_seconds"] == 0


def test_waiting_fetches_are_in_purgatory(tmp_path: Path) -> None:
    with running(tmp_path) as broker:
        subprocess.run(
            ["kcat", "-P", "-b", broker.address, "-t", "orders"], input=b"a\n", check=True
        )
        assert broker.look()[f"{PURGATORY}{{delayedoperation=Fetch}}"] == 0
        reading = subprocess.Popen(
            f"kcat -C -u -b {broker.address} -t orders -X fetch.wait.max.ms=5000".split(),
            stdout=subprocess.PIPE,
        )
        try:
            assert reading.stdout is not None
            assert reading.stdout.readline() == b"a\n"
            seen = {broker.look()[f"{PURGATORY}{{delayedoperation=Fetch}}"] for _ in range(20)}
            assert 1 in seen
        finally:
            reading.kill()
            reading.communicate()
        # The client has left, and its fetch with it.
        while broker.look()[f"{PURGATORY}{{delayedoperation=Fetch}}"]:
            pass


def test_throttle_times_are_those_that_the_client_is_told(tmp_path: Path) -> None:
    with running(tmp_path, **{"quota.producer.default": "20000"}) as broker:
        told: list[float] = []
        producer = Producer(
            {
                "bootstrap.servers": broker.address,
                "client.id": "loud",
                "linger.ms": 0,
                "throttle_cb": lambda event: told.append(event.throttle_time),
            }
        )
        for _ in range(3):
            producer.produce("orders", bytes(25_000))
            producer.flush()
        producer.poll(0.5)
        found = broker.look()
        labels = "{client_id=loud,quota=produce,user=}"
        assert told
        throttled_s = found[f"streamlog_quota_throttle_seconds_total{labels}"]
        assert throttled_s == pytest.approx(sum(told))
        # librdkafka tells of a throttling and of its end: the latter with the time 0.
        throttles = found[f"streamlog_quota_throttles_total{labels}"]
        assert throttles == len([each for each in told if each])
