"""Attacks: each sends a bounded number of hostile requests and reports which expectations held.

A size of 1 suits a test of a few seconds; `make attack` runs larger ones.
"""

from __future__ import annotations

import gzip
import random
import signal
import socket
import statistics
import struct
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from crc32c import crc32c

from streamlog.protocol.api_table import api_of
from streamlog.protocol.error_codes import ErrorCode
from streamlog.protocol.frame import decode_response, encode_request
from streamlog.protocol.messages.classic_groups import FindCoordinatorRequest
from streamlog.protocol.messages.cluster_metadata import ApiVersionsRequest
from streamlog.protocol.messages.produce_and_fetch import ProduceResponse
from streamlog.protocol.messages.sasl_acls_quotas import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
)
from streamlog.protocol.messages.topics_and_configs import (
    CreatableTopic,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicState,
)
from streamlog.protocol.scram import ScramClient, ScramMechanism
from streamlog.records.batch import encode_batch
from tests.attack.target import Target, Witness, ask, frame_of, received
from tests.broker.node import produce_request

WORST_MS = 5_000
"""Another client gets its answers within this time, whatever an attacker does on a busy machine."""
HOSTILE = "\x1b]0;owned\x07\x1b[2J\x1b[31m\r\x9b6n\u202e\n2026-11-26 00:00:00,000 ERROR   forged"
"""Sets a terminal's title, clears it, colors it, requests a report, and forges a log line."""
CONTROLS = [chr(code) for code in (*range(9), *range(11, 32), *range(127, 160), 0x202E)]
NAMES = ("", ".", "..", "a/b", "../../etc/passwd", "x" * 250, "a\0b", "a\nb", HOSTILE, "\u00fc")
INTERNAL = ("__consumer_offsets", "__transaction_state")
SASL = {
    "listeners": "SASL_PLAINTEXT://127.0.0.1:0",
    "sasl.enabled.mechanisms": "SCRAM-SHA-256,PLAIN",
    "sasl.inter.broker.username": "admin",
    "sasl.inter.broker.password": "secret-of-admin",
    "sasl.mechanism.inter.broker.protocol": "SCRAM-SHA-256",
    "connection.failed.authentication.delay.ms": "0",
}


@dataclass
class Finding:
    """The result of an attack."""

    attack: str
    facts: dict[str, object] = field(default_factory=dict)
    broken: list[str] = field(default_factory=list)
    """The expectations that failed."""

    def hold(self, what: str, holds: bool) -> None:
        """Note whether an expectation holds."""
        if not holds:
            self.broken.append(what)

    def log_is_sound(self, target: Target) -> None:
        """Each log record is one line of the log, and none of them changes a terminal."""
        strays = target.stray_lines()
        self.hold(f"every log line begins like one: {strays[:1]}", not strays)
        escapes = [each for each in CONTROLS if each in target.log()]
        self.hold(f"the log has no control characters: {escapes}", not escapes)

    def served(self, witness: Witness) -> None:
        """Other clients were served during the attack, and the broker survives."""
        self.facts |= witness.facts
        self.hold("the broker lives", witness.outlived)
        self.hold("another client keeps its connection", witness.lost == 0)
        self.hold("another client gets answers", len(witness.latencies_s) > 0)
        self.hold(
            f"another client is answered within {WORST_MS} ms",
            max(witness.latencies_s, default=99.0) * 1000 <= WORST_MS,
        )


def descriptors(directory: Path, size: int) -> Finding:
    """Open more idle connections than the broker has descriptors, and create more partitions."""
    found = Finding("descriptors")
    limit = 256 * size
    with Target(directory, open_files=limit) as target, Witness(target) as witness:
        time.sleep(0.2)  # The witness has to connect before the others.
        with many(target, limit + 100):
            with closing(waited(target)) as client:
                topic_partitions = [(f"t-{number // 32}", number % 32) for number in range(limit)]
                for topic in dict.fromkeys(name for name, _ in topic_partitions):
                    found.hold("a topic is created", create(client, topic, 32) == ErrorCode.NONE)
                outcomes = Counter(
                    produced(client, *topic_partition) for topic_partition in topic_partitions
                )
            found.facts["partitions"] = limit
            found.facts["produced"] = {code.name: count for code, count in outcomes.items()}
            found.hold("every partition accepts records", set(outcomes) == {ErrorCode.NONE})
    found.hold("refusals are logged at most every 10 s", target.log().count("refused a conn") <= 5)
    found.served(witness)
    return found


