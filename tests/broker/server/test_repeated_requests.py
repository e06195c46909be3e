"""Repeated requests are answered as if the codec had decoded each one.

A client sends equal bytes to two brokers. One recognizes repeated requests by their bytes
(`produce_runs`, `fetch_patterns`): the fast way. The other decodes every request: the full way.
Whatever the client's principal, ACLs and quotas, both brokers write equal bytes at equal times,
close the connection after the same request, and agree on their logs, files and quota usage.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from unittest.mock import patch

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from streamlog import repeated
from streamlog.broker.broker import Broker
from streamlog.broker.config.broker import BrokerConfig
from streamlog.broker.config.security import SecurityConfig
from streamlog.broker.security.authentication import Bearer
from streamlog.broker.security.principals import IN_PROCESS, RequestContext
from streamlog.broker.server import connection as connection_module
from streamlog.broker.server.connection import Client, Connection
from streamlog.broker.server.connections import Connections
from streamlog.broker.server.sasl_handshake import SaslHandshake
from streamlog.broker.storage.disk.memory_files import MemoryFiles
from streamlog.clock import ManualClock
from streamlog.protocol.acls import Operation, Pattern, Permission, ResourceType
from streamlog.protocol.api_table import api_of
from streamlog.protocol.frame import Request
from streamlog.protocol.messages.cluster_metadata import ApiVersionsRequest
from streamlog.protocol.messages.produce_and_fetch import FetchRequest, FetchTopic
from streamlog.protocol.messages.sasl_acls_quotas import (
    AclCreation,
    AlterClientQuotasRequest,
    CreateAclsRequest,
    DeleteAclsFilter,
    DeleteAclsRequest,
    QuotaAlteration,
    QuotaEntity,
    QuotaOperation,
    SaslAuthenticateRequest,
    SaslHandshakeRequest,
)
from streamlog.protocol.schema import Message
from streamlog.records.batch import encode_batch
from streamlog.records.compression import Compression
from streamlog.replace import replace
from tests.broker.node import at, batch, create, fetch_request, produce_request
from tests.broker.server.virtual_wire import WALL_MS, Inline, VirtualLoop, Wire, framed

TOPICS = ("t", "other", "nowhere", "__consumer_offsets")
NAMED = 12
SESSION_MS = 60_000
BYTES_PER_S = 20_000
TOPIC_ID_MARK = b"id-of-the-topic!"
LISTENERS = ("plain", "tls", "sasl")


# ---- what a client does ----


@dataclass(frozen=True)
class Produce:
    topic: str
    size_bytes: int = 100
    kind: str = "plain"
    acks: int = -1
    version: int = 9
    client_id: str = "c"

    def frame(self, number: int, _: bytes) -> bytes:
        value = bytes(self.size_bytes)
        records: bytes | None = batch(value)
        if self.kind == "zstd":
            records = batch(value, codec=Compression.ZSTD)
        elif self.kind == "transactional":
            rows = [(1_000, None, value, ())]
            records = encode_batch(
                rows, transactional=True, producer_id=7, producer_epoch=0, base_sequence=0
            )
        elif self.kind == "corrupt":
            good = batch(value)
            records = bytes([*good[:-1], good[-1] ^ 1])
        elif self.kind == "empty":
            records = b""
        request = produce_request(records, topic=self.topic, acks=self.acks)
        return framed(request, number, self.version, self.client_id)


@dataclass(frozen=True)
class Fetch:
    topic: str
    offset: int = 0
    version: int = NAMED
    max_wait_ms: int = 0
    min_bytes: int = 1
    client_id: str = "c"

    def frame(self, number: int, topic_id: bytes) -> bytes:
        request = fetch_request(
            at(self.offset, max_bytes=2_000),
            topic=self.topic,
            max_wait_ms=self.max_wait_ms,
            min_bytes=self.min_bytes,
        )
        if self.version > NAMED:
            partitions = request.topics[0].partitions
            request.topics = [FetchTopic(topic_id=topic_id, partitions=partitions)]
        return framed(request, number, self.version, self.client_id)


@dataclass(frozen=True)
class Versions:
    def frame(self, number: int, _: bytes) -> bytes:
        return framed(ApiVersionsRequest(), number, 0, "c")


@dataclass(frozen=True)
class Reauthenticate:
    """Authenticate again (KIP-368), or send only the handshake if `half`."""

    user: str = "alice"
    half: bool = False

    def frame(self, number: int, _: bytes) -> bytes:
        hello = framed(SaslHandshakeRequest(mechanism="OAUTHBEARER"), number, 1, "c")
        return hello if self.half else hello + framed(token_of(self.user), number, 1, "c")


@dataclass(frozen=True)
class Pass:
    ms: int


@dataclass(frozen=True)
class Allow:
    topic: str
    operation: Operation
    permission: Permission = Permission.ALLOW
    principal: str = "User:alice"


@dataclass(frozen=True)
class Forget:
    """Remove every ACL of a topic."""

    topic: str


@dataclass(frozen=True)
class Quota:
    key: str
    bytes_per_s: int | None


Said = Produce | Fetch | Versions | Reauthenticate
Act = tuple[Said, ...] | Pass | Allow | Forget | Quota
"""Requests that arrive together, or an event between them."""


def token_of(user: str) -> SaslAuthenticateRequest:
    return SaslAuthenticateRequest(auth_bytes=f"n,,\x01auth=Bearer {user}\x01\x01".encode())


# ---- what a broker does ----


@dataclass
class Outcome:
    """Everything observable of a broker's work."""

    sent: list[tuple[int, bytes]] = field(default_factory=list)
    ended: bool = False
    lines: list[str] = field(default_factory=list)
    logs: list[bytes] = field(default_factory=list)
    used_bytes: object = None
    repeated: int = 0
    """How many requests took the fast way; not compared."""

    def seen(self) -> object:
        by_time: dict[int, bytes] = {}
        for at_ms, data in self.sent:
            by_time[at_ms] = by_time.get(at_ms, b"") + data
        return by_time, self.ended, self.lines, self.logs, self.used_bytes


