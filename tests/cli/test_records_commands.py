"""`streamlog consume` and `send --file`: their first record, their end, and their output."""

from __future__ import annotations

import asyncio
import base64
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from streamlog import App
from streamlog.cli.consume_command import consume, parse_offset
from streamlog.cli.records_commands import send
from streamlog.cli.session import Session
from streamlog.errors import SerdeError, UnknownTopicOrPartition, UsageError
from streamlog.worker.worker import Worker


class Console:
    """The two commands on an embedded log."""

    def __init__(self, directory: Path, app: App) -> None:
        self._url = f"embedded:{directory / 'log'}"
        self._session = Session(app)
        self._typer = typer.Typer()
        self._typer.command()(send)
        self._typer.command()(consume)

    def __call__(self, *arguments: str, stdin: str | None = None) -> str:
        result = CliRunner().invoke(
            self._typer,
            [*arguments, "--log", self._url],
            obj=self._session,
            catch_exceptions=False,
            input=stdin,
        )
        assert result.exit_code == 0, result.output
        return result.stdout

    def objects(self, *arguments: str) -> list[dict[str, Any]]:
        printed = self("consume", *arguments, "--json")
        return [json.loads(line) for line in printed.splitlines()]


@pytest.fixture
def console(tmp_path: Path) -> Console:
    app = App("shop")
    app.topic("notes", key=str, value=str, partitions=2)
    app.topic("numbers", key=str, value=float, partitions=1)
    app.topic("sales", key=str, value=dict[str, int], partitions=1)
    app.topic("raw", key=bytes, value=bytes, partitions=1)
    return Console(tmp_path, app)


@dataclass
class Sale:
    shop: str
    count: int


def test_values_in_avro_are_typed_and_printed_as_json(tmp_path: Path) -> None:
    app = App("shop")
    sales = app.topic("sales", key=str, value=Sale, schema="avro", partitions=1)
    app.stream(sales).to(app.topic("copies", key=str, value=Sale, schema="avro", partitions=1))
    console = Console(tmp_path, app)
    with pytest.raises(SerdeError, match="a worker registers it when it starts"):
        console("send", "sales", '{"shop": "ulm", "count": 2}')

    async def start_once() -> None:
        stop = asyncio.Event()
        url = f"embedded:{tmp_path / 'log'}"
        await Worker(app.program(), log_url=url, announce=lambda _: stop.set()).run(stop)

    asyncio.run(start_once())
    with pytest.raises(SerdeError, match="count"):
        console("send", "sales", '{"shop": "ulm", "count": "two"}')
    console("send", "sales", '{"shop": "ulm", "count": 2}', "--key", "a")
    (record,) = console.objects("sales", "--from-beginning", "-e")
    assert (record["key"], record["value"]) == ("a", {"shop": "ulm", "count": 2})


def write_lines(tmp_path: Path, data: bytes) -> str:
    path = tmp_path / "lines"
    path.write_bytes(data)
    return str(path)


def test_a_file_is_sent_line_by_line_and_counted(console: Console, tmp_path: Path) -> None:
    path = write_lines(tmp_path, b"\xef\xbb\xbfulm=1=x\r\nkiel=\nulm=3")
    printed = console("send", "notes", "--file", path, "--key-separator", "=")
    assert printed == "sent 3 records to notes\n"
    found = console.objects("notes", "--offset", "earliest", "-e")
    assert sorted((each["key"], each["value"]) for each in found) == [
        ("kiel", ""), ("ulm", "1=x"), ("ulm", "3"),
    ]  # fmt: skip


def test_lines_without_a_key_alternate_between_partitions(console: Console, tmp_path: Path) -> None:
    console("send", "notes", "--file", write_lines(tmp_path, b"a\nb\nc\nd\n"))
    for partition in ("0", "1"):
        part = console.objects("notes", "--partition", partition, "--offset", "0", "-e")
        assert [each["offset"] for each in part] == [0, 1]


