"""What a client is tried with: each feature one program, each pass something that was compared.

A program takes a `Trial`, fails by an assertion or by the client's own error, and is otherwise a
pass. What it needs of the broker is named by API keys, so that a broker without them is told from
one with a fault.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from functools import cached_property

from conformance.client import (
    PATIENCE_S,
    Administrator,
    Client,
    Got,
    Reader,
    Sent,
    Writer,
    not_offered,
)
from conformance.schemas import (
    AVRO,
    AVRO_TEXT,
    JSON,
    PROTOBUF,
    ConfluentSchemas,
    OwnSchemas,
    Refused,
    Sale,
)
from conformance.witness import PARTITIONS, Witness
from streamlog.records.compression import Compression

COUNT = 24
EACH = COUNT // PARTITIONS
BEGIN_MS = 1_700_000_000_000
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
PAUSE_S = 0.05
PUSH_INTERVAL_MS = 500

PRODUCE, FETCH, LIST_OFFSETS, METADATA = 0, 1, 2, 3
CLASSIC = frozenset({8, 9, 10, 11, 12, 13, 14})
INIT_PRODUCER_ID = 22
TRANSACTIONS = frozenset({INIT_PRODUCER_ID, 24, 25, 26, 28})


def records(count: int = COUNT, *, tag: str = "") -> list[Sent]:
    """Round the partitions, a second apart, with keys, a header, and text that compresses."""
    return [
        Sent(
            number % PARTITIONS,
            b"key %d" % number,
            f"{tag}value {number} ".encode() * 20,
            BEGIN_MS + 1000 * number,
            (("from", b"conformance"),),
        )
        for number in range(count)
    ]


def by_partition(found: Sequence[Sent]) -> dict[int, list[Sent]]:
    """In the order in which they came, partition by partition."""
    shares: dict[int, list[Sent]] = {}
    for record in found:
        shares.setdefault(record.partition, []).append(record)
    return shares


@dataclass(frozen=True, slots=True)
class Feature:
    """A column of the table."""

    name: str
    program: Callable[[Trial], None]
    needs: frozenset[int]
    """Keys of the APIs that it can't do without."""
    shows_pages: bool = False
    """Whether the broker has to show its metrics on a page, too."""
    has_schemas: bool = False
    """Whether the cluster has to serve a schema registry, too."""


class Trial:
    """One client, one cluster, one feature."""

    def __init__(self, client: Client, name: str, *, is_steady: bool = True) -> None:
        self.is_steady = is_steady
        """Whether no broker is stopped meanwhile: one that was may have appended what it has not
        answered, so that a writer without idempotence writes it again."""
        self.client = client
        self.witness = Witness(client.address)
        self.name = name

    @cached_property
    def topic(self) -> str:
        """A topic of its own, made when it is first asked for."""
        self.witness.make_topic(self.name)
        return self.name

    def same(self, wrote: Sequence[Sent], found: Sequence[Sent]) -> None:
        """Every record once, in order within its partition, with all that was given to it."""
        if not self.client.keeps_timestamps:
            wrote = [each._replace(timestamp_ms=0) for each in wrote]
            found = [each._replace(timestamp_ms=0) for each in found]
        wanted, got = by_partition(wrote), by_partition(found)
        for partition in range(PARTITIONS):
            here, there = wanted.get(partition, []), got.get(partition, [])
            assert len(here) == len(there), (
                f"partition {partition}: {len(there)} records instead of {len(here)}"
                f"{_difference(here, there)}"
            )
            for number, pair in enumerate(zip(here, there, strict=True)):
                assert pair[0] == pair[1], f"partition {partition}, record {number}: {pair}"

    def written(self, wrote: Sequence[Sent]) -> None:
        """The log holds just these."""
        self.same(wrote, [got.record for got in self.witness.records(self.topic)])

    def read(self, reader: Reader, count: int) -> list[Got]:
        """Poll until so many have come, then once more for what must not come."""
        found: list[Got] = []
        for _ in patience(f"{count} records"):
            found += reader.poll()
            if len(found) >= count:
                return found + reader.poll()
        return found


def _difference(wanted: Sequence[Sent], got: Sequence[Sent]) -> str:
    """What is missing, and what is there more than once, each by its tag and key."""
    missing, extra = Counter(map(_label, wanted)), Counter(map(_label, got))
    without, beside = sorted((missing - extra).elements()), sorted((extra - missing).elements())
    return f": without {without}, with {beside}"


