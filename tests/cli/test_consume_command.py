"""`consume` and `send` beside kcat on one broker: formats, times, conditions, groups, copies."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import struct
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

import pytest
import typer
from confluent_kafka import Producer
from confluent_kafka.schema_registry import Schema as ClientSchema
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from streamlog import App, Windowed, tumbling
from streamlog.cli.consume_command import consume, time_of
from streamlog.cli.output.record_format import RecordFormat, RecordView, plain_bytes, raw_bytes
from streamlog.cli.records_commands import send
from streamlog.cli.session import Session
from streamlog.client.admin import NewTopic
from streamlog.errors import SerdeError, UnknownTopicOrPartition, UsageError
from streamlog.log import Log
from streamlog.record import TopicPartition
from streamlog.records.log_record import LogRecord
from streamlog.serdes import serde_for
from tests.registry.running import RunningRegistry, run_registry

START_MS = 1_700_000_000_000
PARTITIONS = 2
RECORDS = [
    (
        number % PARTITIONS,
        START_MS + 1000 * number,
        None if number % 5 == 0 else f"key-{number % 3}".encode(),
        None if number % 7 == 3 else json.dumps({"amount": number, "city": "Köln"}).encode(),
        (("source", b"web"), ("empty", b"")) if number % 4 == 0 else (),
    )
    for number in range(24)
]
"""Partition, time, key, value and headers: some records have no key, no value, or no headers."""


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningRegistry]:
    with run_registry(tmp_path_factory.mktemp("broker")) as running:
        asyncio.run(fill(running.broker))
        yield running


async def fill(address: str) -> None:
    topics = ["staged", "sales", "copy", "typed", "typed-copy", "raw", "raw-copy", "avro"]
    topics += ["texts", "texts-copy"]
    async with Log.open(f"kafka://{address}") as log, log.producer() as producer:
        await log.admin().create_topics([NewTopic(name, PARTITIONS) for name in topics])
        for partition, at_ms, key, value, headers in RECORDS:
            await producer.send(
                "sales", value, key=key, partition=partition, timestamp_ms=at_ms, headers=headers
            )
        await producer.flush()


def run(broker: RunningRegistry, *arguments: str, stdin: str = "", app: App | None = None) -> str:
    with NamedTemporaryFile("w", suffix=".jsonl") as file:
        file.write(stdin)
        file.flush()
        given = [file.name if each == "-" else each for each in arguments]
        return invoke(broker, *given, app=app)


def invoke(broker: RunningRegistry, *arguments: str, app: App | None) -> str:
    commands = typer.Typer()
    commands.command()(send)
    commands.command()(consume)
    result = CliRunner().invoke(
        commands,
        [*arguments, "--log", f"kafka://{broker.broker}"],
        obj=Session(app),
        catch_exceptions=False,
    )
    assert result.exit_code == 0, result.output
    return result.stdout


def objects(broker: RunningRegistry, *arguments: str, app: App | None = None) -> list[Any]:
    printed = run(broker, "consume", *arguments, "--json", app=app)
    return [json.loads(line) for line in printed.splitlines()]


def numbers(found: list[Any]) -> list[int]:
    """Return which of the records these are, in the order of time."""
    return sorted((each["timestamp_ms"] - START_MS) // 1000 for each in found)


def kcat(broker: RunningRegistry, *arguments: str) -> str:
    if shutil.which("kcat") is None:
        pytest.skip("kcat is not installed: apt-get install kcat")
    command = ["kcat", "-C", "-q", "-e", "-b", broker.broker, "-t", "sales", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout


FORMATS = [
    r"%t [%p] at %o: key %k (%K), value %s (%S), %T, %h\n",
    r"%p\t%o\x21\041 %% %k\n",
]


@pytest.mark.parametrize("line_format", FORMATS)
def test_a_format_prints_what_kcat_prints(broker: RunningRegistry, line_format: str) -> None:
    for partition in ("0", "1"):
        theirs = kcat(broker, "-p", partition, "-o", "beginning", "-f", line_format)
        own = ("--partition", partition, "--offset", "earliest", "-e", "--format", line_format)
        assert run(broker, "consume", "sales", *own) == theirs


def test_times_begin_and_stop_where_kcat_does(broker: RunningRegistry) -> None:
    since, until = START_MS + 4500, START_MS + 17000
    theirs = kcat(broker, "-o", f"s@{since}", "-o", f"e@{until}", "-f", r"%p %o\n")
    texts = ["2023-11-14T22:13:24.500Z", "2023-11-14T22:13:37Z"]
    found = objects(broker, "sales", "--since", texts[0], "--until", texts[1])
    assert sorted(f"{each['partition']} {each['offset']}" for each in found) == sorted(
        theirs.splitlines()
    )
    assert numbers(found) == list(range(5, 17))
    assert numbers(objects(broker, "sales", "--since", texts[1], "-e")) == list(range(17, 24))
    assert objects(broker, "sales", "--since", "1m", "-e") == []


@pytest.mark.parametrize(
    ("arguments", "keeps"),
    [
        (["--key", "key-1"], lambda n: n % 5 and n % 3 == 1),
        (["--filter", "value.amount >= 20"], lambda n: n >= 20 and n % 7 != 3),
        (["--filter", 'headers["source"] == "web"'], lambda n: n % 4 == 0),
        (["--filter", "value is None and partition == 1"], lambda n: n % 7 == 3 and n % 2 == 1),
        (["--key", "key-2", "--filter", "offset < 3"], lambda n: n % 5 and n % 3 == 2 and n < 6),
    ],
)
def test_conditions_choose_records(
    broker: RunningRegistry, arguments: list[str], keeps: Any
) -> None:
    found = objects(broker, "sales", "--from-beginning", "-e", *arguments)
    assert numbers(found) == [number for number in range(24) if keeps(number)]


def test_a_filter_that_fits_nothing_says_so(
    broker: RunningRegistry, caplog: pytest.LogCaptureFixture
) -> None:
    assert not objects(broker, "sales", "--from-beginning", "-e", "--filter", "value.amuont > 3")
    assert caplog.messages[-1].startswith("--filter left out all of 24 records: check the names")


def test_a_group_continues_behind_what_was_printed(broker: RunningRegistry) -> None:
    first = objects(broker, "sales", "--group", "readers", "--from-beginning", "--limit", "9")
    # Records that a condition leaves out are behind the group, too.
    second = objects(
        broker, "sales", "--group", "readers", "--filter", "timestamp > 0", "--limit", "15"
    )
    assert numbers(first + second) == list(range(24))

    async def committed() -> dict[TopicPartition, int]:
        async with Log.open(f"kafka://{broker.broker}") as log:
            return await log.admin().group_offsets("readers")

    assert asyncio.run(committed()) == {TopicPartition("sales", n): 12 for n in range(PARTITIONS)}


def without_log(found: list[Any]) -> list[Any]:
    return [{name: each[name] for name in each if name != "topic"} for each in found]


def test_others_use_an_embedded_log_while_consume_waits_for_records(tmp_path: Path) -> None:
    url = f"embedded:{tmp_path / 'data'}"

    async def create() -> None:
        async with Log.open(url, listen=False) as log:
            await log.admin().create_topics([NewTopic("t", 1)])

    async def write() -> None:
        async with Log.attach(url, timeout_ms=60_000) as log, log.producer() as producer:
            await (await producer.send("t", b"hello"))

    asyncio.run(create())
    command = [sys.executable, "-m", "streamlog", "consume", "t", "--log", url, "--limit", "1"]
    with subprocess.Popen(
        [*command, "--from-beginning"], stdout=subprocess.PIPE, text=True
    ) as waiting:
        asyncio.run(write())
        assert waiting.communicate(timeout=60)[0] == "-\thello\n"


@pytest.mark.parametrize(
    ("is_back", "exit_code", "message"),
    [
        (False, 3, "topic 'moved' was deleted while it was read"),
        (True, 5, "moved-0: the topic was deleted and created again .*: repeat the command"),
    ],
)
def test_a_topic_that_is_deleted_meanwhile_ends_the_command_with_what_to_do(
    broker: RunningRegistry, is_back: bool, exit_code: int, message: str
) -> None:
    url = f"kafka://{broker.broker}"

    async def create() -> None:
        async with Log.open(url) as log, log.producer() as producer:
            await log.admin().create_topics([NewTopic("moved", 1)])
            await (await producer.send("moved", b"hello"))

    async def remove() -> None:
        async with Log.open(url) as log:
            await log.admin().delete_topics(["moved"])
            if is_back:
                await log.admin().create_topics([NewTopic("moved", 1)])

    asyncio.run(create())
    command = [sys.executable, "-m", "streamlog", "consume", "moved", "--log", url]
    with subprocess.Popen(
        [*command, "--from-beginning"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as reading:
        assert reading.stdout is not None
        assert reading.stdout.readline() == "-\thello\n"
        asyncio.run(remove())
        _, said = reading.communicate(timeout=60)
    assert reading.returncode == exit_code, said
    assert re.search(f"^error: .*{message}", said, re.MULTILINE)
    if is_back:
        asyncio.run(remove_topic(url, "moved"))


async def remove_topic(url: str, name: str) -> None:
    async with Log.open(url) as log:
        await log.admin().delete_topics([name])


def test_json_lines_copy_a_topic(broker: RunningRegistry) -> None:
    arguments = ("--from-beginning", "-e", "--partition")
    for partition in ("0", "1"):
        lines = run(broker, "consume", "sales", *arguments, partition, "--json")
        said = run(broker, "send", "copy", "--file", "-", "--format", "jsonl", stdin=lines)
        assert said == f"sent {len(RECORDS) // PARTITIONS} records to copy\n"
        original = objects(broker, "sales", *arguments, partition)
        assert without_log(objects(broker, "copy", *arguments, partition)) == without_log(original)


def test_json_lines_copy_typed_records(broker: RunningRegistry) -> None:
    app = App("shop")
    for name in ("typed", "typed-copy"):
        app.topic(name, key=str, value=dict[str, float], partitions=PARTITIONS)
    for name in ("raw", "raw-copy"):
        app.topic(name, key=int, value=float, partitions=PARTITIONS)
    run(broker, "send", "typed", '{"base64": 1.5}', "--key", "a", app=app)
    run(broker, "send", "typed", "--null", "--key", "a", "--header", "why=gone", app=app)
    run(broker, "send", "raw", "nan", "--key", "7", "--partition", "1", app=app)
    for name, count in (("typed", 2), ("raw", 1)):
        lines = run(broker, "consume", name, "--from-beginning", "-e", "--json", app=app)
        assert len(lines.splitlines()) == count
        copying = ("--file", "-", "--format", "jsonl")
        run(broker, "send", f"{name}-copy", *copying, stdin=lines, app=app)
        # Compared as bytes, without the app.
        before = objects(broker, name, "--from-beginning", "-e")
        assert without_log(objects(broker, f"{name}-copy", "--from-beginning", "-e")) == (
            without_log(before)
        )
    (tombstone,) = objects(broker, "typed", "--from-beginning", "-e", "--filter", "value is None")
    assert tombstone["headers"] == [["why", "gone"]]


@dataclass
class Sale:
    pieces: int
    at: datetime


def test_the_text_of_typed_records_is_what_send_takes(broker: RunningRegistry) -> None:
    app = App("texts")
    for name in ("texts", "texts-copy"):
        app.topic(name, key=str, value=Sale, partitions=1)
    sale = {"pieces": 3, "at": "2026-01-05T09:00:10Z"}
    run(broker, "send", "texts", json.dumps(sale), "--key", "a", app=app)
    text = run(broker, "consume", "texts", "--from-beginning", "-e", app=app)
    key, value = text.split("\t")
    assert (key, json.loads(value)) == ("a", sale)
    copying = ("texts-copy", "--file", "-", "--key-separator", "\t")
    run(broker, "send", *copying, stdin=text, app=app)
    assert run(broker, "consume", "texts-copy", "--from-beginning", "-e", app=app) == text


def test_a_windowed_key_is_printed_as_json() -> None:
    spec = App("windows").topic("sold", key=Windowed[str], value=int, windows=tumbling("1h")).spec
    key = b"a" + (1_767_603_600_000).to_bytes(8)
    shown, value = RecordView(spec).texts(LogRecord(0, 0, key, bytes(7) + b"\x05"))
    assert json.loads(shown) == {
        "key": "a", "start": "2026-01-05T09:00:00Z", "end": "2026-01-05T10:00:00Z"
    }  # fmt: skip
    assert value == "5"


def test_schemas_of_a_registry_decode_values(broker: RunningRegistry) -> None:
    schema = {
        "type": "record",
        "name": "Order",
        "fields": [{"name": "number", "type": "int"}, {"name": "city", "type": "string"}],
    }
    with SchemaRegistryClient({"url": broker.url}) as client:
        encode = AvroSerializer(client, ClientSchema(json.dumps(schema), "AVRO"))
        context = SerializationContext("avro", MessageField.VALUE)
        data = encode({"number": 7, "city": "Ulm"}, context)

    async def write() -> None:
        async with Log.open(f"kafka://{broker.broker}") as log, log.producer() as producer:
            await producer.send("avro", data, key=b"k", partition=0)
            await producer.send("avro", b"plain", partition=1)
            await producer.flush()

    asyncio.run(write())
    asked = ("avro", "--from-beginning", "-e", "--registry", broker.url)
    found = objects(broker, *asked, "--filter", "value.number == 7")
    assert [each["value"] for each in found] == [{"number": 7, "city": "Ulm"}]
    printed = run(broker, "consume", *asked)
    assert sorted(printed.splitlines()) == ["-\tplain", 'k\t{"number": 7, "city": "Ulm"}']


def test_protobuf_is_decoded_by_the_schema_that_each_record_names(broker: RunningRegistry) -> None:
    text = """
        syntax = "proto3";
        package shop;
        message Order { int64 number = 1; repeated string cities = 2; }
        message Refund { Order order = 1; double amount = 2; }
    """
    with SchemaRegistryClient({"url": broker.url}) as client:
        number = client.register_schema("proto-value", ClientSchema(text, "PROTOBUF"))
    head = b"\0" + number.to_bytes(4, "big")
    # As Confluent's serializer frames them: `\0` is the first message, [1] the second.
    order = b"\x08\x07\x12\x03Ulm\x12\x04K\xc3\xb6l"
    refund = b"\x0a" + bytes([len(order)]) + order + b"\x11" + struct.pack("<d", 2.5)

    async def write() -> None:
        async with Log.open(f"kafka://{broker.broker}") as log, log.producer() as producer:
            await log.admin().create_topics([NewTopic("proto", 1)])
            for value in (head + b"\0" + order, head + b"\x02\x02" + refund, b"plain"):
                await producer.send("proto", value)
            await producer.flush()

    asyncio.run(write())
    found = objects(broker, "proto", "--from-beginning", "-e", "--registry", broker.url)
    sold = {"number": 7, "cities": ["Ulm", "K\xf6l"]}
    assert [each["value"] for each in found] == [sold, {"order": sold, "amount": 2.5}, "plain"]


def size_of(_key: str, value: float) -> int:
    return int(value)


def test_topics_of_versions_and_repartitions_have_the_types_of_the_app(
    broker: RunningRegistry,
) -> None:
    app = App("shop", log=f"kafka://{broker.broker}")
    sales = app.topic("shop-sales", key=str, value=float)
    totals = app.topic("shop-totals", key=int, value=float)
    by_size = app.stream(sales).group_by(size_of, name="by-size")
    by_size.reduce(lambda a, b: a + b, name="sums").changes().to(totals)
    # A topic of a version is one only if that version has run.
    names = ["shop-totals-v2", "shop-totals-eu", "shop-by-size-repartition",
             "shop-v2-by-size-repartition"]  # fmt: skip

    async def write() -> None:
        async with Log.open(app.log) as log, log.producer() as producer:
            created = [*names, "shop-v2-topology"]
            await log.admin().create_topics([NewTopic(name, 1) for name in created])
            for name in names:
                await producer.send(name, serde_for(float).dumps(2.5), key=serde_for(int).dumps(7))
            await producer.flush()

    asyncio.run(write())
    for name in names:
        (found,) = objects(broker, name, "--from-beginning", "-e", app=app)
        is_known = name != "shop-totals-eu"
        assert ((found["key"], found["value"]) == (7, 2.5)) is is_known, name


@pytest.mark.parametrize(
    ("arguments", "stdin", "message"),
    [
        (["consume", "sales", "--format", "%x"], "", "no token '%x'"),
        (["consume", "sales", "--format", r"\q"], "", r"no escape '\\\\q'"),
        (["consume", "sales", "--format", "%k", "--json"], "", "only one of"),
        (["consume", "sales", "--since", "1m", "--offset", "3"], "", "only one of them"),
        (["consume", "sales", "--since", "soon"], "", "how long ago"),
        (["consume", "sales", "--group", "g", "--partition", "1"], "", "excludes --partition"),
        (["consume", "sales", "--group", "g", "--offset", "3"], "", "its own offsets"),
        (["send", "copy", "--file", "-", "--format", "jsonl"], "{]", "line 1: not a record"),
        (["send", "copy", "--file", "-", "--format", "jsonl"], '{"value": 3}', "needs the types"),
        (["send", "copy", "--format", "jsonl", "--null"], "", "needs --file"),
        (["send", "copy", "--null", "x"], "", "takes VALUE, --null or --file"),
    ],
)
def test_what_can_not_be_done_is_refused(
    broker: RunningRegistry, arguments: list[str], stdin: str, message: str
) -> None:
    with pytest.raises((UsageError, SerdeError), match=message):
        run(broker, *arguments, stdin=stdin)


def test_an_error_names_the_line_of_a_partition_that_is_missing(broker: RunningRegistry) -> None:
    lines = '{"value": "a"}\n{"value": "b", "partition": 9}\n'
    with pytest.raises(UnknownTopicOrPartition, match=r"\.jsonl, line 2: "):
        run(broker, "send", "raw", "--file", "-", "--format", "jsonl", stdin=lines)


def test_a_device_without_content_has_no_lines(broker: RunningRegistry) -> None:
    """No event loop can watch it, as it does a pipe."""
    assert run(broker, "send", "raw", "--file", "/dev/null") == "sent 0 records to raw\n"


@given(st.binary())
def test_bytes_come_back_from_json(data: bytes) -> None:
    assert raw_bytes(json.loads(json.dumps(plain_bytes(data)))) == data


@given(st.binary(max_size=20), st.binary(max_size=20))
def test_a_record_is_one_line_without_control_characters(key: bytes, value: bytes) -> None:
    record = LogRecord(1, 2, key, value, ((key.decode(errors="replace"), value),))
    line = RecordFormat("%t %k %v %h").line(TopicPartition("t", 0), record, RecordView())
    assert line.endswith("\n")
    assert line.removesuffix("\n").isprintable()


def test_times_are_read_as_ages_and_dates() -> None:
    assert time_of("--since", "10m", START_MS) == START_MS - 600_000
    assert time_of("--since", "1970-01-01T00:00:01Z", START_MS) == 1000


def test_records_that_were_not_committed_are_printed_only_on_request(
    broker: RunningRegistry,
) -> None:
    producer = Producer({"bootstrap.servers": broker.broker, "transactional.id": "stager"})
    producer.init_transactions()
    for value, ends in (("a", producer.commit_transaction), ("b", producer.abort_transaction)):
        producer.begin_transaction()
        producer.produce("staged", value, partition=0)
        producer.flush()
        ends()
    arguments = ("consume", "staged", "--from-beginning", "--format", "%s\\n")
    assert run(broker, *arguments, "-e").split() == ["a"]
    assert run(broker, *arguments, "-e", "--uncommitted").split() == ["a", "b"]
    assert run(broker, *arguments, "--group", "stage-readers", "--limit", "1").split() == ["a"]
