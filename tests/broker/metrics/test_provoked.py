"""Metrics of a broker's parts, held against what a test has provoked and counted."""

from __future__ import annotations

import asyncio
from contextlib import closing

import pytest

from streamlog.broker.broker import Broker
from streamlog.broker.config.broker import BrokerConfig
from streamlog.broker.metrics.log_metrics import ALL, PARTITIONS_MAX, TOPICS_MAX, log_metrics
from streamlog.broker.server.socket_server import Acceptor
from streamlog.broker.storage.disk.files import read_file
from streamlog.broker.storage.disk.memory_files import MemoryFile, MemoryFiles
from streamlog.metrics.instruments import Histogram
from streamlog.metrics.registry import OTHER, Metric, Registry, Summary
from streamlog.protocol.error_codes import ErrorCode
from streamlog.protocol.messages.topics_and_configs import (
    CreatableTopic,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from tests.broker.node import Node, batch, context, create, produce, produce_request
from tests.broker.server.test_sasl_handshake import authenticate, handshake, metadata
from tests.broker.server.test_sasl_handshake import serve as serve_sasl
from tests.broker.server.test_socket_server import peer
from tests.broker.storage.compaction.test_cleaner import CleanerHarness, fill, is_clean
from tests.broker.storage.test_retention import DELAY_MS, INTERVAL_MS, Time, filled, logs, opened
from tests.broker.three_brokers import Cluster, call, run_cluster, until

SOCKETS = "kafka_server_socket_server_metrics_"
REPLICAS = "kafka_server_replicamanager_"
CONTROLLER = "kafka_controller_kafkacontroller_"


def look(registry: Registry) -> dict[tuple[str, ...], float | Histogram | Summary]:
    """Return all values, by name and values of labels."""
    return {
        (metric.name, *labels): value
        for metric in registry.metrics()
        for labels, value in metric.points
    }


def count_of(value: object) -> int:
    assert isinstance(value, Histogram | Summary)
    return value.count


class CountedFile(MemoryFile):
    """A file that counts its syncs."""

    def sync(self) -> None:
        assert isinstance(self._files, CountedFiles)
        self._files.syncs += self._files.counts
        super().sync()


class CountedFiles(MemoryFiles):
    """A disk that counts syncs while `counts` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.syncs = 0
        self.counts = False

    def open(self, path: str, *, writable: bool = False) -> MemoryFile:
        return CountedFile(self, self._content(path, make=writable), writable=writable)


def test_every_sync_of_a_log_is_counted_and_timed() -> None:
    files = CountedFiles()

    async def story(broker: Broker) -> None:
        create(broker)
        await produce(broker, batch(b"first"))  # It also syncs the names of new files.
        names = ("kafka_log_logflushstats_logflushrateandtimems", "streamlog_log_flush_seconds")
        before = [count_of(look(broker.directory.metrics)[name,]) for name in names]
        files.counts = True
        for number in range(7):
            await produce(broker, batch(b"%d" % number))
        files.counts = False
        after = [count_of(look(broker.directory.metrics)[name,]) for name in names]
        assert files.syncs == 7
        assert [now - then for now, then in zip(after, before, strict=True)] == [7, 7]

    Node(files=files, config=BrokerConfig(flush="always")).run(story)


def test_authentications_are_counted_by_outcome() -> None:
    async def story(broker: Broker, server: Acceptor) -> None:
        for wrong in (False, True, False, True, True):
            async with peer(server) as one:
                await handshake(one)
                answer = await authenticate(
                    one, b"\0alice\0wrong" if wrong else b"\0alice\0wonderland"
                )
                expected = ErrorCode.SASL_AUTHENTICATION_FAILED if wrong else ErrorCode.NONE
                assert answer.error_code == expected
                if not wrong:
                    await metadata(one)
        async with peer(server) as one:
            await handshake(one, "GSSAPI")
            assert await one.hung_up()
        await until(lambda: look(broker.directory.metrics)["streamlog_connections",] == 0)
        found = look(broker.directory.metrics)
        listener = server.listener.name
        for name, count in (
            ("successful_authentication_total", 2),
            ("failed_authentication_total", 4),
            ("successful_reauthentication_total", 0),
            ("connection_creation_total", 6),
            ("connection_close_total", 6),
            ("connection_count", 0),
        ):
            assert found[SOCKETS + name, listener] == count

    serve_sasl(story, failed_authentication_delay_ms=0)


def log_bytes(here: CleanerHarness) -> int:
    """Return the bytes of all sealed segments of topic `t`."""
    names = [name for name in here.names() if name.endswith(".log")]
    return sum(len(read_file(here.files, here.path("t", name))) for name in sorted(names)[:-1])


def test_the_cleaner_counts_the_bytes_of_files_before_and_after() -> None:
    here = CleanerHarness()
    log = here.topic()
    fill(log)
    before_bytes = log_bytes(here)
    here.run_until(is_clean(log))
    assert here.cleaner.dirtiest_ratio == 1.0
    assert here.cleaner.times.count == 1
    assert here.cleaner.read_bytes == before_bytes
    # The names that readers still use are gone once the replaced files are.
    assert here.cleaner.written_bytes == log_bytes(here) < before_bytes
    here.run_for(60_000)
    assert here.cleaner.dirtiest_ratio == 0.0
    assert here.cleaner.last_run_ms > 0
    assert here.cleaner.uncleanable == 0


def test_retention_counts_the_files_that_it_removes() -> None:
    files = MemoryFiles()
    with closing(opened(files)) as directory:
        filled(directory, retention_ms="30000")
        folder = f"/data/p-{directory.topics['t'].topic_id.hex()}-0"
        sizes = {name: len(read_file(files, f"{folder}/{name}")) for name in logs(files, directory)}
        time = Time(directory)
        time.pass_ms(INTERVAL_MS)
        time.pass_ms(DELAY_MS)
        gone = sizes.keys() - logs(files, directory)
        assert gone
        assert time.retention.deleted_segments == len(gone)
        assert time.retention.deleted_bytes == sum(sizes[name] for name in gone)


def test_logs_beyond_the_bound_are_counted_by_topic() -> None:
    async def story(broker: Broker) -> None:
        create(broker, "few", 2)
        create(broker, "many", PARTITIONS_MAX)
        await produce(broker, batch(b"x"), topic="few")
        await produce(broker, batch(b"x"), topic="many")
        metrics = [each for each in log_metrics(broker.directory) if isinstance(each, Metric)]
        found = {(each.name, *labels): value for each in metrics for labels, value in each.points}
        assert found["kafka_log_log_numlogsegments", "few", "0"] == 1
        assert found["kafka_log_log_numlogsegments", "many", ALL] == PARTITIONS_MAX
        size = found["kafka_log_log_size", "few", "0"]
        assert found["kafka_log_log_size", "many", ALL] == size
        ends = {key: value for key, value in found.items() if key[0].endswith("endoffset")}
        assert {key[1:]: value for key, value in ends.items()} == {
            ("few", "0"): 1,
            ("few", "1"): 0,
        }

    assert (TOPICS_MAX, OTHER) == (1_000, "other")
    Node().run(story)


async def create_replicated(cluster: Cluster, name: str) -> int:
    """Create a topic of one partition on all brokers; return its leader."""
    await cluster.ready()
    topic = CreatableTopic(name=name, num_partitions=1, replication_factor=3)
    request = CreateTopicsRequest(topics=[topic], timeout_ms=20_000)
    made = await call(cluster.brokers[0], request, CreateTopicsResponse)
    assert not made.topics[0].error_code, made.topics[0].error_message
    await until(lambda: all(each._partitions.partitions(name) for each in cluster.brokers))
    registered = cluster.brokers[0]._member.metadata.topic(name)
    assert registered is not None
    return registered.partitions[0].leader


@pytest.mark.slow
def test_a_lost_follower_is_seen_in_purgatory_then_in_the_replicas_and_at_the_controller() -> None:
    """acks=all waits for the follower until it leaves the in-sync set."""

    async def story(cluster: Cluster) -> None:
        leader_id = await create_replicated(cluster, "t")
        leader = cluster.nodes[leader_id].broker
        assert leader is not None
        controller = await cluster.controller()
        victim = next(
            each
            for number, each in cluster.nodes.items()
            if number not in (leader_id, controller.node_id)
        )
        metrics = leader.directory.metrics
        waits = ("kafka_server_delayedoperationpurgatory_purgatorysize", "Produce")
        await until(lambda: look(metrics)[REPLICAS + "underreplicatedpartitions",] == 0)
        shrinks = look(metrics)[REPLICAS + "isrshrinks_total",]
        await victim.kill()
        request = produce_request(batch(b"x"))
        answer = asyncio.ensure_future(leader.handle(request, context(request)))
        await until(lambda: look(metrics)[waits] == 1)
        await answer
        assert look(metrics)[waits] == 0
        # The leader may answer before the committed change reaches it.
        await until(lambda: look(metrics)[REPLICAS + "underreplicatedpartitions",] == 1)
        assert look(metrics)[REPLICAS + "isrshrinks_total",] == shrinks + 1
        active = controller.broker
        assert active is not None
        await until(lambda: look(active.directory.metrics)[CONTROLLER + "fencedbrokercount",] == 1)
        for each in cluster.brokers:
            seen = look(each.directory.metrics)
            is_active = each is active
            assert seen[CONTROLLER + "activecontrollercount",] == is_active
            assert seen[CONTROLLER + "activebrokercount",] == 2 * is_active
        decisions = look(active.directory.metrics)
        name = "kafka_controller_controllereventmanager_eventqueuetimems"
        assert count_of(decisions[name,]) > 0
        lag = {
            key[1]: value
            for key, value in decisions.items()
            if key[0] == "streamlog_quorum_lag_seconds"
        }
        assert lag.keys() == {str(number) for number in cluster.nodes} - {str(controller.node_id)}
        lost, kept = lag.pop(str(victim.node_id)), next(iter(lag.values()))
        assert isinstance(lost, float)
        assert isinstance(kept, float)
        assert lost > kept
        await victim.start()
        await until(lambda: look(metrics)[REPLICAS + "underreplicatedpartitions",] == 0)
        assert look(metrics)[REPLICAS + "isrexpands_total",] >= 1

    # A controller that is elected on a busy machine would know nothing of the lost voter.
    run_cluster(
        lambda: Cluster(
            **{"replica.lag.time.max.ms": "1000", "controller.quorum.fetch.timeout.ms": "30000"}
        ),
        story,
    )
