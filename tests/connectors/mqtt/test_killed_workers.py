"""Workers that are killed at the steps of commits and flushes lose no message of a broker."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path

import paho.mqtt.client as paho
import pytest

from streamlog.log import Log
from tests.connectors.mqtt.mqtt_clients import Collector, client_of, publish
from tests.servers.mosquitto import MosquittoServer
from tests.servers.server_process import wait_until
from tests.worker.commit_steps import IS_THOROUGH, write_program
from tests.worker.processes import STREAMLOG, attached, read_whole, running

PROGRAM = """
import os
import sys

from mortal import run
from streamlog import App
from streamlog.connectors.mqtt import MqttSink, MqttSource
from streamlog.worker import worker
from streamlog.worker.connect import sink_group

for room in (worker, sink_group):
    room.SESSION_TIMEOUT_MS, room.HEARTBEAT_INTERVAL_MS = 2_000, 300
app = App("mqtt", state_dir="state", commit_interval="50ms")
numbers = app.topic("numbers", key=str, value=bytes, partitions=2)
source = MqttSource(url=os.environ["BROKER"], topics=("in/#",), clients=2)
app.source(numbers, source, name="in", tasks=2)
app.sink(numbers, MqttSink(url=os.environ["BROKER"], topic="out/{key}"), name="out")
run(app, sys.argv[1], sys.argv[2], int(sys.argv[3]), "one")
"""
STEPS = (
    *("checkpointed", "begun", "sinks written", "offsets sent", "committed", "stored"),
    *("sink: begin", "sink: write", "sink: target committed", "sink: group committed"),
)
COUNT = 100


class Bridge:
    """A worker between topics of a broker, and what was published and received there."""

    def __init__(self, path: Path, url: str, server: MosquittoServer, client: paho.Client) -> None:
        self.path, self.url, self.server, self.client = path, url, server, client
        self.published: list[bytes] = []

    def live(self, step: str, times: int, collector: Collector) -> None:
        """Run a worker until it is killed, or until everything was received."""
        command = (sys.executable, "bridge.py", self.url, step, str(times))
        with (
            running(*command, cwd=self.path, BROKER=self.server.url) as process,
            ThreadPoolExecutor(1) as waiting,
        ):
            process.line("^up$")
            # What is published before the session exists, the worker never gets.
            if not self.published:
                wait_until(lambda: self.first_arrived(collector), "the first message")
            if step == "none":
                self.publish_some(COUNT)
                wanted = {*self.published}
                wait_until(lambda: received(collector) >= wanted, "the last message")
                assert process.stop() == 0, process.output
                return
            ended = waiting.submit(process.wait)
            while not ended.done():
                self.publish_some(1)
                # Spread over several commits, and no more than the worker takes.
                wait([ended], 0.002)
            assert ended.result() == -9, process.output

    def first_arrived(self, collector: Collector) -> bool:
        publish(self.client, "in/first", b"first")
        return b"first" in received(collector)

    def publish_some(self, count: int) -> None:
        values = [
            b"%d" % number for number in range(len(self.published), len(self.published) + count)
        ]
        for number, each in enumerate(values):
            publish(self.client, f"in/{number % 7}", each)
        self.published += values


def received(collector: Collector) -> set[bytes]:
    return {each.payload for each in [*collector.messages] if each.topic.startswith("out/")}


@pytest.mark.skipif(not IS_THOROUGH, reason="starts a worker for each step, and kills it")
def test_no_message_is_lost(tmp_path: Path) -> None:
    write_program(tmp_path, "bridge.py", PROGRAM)
    listen = ("broker", "--data", "log", "--listen", "127.0.0.1:0")
    with (
        MosquittoServer(max_inflight_messages="0") as server,
        running(*STREAMLOG, *listen, cwd=tmp_path) as broker,
        client_of(server, "publisher") as client,
        client_of(server, "collector") as other,
    ):
        url = "kafka://" + broker.line(r"listening on (\S+)").group(1)
        collector, bridge = Collector(other), Bridge(tmp_path, url, server, client)
        bridge.live("none", 0, collector)
        for step in STEPS:
            for times in (0, 3):
                bridge.live(step, times, collector)
        bridge.live("none", 0, collector)

        async def compare(log: Log) -> None:
            values = [record.value for _, record in await read_whole(log, "numbers")]
            assert {*values} == received(collector) == {b"first", *bridge.published}
            # Twice is only what a kill has left unacknowledged.
            assert len(values) < 1.5 * len(bridge.published)

        attached(url, compare)