class NoPatterns:
    """Patterns of a broker that recognizes no request by its bytes."""

    def peek(self, _: object) -> None:
        return None

    def learn(self, _: memoryview, __: Request) -> None:
        """Do nothing."""


@contextmanager
def full_way() -> Iterator[None]:
    with (
        patch.object(connection_module, "ProducePatterns", NoPatterns),
        patch.object(connection_module, "fetch_pattern", lambda *_: None),
    ):
        yield


def live(listener: str, acts: Sequence[Act], *, has_acls: bool, flush: str, fast: bool) -> Outcome:
    clock = ManualClock(wall_ms=WALL_MS)
    loop = VirtualLoop(clock)
    outcome = Outcome()
    handler = logging.Handler()
    handler.emit = lambda record: outcome.lines.append(record.getMessage())  # type: ignore[method-assign]
    repeated.forget()
    logger = logging.getLogger("streamlog")
    logger.addHandler(handler)
    try:
        with pytest.MonkeyPatch.context() as patches:
            if fast:
                count_repeats(patches, outcome)
            with full_way() if not fast else patches.context():
                config = config_of(flush, has_acls=has_acls)
                loop.run_until_complete(play(listener, acts, outcome, clock, config))
    finally:
        logger.removeHandler(handler)
        loop.close()
    return outcome


def count_repeats(patches: pytest.MonkeyPatch, outcome: Outcome) -> None:
    begin_run, begin_repeat = Broker.begin_run, Broker.begin_repeat

    def run(self: Broker, *of: object) -> object:
        answer = begin_run(self, *of)  # type: ignore[arg-type]  # as it was called
        outcome.repeated += answer is not None
        return answer

    def repeat(self: Broker, *of: object) -> object:
        answer = begin_repeat(self, *of)  # type: ignore[arg-type]  # as it was called
        outcome.repeated += answer is not None
        return answer

    patches.setattr(Broker, "begin_run", run)
    patches.setattr(Broker, "begin_repeat", repeat)