def _label(record: Sent) -> str:
    return (record.value or b"").decode().partition(" ")[0] + f" {(record.key or b'').decode()}"


def patience(what: str) -> Iterator[None]:
    """Try again until the time is over."""
    until = time.monotonic() + PATIENCE_S
    while time.monotonic() < until:
        yield
        time.sleep(PAUSE_S)
    raise AssertionError(f"no {what} within {PATIENCE_S} s")


def wait(condition: Callable[[], bool], what: str) -> None:
    """Until it is so."""
    for _ in patience(what):
        if condition():
            return


def produce(trial: Trial) -> None:
    """Acknowledged offsets are the ones in the log; acks=1 and acks=0 arrive where nobody stops."""
    wrote = records()
    with closing(trial.client.writer(idempotent=not trial.is_steady)) as writer:
        offsets = writer.write(trial.topic, wrote)
    trial.written(wrote)
    if offsets:
        wanted = [number // PARTITIONS for number in range(COUNT)]
        assert offsets == wanted, f"the acknowledged offsets are {offsets}"
    for acks in ("1", "0") if trial.is_steady else ():
        more = records(PARTITIONS, tag=f"acks={acks} ")
        with closing(trial.client.writer(acks=acks)) as writer:
            writer.write(trial.topic, more)
        wrote += more
        # Nobody answers for acks=0, so it may still be on its way.
        for _ in patience(f"record with acks={acks}"):
            if len(trial.witness.records(trial.topic)) >= len(wrote):
                break
    trial.written(wrote)


def codecs(trial: Trial) -> None:
    """Batches of each codec arrive in it, and are read again."""
    wrote: list[Sent] = []
    for codec in CODECS:
        more = records(tag=f"{codec} ")
        with closing(trial.client.writer(codec=codec, idempotent=not trial.is_steady)) as writer:
            writer.write(trial.topic, more)
        wrote += more
    trial.written(wrote)
    found = {each.codec for each in trial.witness.batches(trial.topic, 0)}
    missing = {Compression.parse(codec) for codec in CODECS} - found
    assert not missing, f"no batch is compressed with {missing}"
    with closing(trial.client.reader()) as reader:
        reader.assign(trial.topic, dict.fromkeys(range(PARTITIONS), 0))
        trial.same(wrote, [got.record for got in trial.read(reader, len(wrote))])


def consume(trial: Trial) -> None:
    """All records in order with their offsets, then from the middle of a batch."""
    wrote = records()
    trial.witness.write(trial.topic, wrote)
    with closing(trial.client.reader()) as reader:
        reader.assign(trial.topic, dict.fromkeys(range(PARTITIONS), 0))
        found = trial.read(reader, COUNT)
        trial.same(wrote, [got.record for got in found])
        offsets = [got.offset for got in found if got.record.partition == 1]
        assert offsets == list(range(EACH)), f"the offsets are {offsets}"
    with closing(trial.client.reader()) as reader:
        reader.assign(trial.topic, {2: 3})
        rest = [each for each in wrote if each.partition == 2][3:]
        trial.same(rest, [got.record for got in trial.read(reader, len(rest))])


def bounds(trial: Trial) -> None:
    """Where a partition begins and ends."""
    trial.witness.write(trial.topic, records())
    with closing(trial.client.reader()) as reader:
        found = reader.bounds(trial.topic, 3)
        assert found == (0, EACH), f"begin and end are {found}"


def times(trial: Trial) -> None:
    """The first record of a time, in the middle of a batch."""
    trial.witness.write(trial.topic, records())
    asked_ms = BEGIN_MS + 1000 * (PARTITIONS * 2 + 1) + 1
    with closing(trial.client.reader()) as reader:
        found = reader.offset_at(trial.topic, 1, asked_ms)
        assert found == 3, f"the offset is {found} instead of 3"


def _share(trial: Trial, *, coordinator_assigns: bool) -> None:
    """Two members, one leaves, another comes back: each record is read once."""

    def member() -> Reader:
        return trial.client.reader(group=trial.name, coordinator_assigns=coordinator_assigns)

    everything = set(range(PARTITIONS))
    found: list[Got] = []
    wrote = records(tag="alone ")
    trial.witness.write(trial.topic, wrote)
    with closing(member()) as first:
        first.subscribe(trial.topic)
        found += trial.read(first, COUNT)
        assert first.owns() == everything, f"one member has {first.owns()}"
        first.commit()
        with closing(member()) as second:
            second.subscribe(trial.topic)
            for _ in patience("rebalance to two and two"):
                found += second.poll() + first.poll()
                if len(first.owns()) == len(second.owns()) == PARTITIONS // 2:
                    break
            assert first.owns() | second.owns() == everything
            both = records(tag="both ")
            trial.witness.write(trial.topic, both)
            shares: dict[Reader, list[Got]] = {first: [], second: []}
            for _ in patience("record for each member"):
                for reader in shares:
                    shares[reader] += reader.poll()
                if sum(map(len, shares.values())) >= COUNT:
                    break
            for reader, share in shares.items():
                assert {got.record.partition for got in share} == reader.owns()
                found += share
                reader.commit()
        for _ in patience("rebalance to one"):
            found += first.poll()
            if first.owns() == everything:
                break
        trial.same(wrote + both, [got.record for got in found])
        first.commit()
    _comes_back(trial, member())


def _comes_back(trial: Trial, again: Reader) -> None:
    """Who comes into the group later goes on where it has stopped."""
    last = records(tag="later ")
    trial.witness.write(trial.topic, last)
    with closing(again):
        again.subscribe(trial.topic)
        trial.same(last, [got.record for got in trial.read(again, COUNT)])


def group_of_one(trial: Trial) -> None:
    """One member, and after it another: what the one has committed the other does not read."""
    _committed_group(trial).close()
    _comes_back(trial, trial.client.reader(group=trial.name))


def group(trial: Trial) -> None:
    """A group whose members assign."""
    _share(trial, coordinator_assigns=False)


def server_group(trial: Trial) -> None:
    """A group whose coordinator assigns (KIP-848)."""
    _share(trial, coordinator_assigns=True)


def idempotence(trial: Trial) -> None:
    """Batches are numbered without a gap, over several requests."""
    wrote: list[Sent] = []
    with closing(trial.client.writer(idempotent=True)) as writer:
        for number in range(3):
            more = records(tag=f"{number} ")
            writer.write(trial.topic, more)
            wrote += more
    trial.written(wrote)
    follows: dict[int, int] = {}
    for batch in trial.witness.batches(trial.topic, 0):
        assert batch.producer_id >= 0, "a batch carries no producer id"
        expected = follows.get(batch.producer_id, 0)
        assert batch.base_sequence == expected, f"{batch.base_sequence} follows {expected}"
        follows[batch.producer_id] = expected + batch.record_count


def _transactional(trial: Trial, codec: str = "none") -> Writer:
    writer = trial.client.writer(transactional_id=trial.name, codec=codec)
    writer.start()
    return writer


def transactions(trial: Trial) -> None:
    """Several are committed with each codec: readers of committed records see them all."""
    wrote: list[Sent] = []
    for codec in CODECS:
        with closing(_transactional(trial, codec)) as writer:
            for number in range(3):
                more = records(tag=f"{codec} {number} ")
                writer.begin()
                writer.write(trial.topic, more)
                writer.commit()
                wrote += more
    assert all(batch.producer_id >= 0 for batch in trial.witness.batches(trial.topic, 0))
    with closing(trial.client.reader(committed_only=True)) as reader:
        reader.assign(trial.topic, dict.fromkeys(range(PARTITIONS), 0))
        trial.same(wrote, [got.record for got in trial.read(reader, len(wrote))])


def positions(trial: Trial) -> None:
    """Positions that are committed with a transaction, and none that is aborted with one."""
    with (
        closing(trial.client.reader(group=trial.name)) as reader,
        closing(_transactional(trial)) as writer,
    ):
        for offset, end in ((4, writer.commit), (6, writer.abort)):
            writer.begin()
            writer.write(trial.topic, records())
            writer.send_offset(reader, trial.topic, 1, offset)
            end()
    with closing(trial.client.reader(group=trial.name)) as reader:
        found = reader.committed(trial.topic, 1)
        assert found == 4, f"the position of the transaction is {found} instead of 4"


def aborts(trial: Trial) -> None:
    """Readers of committed records see no aborted one; the others see all."""
    seen = records(tag="seen ")
    with closing(_transactional(trial)) as writer:
        for tag, end in (
            ("lost ", writer.abort),
            ("seen ", writer.commit),
            ("gone ", writer.abort),
        ):
            writer.begin()
            writer.write(trial.topic, records(tag=tag))
            end()
    with closing(trial.client.reader(committed_only=True)) as reader:
        reader.assign(trial.topic, dict.fromkeys(range(PARTITIONS), 0))
        trial.same(seen, [got.record for got in trial.read(reader, COUNT)])
    with closing(trial.client.reader()) as reader:
        reader.assign(trial.topic, dict.fromkeys(range(PARTITIONS), 0))
        assert len(trial.read(reader, 3 * COUNT)) == 3 * COUNT


def fencing(trial: Trial) -> None:
    """The later of two writers with one transactional id goes on, the earlier one is refused."""
    if not trial.client.has_lasting_writers:
        not_offered("two writers at a time")
    late = records(tag="late ")
    with closing(_transactional(trial)) as first:
        first.begin()
        first.write(trial.topic, records(tag="early "))
        with closing(_transactional(trial)) as second:
            second.begin()
            second.write(trial.topic, late)
            second.commit()
        refusal = ""
        try:
            first.commit()
        except Exception as error:  # noqa: BLE001 - each library has its own
            refusal = repr(error)
    assert refusal, "the fenced writer commits"
    reason = refusal.lower()
    assert "fenced" in reason or "epoch" in reason, f"the refusal says {refusal}"
    with closing(trial.client.reader(committed_only=True)) as reader:
        reader.assign(trial.topic, dict.fromkeys(range(PARTITIONS), 0))
        trial.same(late, [got.record for got in trial.read(reader, COUNT)])


def topics(trial: Trial) -> None:
    """Created, listed, grown, deleted."""
    with closing(trial.client.admin()) as admin:
        admin.create_topic(trial.name, 2, {})
        wait(lambda: admin.partitions().get(trial.name) == 2, "topic with 2 partitions")
        admin.add_partitions(trial.name, 3)
        wait(lambda: admin.partitions().get(trial.name) == 3, "topic with 3 partitions")
        admin.delete_topic(trial.name)
        wait(lambda: trial.name not in admin.partitions(), "end of the topic")


def configs(trial: Trial) -> None:
    """Set with the topic, changed later, defaults beside them."""
    with closing(trial.client.admin()) as admin:
        admin.create_topic(trial.name, 1, {"max.message.bytes": "5000"})
        wait(lambda: trial.name in admin.partitions(), "topic")
        found = admin.configs(trial.name)
        assert found["max.message.bytes"] == "5000", f"{found['max.message.bytes']} was set"
        assert "cleanup.policy" in found, f"only {sorted(found)} are listed"
        admin.set_config(trial.name, "retention.ms", "60000")
        found = admin.configs(trial.name)
        kept = {name: found[name] for name in ("max.message.bytes", "retention.ms")}
        assert kept == {"max.message.bytes": "5000", "retention.ms": "60000"}, f"{kept}"


def deletion(trial: Trial) -> None:
    """What is before an offset is deleted, and the log says so."""
    trial.witness.write(trial.topic, records())
    with closing(trial.client.admin()) as admin:
        begins = admin.delete_records(trial.topic, 0, 2)
        assert begins == 2, f"it begins at {begins} instead of 2"
    with closing(trial.client.reader()) as reader:
        reader.assign(trial.topic, {0: 2})
        rest = [each for each in records() if each.partition == 0][2:]
        trial.same(rest, [got.record for got in trial.read(reader, len(rest))])


def _committed_group(trial: Trial) -> Reader:
    trial.witness.write(trial.topic, records())
    reader = trial.client.reader(group=trial.name)
    reader.subscribe(trial.topic)
    trial.read(reader, COUNT)
    reader.commit()
    return reader


def groups(trial: Trial) -> None:
    """Listed, described while somebody is in it and afterwards."""
    with closing(trial.client.admin()) as admin:
        admin.groups()  # Not offered shows before anything is written.
        with closing(_committed_group(trial)):
            assert trial.name in admin.groups(), f"only {admin.groups()} are listed"
            state, members = admin.members(trial.name)
            assert (state, members) == ("stable", 1), f"it is {state} with {members} members"
        wait(lambda: admin.members(trial.name) == ("empty", 0), "empty group")


def group_deletion(trial: Trial) -> None:
    """A group that nobody is in is forgotten."""
    with closing(trial.client.admin()) as admin:
        if type(admin).delete_group is Administrator.delete_group:
            not_offered("delete groups")
        _committed_group(trial).close()
        wait(lambda: trial.name in admin.groups(), "group")
        admin.delete_group(trial.name)
        wait(lambda: trial.name not in admin.groups(), "end of the group")


def group_offsets(trial: Trial) -> None:
    """What a group has committed."""
    with closing(trial.client.admin()) as admin:
        admin.group_offsets(trial.name, trial.topic, PARTITIONS)
        _committed_group(trial).close()
        found = admin.group_offsets(trial.name, trial.topic, PARTITIONS)
        assert found == dict.fromkeys(range(PARTITIONS), EACH), f"{found} is committed"


def moving(trial: Trial) -> None:
    """One position of a group is moved, and the next member begins there."""
    with closing(trial.client.admin()) as admin:
        if type(admin).set_group_offset is Administrator.set_group_offset:
            not_offered("alter the offsets of a group")
        _committed_group(trial).close()
        admin.set_group_offset(trial.name, trial.topic, 1, 2)
        found = admin.group_offsets(trial.name, trial.topic, PARTITIONS)
        assert found == dict.fromkeys(range(PARTITIONS), EACH) | {1: 2}, f"{found} after a move"
    rest = [record for record in records() if record.partition == 1][2:]
    with closing(trial.client.reader(group=trial.name)) as reader:
        reader.subscribe(trial.topic)
        trial.same(rest, [got.record for got in trial.read(reader, len(rest))])


def forgetting(trial: Trial) -> None:
    """One position of a group is deleted, the others stay."""
    with closing(trial.client.admin()) as admin:
        if type(admin).delete_group_offset is Administrator.delete_group_offset:
            not_offered("delete the offsets of a group")
        _committed_group(trial).close()
        admin.delete_group_offset(trial.name, trial.topic, 1)
        found = admin.group_offsets(trial.name, trial.topic, PARTITIONS)
        assert found == dict.fromkeys({0, 2, 3}, EACH), f"{found} is left"


def quotas(trial: Trial) -> None:
    """A rate is set for a client id, and told."""
    with closing(trial.client.admin()) as admin:
        admin.set_quota(trial.name, "producer_byte_rate", 1_000_000.0)
        wanted = {"producer_byte_rate": 1_000_000.0}
        wait(lambda: admin.quotas(trial.name) == wanted, "quota")


def client_metrics(trial: Trial) -> None:
    """A writer pushes metrics once the broker asks for them, as one client."""
    if not trial.client.pushes_metrics:
        not_offered("push metrics")
    trial.witness.make_topic(trial.topic)
    before = trial.witness.pushing()
    trial.witness.subscribe_to_metrics(trial.name, PUSH_INTERVAL_MS)
    with closing(trial.client.writer()) as writer:
        writer.write(trial.topic, records())
        wait(lambda: trial.witness.pushing() > before, "push of metrics")
        new = trial.witness.pushing() - before
        assert len(new) == 1, f"one writer pushes as {len(new)} clients"
    trial.witness.subscribe_to_metrics(trial.name, None)


def subscriptions(trial: Trial) -> None:
    """Subscriptions to metrics of clients: created, listed, described."""
    wanted = {"interval.ms": "60000", "match": "client_id=none", "metrics": "org.apache.kafka."}
    with closing(trial.client.admin()) as admin:
        before = admin.subscriptions()
        admin.set_subscription(trial.name, wanted)
        wait(lambda: admin.subscriptions() == before | {trial.name}, "subscription")
        found = admin.subscription(trial.name)
        assert found == wanted, f"{found} was set"


def log_sizes(trial: Trial) -> None:
    """The sizes of partitions are those of their batches."""
    with closing(trial.client.admin()) as admin:
        if type(admin).log_sizes is Administrator.log_sizes:
            not_offered("describe log directories")
        trial.witness.write(trial.topic, records())
        wanted = {
            partition: sum(
                each.size_bytes for each in trial.witness.batches(trial.topic, partition)
            )
            for partition in range(PARTITIONS)
        }
        # Of several brokers, one that was away fetches what it lacks.
        wait(lambda: admin.log_sizes(trial.topic) == wanted, f"sizes {wanted}")


def in_format(format_: str) -> Callable[[Trial], None]:
    """Return a program: values of a format, with their schema in the registry."""

    def program(trial: Trial) -> None:
        """What the client writes, it and the other library read, and the other way round."""
        mine = trial.client.schemas()
        other = OwnSchemas() if isinstance(mine, ConfluentSchemas) else ConfluentSchemas()
        sales = [Sale(f"shop {number}", number - 5) for number in range(COUNT)]
        values = [mine.to_bytes(format_, trial.topic, sale) for sale in sales]
        assert {value[0] for value in values} == {0}, "a value does not begin with 0x00"
        wrote = [each._replace(value=value) for each, value in zip(records(), values, strict=True)]
        with closing(trial.client.writer()) as writer, closing(trial.client.reader()) as reader:
            writer.write(trial.topic, wrote)
            reader.assign(trial.topic, dict.fromkeys(range(PARTITIONS), 0))
            found = [got.record.value for got in trial.read(reader, COUNT)]
        for library in (mine, other):
            read = [library.from_bytes(format_, trial.topic, value or b"") for value in found]
            assert sorted(read, key=lambda sale: sale.count) == sales
        again = other.to_bytes(format_, trial.topic + ".other", sales[0])
        assert mine.from_bytes(format_, trial.topic + ".other", again) == sales[0]

    return program


def registry(trial: Trial) -> None:
    """Versions of a subject, and one that is refused."""
    client, subject = trial.client.schemas(), f"{trial.name}-value"
    grown = json.loads(AVRO_TEXT)
    grown["fields"].append({"name": "note", "type": "string", "default": ""})
    broken = json.loads(AVRO_TEXT)
    broken["fields"].append({"name": "note", "type": "string"})
    first = client.register(subject, AVRO_TEXT)
    assert client.register(subject, AVRO_TEXT) == first, "a schema has two ids"
    assert json.loads(client.text_of(first)) == json.loads(AVRO_TEXT)
    assert not client.is_compatible(subject, json.dumps(broken))
    with suppress(Refused):
        client.register(subject, json.dumps(broken))
        raise AssertionError("a schema that breaks readers is registered")
    assert client.is_compatible(subject, json.dumps(grown))
    assert client.register(subject, json.dumps(grown)) != first
    assert client.versions(subject) == [1, 2]
    client.set_level(subject, "NONE")
    client.register(subject, json.dumps(broken))
    assert subject in client.subjects()
    assert client.delete(subject) == [1, 2, 3]
    assert subject not in client.subjects()


_READ = frozenset({PRODUCE, FETCH, METADATA})

FEATURES = (
    Feature("produce", produce, _READ),
    Feature("all codecs", codecs, _READ),
    Feature("consume", consume, _READ),
    Feature("begin and end", bounds, _READ | {LIST_OFFSETS}),
    Feature("offset of a time", times, _READ | {LIST_OFFSETS}),
    Feature("group of one", group_of_one, _READ | CLASSIC),
    Feature("group", group, _READ | CLASSIC),
    Feature("KIP-848 group", server_group, _READ | {68}),
    Feature("idempotence", idempotence, _READ | {INIT_PRODUCER_ID}),
    Feature("transactions", transactions, _READ | TRANSACTIONS),
    Feature("offsets in a transaction", positions, _READ | CLASSIC | TRANSACTIONS),
    Feature("aborts unseen", aborts, _READ | TRANSACTIONS),
    Feature("fencing", fencing, _READ | TRANSACTIONS),
    Feature("topics", topics, frozenset({METADATA, 19, 20, 37})),
    Feature("configs", configs, frozenset({19, 32})),
    Feature("delete records", deletion, _READ | {21}),
    Feature("groups", groups, _READ | CLASSIC | {15, 16}),
    Feature("delete groups", group_deletion, _READ | CLASSIC | {16, 42}),
    Feature("group offsets", group_offsets, _READ | CLASSIC),
    Feature("move group offsets", moving, _READ | CLASSIC),
    Feature("delete group offsets", forgetting, _READ | CLASSIC | {47}),
    Feature("quotas", quotas, frozenset({48, 49})),
    Feature("client metrics", client_metrics, _READ | {44, 71, 72}, shows_pages=True),
    Feature("client-metrics subscriptions", subscriptions, frozenset({32, 44, 74})),
    Feature("log directories", log_sizes, _READ | {35}),
    Feature("schema registry", registry, frozenset(), has_schemas=True),
    Feature("Avro by registry", in_format(AVRO), _READ, has_schemas=True),
    Feature("JSON Schema by registry", in_format(JSON), _READ, has_schemas=True),
    Feature("Protobuf by registry", in_format(PROTOBUF), _READ, has_schemas=True),
)