def half_open(directory: Path, size: int) -> Finding:
    """Open connections beyond `max.connections` that send nothing."""
    found = Finding("half-open connections")
    settings = {"max.connections": "50"}
    with Target(directory, settings=settings) as target, Witness(target) as witness:
        time.sleep(0.2)
        with many(target, 150 * size):
            for _ in range(5):
                waited(target).close()
    found.served(witness)
    return found


def slowloris(directory: Path, size: int) -> Finding:
    """Announce large requests, and send them byte by byte."""
    found = Finding("slowloris")
    with Target(directory) as target, Witness(target) as witness:
        time.sleep(0.2)
        with many(target, 100 * size) as connections:
            for number, each in enumerate(connections):
                each.sendall(struct.pack(">i", 50_000_000 if number % 2 else 60_000))
            for _ in range(20 * size):
                for each in connections:
                    with suppress(OSError):
                        each.send(b"\0")
                time.sleep(0.05)
    found.served(witness)
    grown_mib = witness.facts.get("grown_mib", 0)
    found.hold(f"queued.max.request.bytes bounds its memory: {grown_mib}", grown_mib < 256 + 64)
    return found


def garbage_frames(directory: Path, size: int) -> Finding:
    """Send bytes that are no request, with sizes that are right, wrong, negative and huge."""
    found, chance = Finding("garbage frames"), random.Random(36)
    with Target(directory) as target, Witness(target) as witness:
        for number in range(200 * size):
            with closing(target.connect()) as each, suppress(OSError):
                each.sendall(garbage(chance, number))
                each.settimeout(0.005)
                each.recv(1000)
        found.log_is_sound(target)
    found.served(witness)
    return found


def garbage(chance: random.Random, number: int) -> bytes:
    """Return bytes that are no request."""
    sound = frame_of(ApiVersionsRequest())
    match number % 5:
        case 0:
            return chance.randbytes(chance.randrange(1, 2000))
        case 1:
            return struct.pack(">i", chance.choice((-1, 0, 1, 2**31 - 1, -(2**31)))) + b"x" * 20
        case 2:
            body = struct.pack(">hhi", chance.randrange(-5, 200), chance.randrange(-3, 30), 1)
            body += chance.randbytes(40)
            return struct.pack(">i", len(body)) + body
        case 3:
            broken = bytearray(sound)
            for _ in range(3):
                broken[chance.randrange(4, len(broken))] = chance.randrange(256)
            return bytes(broken)
        case _:
            return sound[: chance.randrange(1, len(sound))]


def garbage_batches(directory: Path, size: int) -> Finding:
    """Send batches with broken headers, wrong counts, broken records, and compression bombs."""
    found, chance = Finding("garbage batches and bombs"), random.Random(36)
    codes: Counter[str] = Counter()
    with Target(directory) as target, Witness(target) as witness:
        with closing(waited(target)) as client:
            create(client, "t", 1)
        for data in batches(chance, size):
            with closing(target.connect()) as client:
                try:
                    codes[produced(client, "t", 0, data).name] += 1
                except ConnectionError:
                    codes["hung up"] += 1
        with closing(waited(target)) as client:
            found.hold("a valid batch is accepted", produced(client, "t", 0) == ErrorCode.NONE)
    found.facts["answers"] = dict(codes)
    found.served(witness)
    return found


def batches(chance: random.Random, size: int) -> Iterator[bytes]:
    """Yield batches that no well-behaved client sends."""
    sound = encode_batch([(1, b"k", b"v" * 50, ()) for _ in range(20)])
    for _ in range(60 * size):
        broken = bytearray(sound)
        for _ in range(chance.randrange(1, 5)):
            broken[chance.randrange(len(broken))] = chance.randrange(256)
        yield bytes(broken)
    for _ in range(60 * size):
        yield sealed(sound[61:], chance.randbytes(30), count=chance.choice((0, 1, 2**31 - 1, -5)))
    for mib in (16, 64 * size):
        yield sealed(gzip.compress(bytes(mib * 2**20)), b"", count=1, attributes=1)


def sealed(records: bytes, tail: bytes, *, count: int, attributes: int = 0) -> bytes:
    """Return a batch with a valid checksum, whatever its content."""
    signed = struct.pack(">hiqqqhi", attributes, max(count - 1, 0), 1, 1, -1, -1, -1)
    signed += struct.pack(">i", count) + records + tail
    head = struct.pack(">ib", -1, 2) + struct.pack(">I", crc32c(signed))
    return struct.pack(">qi", 0, len(head) + len(signed)) + head + signed