def config_of(flush: str, *, has_acls: bool) -> BrokerConfig:
    security = SecurityConfig(
        authorizer="standard" if has_acls else "none",
        sasl_mechanisms="OAUTHBEARER",
        unsecured_tokens=True,
        failed_authentication_delay_ms=0,
    )
    return BrokerConfig(flush=flush, security=security)


async def play(
    listener: str,
    acts: Sequence[Act],
    outcome: Outcome,
    clock: ManualClock,
    config: BrokerConfig,
) -> None:
    async with Broker.open(
        "data", config=config, files=MemoryFiles(), clock=clock, threads=lambda _: Inline()
    ) as broker:
        create(broker, "t")
        create(broker, "other", compression_type="zstd")
        topic_id = broker._partitions.topic_id("t") or bytes(16)
        connections: Connections[Client] = Connections(
            lambda: broker.directory.config.connections,
            quota_table=lambda: broker.directory.altered.quotas,
        )
        gate = None
        if listener == "sasl":
            gate = SaslHandshake(
                config.security,
                users=lambda: broker.users,
                tokens=lambda token, wall_ms: Bearer(token, wall_ms + SESSION_MS),
                clock=clock,
            )
        client = Connection(
            broker, listener="L", endpoint=("127.0.0.1", 9092), connections=connections, gate=gate
        )
        wire = Wire("User:alice" if listener == "tls" else None)
        wire.connect(client)
        if listener == "sasl":
            wire.deliver(Reauthenticate().frame(0, topic_id))
        number = 0
        for act in acts:
            if isinstance(act, tuple):
                frames = []
                for said in act:
                    number += 1
                    frames.append(said.frame(number, topic_id))
                wire.deliver(b"".join(frames))
            else:
                await change(broker, act)
                connections.sweep()
            await asyncio.sleep(0.001)  # Time for answers that wait for a flush.
        await asyncio.sleep(300)
        outcome.sent = [(ms, data.replace(topic_id, TOPIC_ID_MARK)) for ms, data in wire.sent]
        outcome.ended = wire.ended
        outcome.lines = [line.replace(topic_id.hex(), "ID") for line in outcome.lines]
        outcome.used_bytes = {
            key: dict(bucket._buckets) for key, bucket in connections.quotas._buckets.items()
        }
        outcome.logs = [stored(broker, topic) for topic in ("t", "other")]
        connections.close()
        wire.close()
        await asyncio.sleep(0)


def stored(broker: Broker, topic: str) -> bytes:
    log = broker._partitions.get(topic, 0).log
    return bytes(memoryview(log.range(0, max_bytes=1 << 30)))  # type: ignore[arg-type]  # of files in memory


async def change(broker: Broker, act: Pass | Allow | Forget | Quota) -> None:
    match act:
        case Pass(ms):
            await asyncio.sleep(ms / 1000)
        case Allow(topic, operation, permission, principal):
            acl = AclCreation(
                resource_type=ResourceType.TOPIC,
                resource_name=topic,
                resource_pattern_type=Pattern.LITERAL,
                principal=principal,
                host="*",
                operation=operation,
                permission_type=permission,
            )
            await do(broker, CreateAclsRequest(creations=[acl]))
        case Forget(topic):
            every = DeleteAclsFilter(
                resource_type_filter=ResourceType.TOPIC,
                resource_name_filter=topic,
                pattern_type_filter=Pattern.LITERAL,
                principal_filter=None,
                host_filter=None,
                operation=Operation.ANY,
                permission_type=Permission.ANY,
            )
            await do(broker, DeleteAclsRequest(filters=[every]))
        case Quota(key, bytes_per_s):
            op = QuotaOperation(key=key, value=float(bytes_per_s or 0), remove=bytes_per_s is None)
            entity = [QuotaEntity(entity_type="client-id", entity_name="c")]
            altered = QuotaAlteration(entity=entity, ops=[op])
            await do(broker, AlterClientQuotasRequest(entries=[altered]))