@pytest.mark.parametrize(
    ("data", "printed"),
    [
        (b'{"a": 1}\n{"a": "x"}\n', "line 2: the value for 'sales': not dict"),
        (b'{"a": 1}\n\xff\n', "line 2 is not UTF-8"),
        (b'{"a": 1}\n\n', "line 2: the value for 'sales': not dict"),
    ],
)
def test_an_error_names_the_line_and_earlier_lines_stay_sent(
    console: Console, tmp_path: Path, data: bytes, printed: str
) -> None:
    with pytest.raises((SerdeError, UsageError), match=printed):
        console("send", "sales", "--file", write_lines(tmp_path, data))
    assert [each["value"] for each in console.objects("sales", "--offset", "0", "-e")] == [{"a": 1}]


@pytest.mark.parametrize(
    ("arguments", "printed"),
    [
        (["send", "notes"], "takes VALUE, --null or --file"),
        (["send", "notes", "x", "--file", "y"], "takes VALUE, --null or --file"),
        (["send", "notes", "x", "--key-separator", "="], "needs --file"),
        (["send", "notes", "--file", "missing"], "can't read missing"),
        (["consume", "notes", "--offset", "soon"], "earliest, latest, N or -N"),
        (["consume", "notes", "--offset", "1", "--from-beginning"], "give only one of them"),
        (["consume", "notes", "--offset", "9"], "beyond the end of notes-0, which is 1"),
    ],
)
def test_contradictory_options_are_refused(
    console: Console, arguments: list[str], printed: str
) -> None:
    console("send", "notes", "x")
    with pytest.raises(UsageError, match=printed):
        console(*arguments)


def test_an_unknown_partition_is_named(console: Console) -> None:
    console("send", "notes", "x")
    with pytest.raises(UnknownTopicOrPartition, match="'notes' has no partition 2"):
        console("consume", "notes", "--partition", "2")


def test_a_limit_ends_consume_and_json_has_all_fields(console: Console) -> None:
    for number in range(3):
        console("send", "numbers", f"{number}.5", "--key", "k")
    (one,) = console.objects("numbers", "--offset", "1", "--limit", "1")
    assert one.pop("timestamp_ms") > 0
    assert one == {
        "topic": "numbers", "partition": 0, "offset": 1, "key": "k", "value": 1.5, "headers": [],
    }  # fmt: skip
    assert [each["offset"] for each in console.objects("numbers", "--offset", "-2", "-e")] == [1, 2]
    assert len(console.objects("numbers", "--offset", "-9", "-e")) == 3
    assert console.objects("numbers", "-e") == []


def test_json_represents_binary_data_and_special_floats(console: Console, tmp_path: Path) -> None:
    console("send", "numbers", "nan")
    (one,) = console.objects("numbers", "--offset", "0", "--limit", "1")
    assert one["value"] == "nan"
    undecoded = Console(tmp_path, App("other"))
    (one,) = undecoded.objects("numbers", "--offset", "0", "--limit", "1")
    assert base64.b64decode(one["value"]["base64"])[:2] == b"\x7f\xf8"


@pytest.mark.parametrize(
    ("text", "offset"),
    [("earliest", 5), ("latest", 9), ("7", 7), ("3", 3), ("-2", 7), ("-20", 5), ("-0", 9)],
)
def test_offsets_are_parsed(text: str, offset: int) -> None:
    assert parse_offset(text, 5, 9) == offset


def test_topics_that_a_pattern_matches_are_typed_like_declared_ones(tmp_path: Path) -> None:
    app = App("shop")
    app.topic("notes", key=str, value=str)
    app.topic_pattern("orders", "orders-.*", key=str, value=float)
    console = Console(tmp_path, app)
    console("send", "orders-eu", "2.5", "--key", "ann")
    (found,) = console.objects("orders-eu", "--from-beginning", "--exit-at-end")
    assert (found["key"], found["value"]) == ("ann", 2.5)
    with pytest.raises(SerdeError, match="orders-eu"):
        console("send", "orders-eu", "much")
    # No topic has the pattern's name, and an app never reads its own topics by pattern.
    for name in ("orders", "shop-orders-eu"):
        with pytest.raises(UnknownTopicOrPartition, match=r"notes, those that match orders-\.\*"):
            console("send", name, "1")