def bad_names(directory: Path, size: int) -> Finding:
    """Use names of topics, groups and clients that are paths, log lines, or invalid."""
    found = Finding("bad names")
    answers: dict[str, str] = {}
    with Target(directory) as target, Witness(target) as witness:
        for name in NAMES * size:
            with closing(waited(target)) as client, suppress(ConnectionError):
                answers[name[:10]] = create(client, name, 1).name
            with closing(target.connect()) as client, suppress(OSError):
                request = FindCoordinatorRequest(key=name, coordinator_keys=[name])
                client.sendall(frame_of(request, client=name))
                client.sendall(frame_of(ApiVersionsRequest(), client=name)[:-1] + b"\xff" * 9)
                client.settimeout(0.05)
                client.recv(1000)
        found.log_is_sound(target)
    found.facts["answers"] = answers
    refused = {*answers.values()} == {"INVALID_TOPIC_EXCEPTION"}
    found.hold(f"no such topic is created: {answers}", refused)
    found.served(witness)
    return found


def internal_topics(directory: Path, size: int) -> Finding:
    """Produce to, and delete, the topics in which the broker keeps its state."""
    found = Finding("internal topics")
    answers: dict[str, set[str]] = {}
    with (
        Target(directory) as target,
        Witness(target) as witness,
        closing(waited(target)) as client,
    ):
        for key_type in (0, 1):
            ask(client, FindCoordinatorRequest(key_type=key_type, coordinator_keys=["k"]))
        for index in range(4 * size):
            for topic in INTERNAL:
                outcomes = produced(client, topic, index % 4).name
                answers.setdefault(topic, set()).add(outcomes)
        for topic in INTERNAL:
            request = DeleteTopicsRequest(topics=[DeleteTopicState(name=topic)])
            response = ask(client, request)
            assert isinstance(response, DeleteTopicsResponse)
            answers[topic].add(ErrorCode(response.responses[0].error_code).name)
        log_of_controllers = create(client, "__cluster_metadata", 1)
    found.facts["answers"] = {topic: sorted(codes) for topic, codes in answers.items()}
    refused = all(codes == {"INVALID_TOPIC_EXCEPTION"} for codes in answers.values())
    found.hold(f"internal topics are neither written nor deleted: {answers}", refused)
    found.hold(
        "the controllers' log is not created as a topic",
        log_of_controllers == ErrorCode.INVALID_REQUEST,
    )
    found.served(witness)
    return found


def hostile_terminals(directory: Path, size: int) -> Finding:
    """Produce records with terminal control sequences in keys, values, headers, and show them."""
    found, raw = Finding("hostile terminals"), HOSTILE.encode()
    with Target(directory) as target, Witness(target) as witness:
        with closing(waited(target)) as client:
            create(client, "t", 1)
            data = encode_batch([(1, raw, raw, ((HOSTILE, raw),))])
            found.hold("the record is written", produced(client, "t", 0, data) == ErrorCode.NONE)
        commands = [
            ["consume", "t", "--from-beginning"],
            ["groups", "describe", HOSTILE],
            ["topics", "describe", HOSTILE],
            ["topics", "list"],
            ["groups", "list"],
        ]
        for command in commands[: 2 * size]:
            text = output_of(target, command)
            escapes = [each for each in CONTROLS if each in text]
            found.hold(f"{command[:2]} shows no control characters: {escapes}", not escapes)
    found.served(witness)
    return found