async def do(broker: Broker, request: Message) -> None:
    context = RequestContext(1, "tester", "/127.0.0.1", principal=IN_PROCESS)
    await broker.handle(request, context)


# ---- the property ----

PRODUCES = st.builds(
    Produce,
    topic=st.sampled_from(TOPICS),
    size_bytes=st.sampled_from([0, 100, 100, 100, 3_000, 9_000]),
    kind=st.sampled_from(["plain"] * 5 + ["zstd", "transactional", "corrupt", "empty"]),
    acks=st.sampled_from([-1, -1, -1, 1, 0]),
    version=st.sampled_from([9, 9, 9, 7, 6, 11]),
    client_id=st.sampled_from(["c", "c", "c", "d"]),
)
FETCHES = st.builds(
    Fetch,
    topic=st.sampled_from(TOPICS),
    offset=st.integers(0, 12),
    version=st.sampled_from([NAMED, NAMED, 9, 10, 13, api_of(FetchRequest).max_version]),
    max_wait_ms=st.sampled_from([0, 0, 500]),
    min_bytes=st.sampled_from([1, 1, 0, 150, 10_000]),
    client_id=st.sampled_from(["c", "c", "d"]),
)


def repeats(said: st.SearchStrategy[Said]) -> st.SearchStrategy[tuple[Said, ...]]:
    """Return a strategy for runs of equal requests that arrive together."""
    some = st.tuples(said, st.integers(1, 6)).map(lambda pair: (pair[0],) * pair[1])
    return st.lists(some, min_size=1, max_size=4).map(lambda runs: sum(runs, ()))


ACTS: st.SearchStrategy[Act] = st.one_of(
    repeats(PRODUCES),
    repeats(PRODUCES),
    repeats(FETCHES),
    repeats(st.one_of(PRODUCES, FETCHES)),
    st.just((Versions(),)),
    st.builds(Reauthenticate, st.sampled_from(["alice"] * 4 + ["bob"]), st.booleans()).map(
        lambda each: (each,)
    ),
    st.builds(Pass, st.sampled_from([1, 200, 5_000, SESSION_MS - 1, SESSION_MS])),
    st.builds(
        Allow,
        st.sampled_from(["t", "other", "*"]),
        st.sampled_from([Operation.WRITE, Operation.READ, Operation.ALL]),
        st.sampled_from([Permission.ALLOW, Permission.ALLOW, Permission.DENY]),
        st.sampled_from(["User:alice", "User:*", "User:ANONYMOUS"]),
    ),
    st.builds(Forget, st.sampled_from(["t", "other", "*"])),
    st.builds(
        Quota,
        st.sampled_from(["producer_byte_rate", "consumer_byte_rate"]),
        st.sampled_from([BYTES_PER_S, BYTES_PER_S, 1_000, None]),
    ),
)
EVERYTHING = Allow("*", Operation.ALL, principal="User:*")
BUSY = (Produce("t"),) * 6
QUIET = (Fetch("t", 0), Fetch("t", 1), Fetch("t", 2))


def both(
    listener: str, acts: Sequence[Act], *, has_acls: bool = True, flush: str = "os"
) -> Outcome:
    """Assert that the fast and the full way have equal outcomes; return the fast way's."""
    full = live(listener, acts, has_acls=has_acls, flush=flush, fast=False)
    fast = live(listener, acts, has_acls=has_acls, flush=flush, fast=True)
    assert fast.seen() == full.seen()
    assert full.repeated == 0
    return fast