def output_of(target: Target, command: list[str]) -> str:
    """Return the output of a streamlog command."""
    process = subprocess.Popen(
        [sys.executable, "-m", "streamlog", *command, "--log", f"kafka://{target.address}"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    assert process.stdout is not None
    first = process.stdout.readline()  # `consume` runs until it is stopped.
    process.send_signal(signal.SIGINT)
    return (first + process.communicate(timeout=60)[0]).decode(errors="replace")


def scram_timing(directory: Path, size: int) -> Finding:
    """Log in as existing and missing users: equal answers, after equal times."""
    found = Finding("SCRAM timing")
    times: dict[str, list[float]] = {"admin": [], "nobody": []}
    salts: dict[str, set[bytes]] = {"admin": set(), "nobody": set()}
    with Target(directory, settings=SASL) as target:
        for _ in range(60 * size):
            for user, took in times.items():
                with closing(target.connect()) as client:
                    ask(client, SaslHandshakeRequest(mechanism="SCRAM-SHA-256"))
                    mine = ScramClient(ScramMechanism.SCRAM_SHA_256, user, "wrong", nonce="n")
                    began_s = time.perf_counter()
                    first = exchanged(client, mine.first())
                    second = exchanged(client, mine.final(first.auth_bytes))
                    took.append(time.perf_counter() - began_s)
                    salts[user].add(first.auth_bytes.partition(b",")[2])
                    found.hold("a wrong password is refused", second.error_code != ErrorCode.NONE)
        found.hold("the broker lives", target.is_alive)
    medians = {user: statistics.median(took) * 1000 for user, took in times.items()}
    found.facts["median_ms"] = {user: round(each, 3) for user, each in medians.items()}
    found.hold(
        "a user name has one salt, real or invented", {len(each) for each in salts.values()} == {1}
    )
    iterations = {each.rpartition(b"i=")[2] for some in salts.values() for each in some}
    found.hold("iterations do not reveal which users exist", len(iterations) == 1)
    spread_ms = statistics.quantiles(times["admin"], n=4)[2] * 1000 - medians["admin"]
    apart_ms = abs(medians["admin"] - medians["nobody"])
    found.hold(
        f"times do not reveal which users exist: {apart_ms:.3f} ms",
        apart_ms <= max(spread_ms * 2, 0.5),
    )
    return found


def exchanged(client: socket.socket, data: bytes) -> SaslAuthenticateResponse:
    """Exchange one step of the mechanism."""
    response = ask(client, SaslAuthenticateRequest(auth_bytes=data))
    assert isinstance(response, SaslAuthenticateResponse)
    return response


def memory_before_login(directory: Path, size: int) -> Finding:
    """Send requests of nearly the largest size from clients that never authenticate."""
    found, count, part = Finding("memory before login"), 100 * size, 400_000
    with Target(directory, settings=SASL) as target, Witness(target) as witness:
        time.sleep(0.2)
        before = target.memory_bytes()
        with many(target, count) as connections:
            for each in connections:
                each.setblocking(False)
                with suppress(OSError):
                    each.sendall(struct.pack(">i", 500_000) + bytes(part))
            time.sleep(1)
            grown = target.memory_bytes() - before
    found.facts |= {"sent_mib": count * part >> 20, "held_mib": round(grown / 2**20, 1)}
    found.hold("all connections together hold little memory", grown < (24 << 20) + count * 160_000)
    # A well-behaved client can begin to authenticate, however many others wait.
    found.served(witness)
    return found


@contextmanager
def many(target: Target, count: int) -> Iterator[list[socket.socket]]:
    """Open connections that send nothing."""
    connections: list[socket.socket] = []
    try:
        for _ in range(count):
            with suppress(OSError):
                connections.append(target.connect())
        yield connections
    finally:
        for each in connections:
            each.close()


def waited(target: Target) -> socket.socket:
    """Return a connection that is served, as a client gets it that retries."""
    end_s = time.monotonic() + 20
    while time.monotonic() < end_s:
        client = target.connect()
        try:
            ask(client, ApiVersionsRequest())
        except OSError:
            client.close()
            time.sleep(0.05)
        else:
            return client
    raise AssertionError("the broker serves no connection any more")


def create(client: socket.socket, name: str, partitions: int) -> ErrorCode:
    """Create a topic, and return the error code."""
    topic = CreatableTopic(name=name, num_partitions=partitions, replication_factor=1)
    response = ask(client, CreateTopicsRequest(topics=[topic], timeout_ms=20_000))
    assert isinstance(response, CreateTopicsResponse)
    return ErrorCode(response.topics[0].error_code)


def produced(client: socket.socket, topic: str, index: int, data: bytes = b"") -> ErrorCode:
    """Produce a batch, and return the error code. Raises ConnectionError if the broker hangs up."""
    request = produce_request(data or encode_batch([(1, b"k", b"v", ())]), index=index, topic=topic)
    api = api_of(type(request))
    client.sendall(b"".join(encode_request(api, PRODUCE_BY_NAME, 0, "attacker", request)))
    (size,) = struct.unpack(">i", received(client, 4))
    response = decode_response(api, PRODUCE_BY_NAME, received(client, size))[1]
    assert isinstance(response, ProduceResponse)
    return ErrorCode(response.responses[0].partition_responses[0].error_code)


PRODUCE_BY_NAME = 9
"""A version of Produce that identifies topics by name."""

ATTACKS: dict[str, Callable[[Path, int], Finding]] = {
    "descriptors": descriptors,
    "half-open": half_open,
    "slowloris": slowloris,
    "frames": garbage_frames,
    "batches": garbage_batches,
    "names": bad_names,
    "internal": internal_topics,
    "terminals": hostile_terminals,
    "timing": scram_timing,
    "memory": memory_before_login,
}