@settings(max_examples=20, deadline=None)
@given(
    listener=st.sampled_from(LISTENERS),
    has_acls=st.booleans(),
    flush=st.sampled_from(["os", "always"]),
    begin=st.sampled_from([EVERYTHING, Allow("t", Operation.WRITE), Pass(1)]),
    acts=st.lists(ACTS, min_size=1, max_size=10),
)
@example(
    listener="sasl", has_acls=True, flush="os", begin=EVERYTHING, acts=[BUSY, Forget("*"), BUSY]
)
@example(
    listener="sasl",
    has_acls=True,
    flush="os",
    begin=EVERYTHING,
    acts=[BUSY, Pass(SESSION_MS), BUSY],
)
def test_the_fast_way_equals_the_full_way(
    listener: str, has_acls: bool, flush: str, begin: Act, acts: list[Act]
) -> None:
    if flush == "always":
        # Where a Produce with acks=0 ends the connection, answers that wait for a flush are lost.
        # How many depends on timing, so acks=0 is replaced.
        acts = [with_answers(act) for act in acts]
    if not has_acls:
        acts = [act for act in acts if not isinstance(act, Allow | Forget)]
        begin = Pass(1)
    both(listener, [begin, *acts], has_acls=has_acls, flush=flush)


def with_answers(act: Act) -> Act:
    if not isinstance(act, tuple):
        return act
    return tuple(replace(each, acks=1) if isinstance(each, Produce) else each for each in act)


@pytest.mark.parametrize("has_acls", [False, True])
@pytest.mark.parametrize("listener", LISTENERS)
def test_every_listener_takes_the_fast_way(listener: str, has_acls: bool) -> None:
    acts: list[Act] = [EVERYTHING] if has_acls else []
    acts += [Quota("producer_byte_rate", BYTES_PER_S), Quota("consumer_byte_rate", BYTES_PER_S)]
    outcome = both(listener, [*acts, BUSY[:1], BUSY, QUIET], has_acls=has_acls)
    assert outcome.repeated == 3, "a run, and two Fetches after the first"


def test_a_new_denial_applies_to_known_requests() -> None:
    acts: list[Act] = [EVERYTHING, BUSY, Allow("t", Operation.WRITE, Permission.DENY), BUSY, QUIET]
    outcome = both("sasl", acts)
    log, _ = outcome.logs
    assert log.count(bytes(100)) == len(BUSY)
    acts = [EVERYTHING, QUIET, Allow("t", Operation.READ, Permission.DENY), QUIET]
    both("sasl", acts)


@pytest.mark.parametrize("after", [Pass(SESSION_MS), (Reauthenticate(half=True),)])
def test_an_ended_session_stops_the_fast_way(after: Act) -> None:
    outcome = both("sasl", [EVERYTHING, BUSY, QUIET, after, BUSY])
    assert outcome.ended
    log, _ = outcome.logs
    assert log.count(bytes(100)) == len(BUSY)
    assert both("sasl", [EVERYTHING, QUIET, after, QUIET]).ended


def test_a_renewed_session_keeps_the_fast_way() -> None:
    outcome = both("sasl", [EVERYTHING, BUSY, (Reauthenticate(),), Pass(SESSION_MS - 10), BUSY])
    assert not outcome.ended
    assert outcome.repeated == 2


def test_a_run_ends_at_the_quota() -> None:
    quota = Quota("producer_byte_rate", BYTES_PER_S)
    outcome = both("plain", [EVERYTHING, quota, (Produce("t", 3_000),) * 15])
    assert len({ms for ms, _ in outcome.sent}) > 3, "the client was throttled in between"
    assert outcome.repeated
    quota = Quota("consumer_byte_rate", 1_000)
    acts: list[Act] = [EVERYTHING, (Produce("t", 900),) * 3, quota]
    acts += [(Fetch("t", n),) for n in (0, 1, 2)]
    assert both("plain", acts).repeated > 1
