"""`streamlog state` beside plain Python: of a running worker, after it, and of a snapshot."""

from __future__ import annotations

import asyncio
import json
import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest
import typer
from hypothesis import given
from hypothesis import strategies as st
from moto.moto_server.threaded_moto_server import ThreadedMotoServer
from typer.main import get_command
from typer.testing import CliRunner

from streamlog import App, Emit, tumbling
from streamlog.cli.one_app.state_commands import complete_stores, state
from streamlog.client.admin import NewTopic
from streamlog.durations import moment
from streamlog.errors import CorruptData, UsageError
from streamlog.log import Log
from streamlog.record import TopicPartition
from streamlog.snapshots.state_reader import StoredTask, differences, merged, shown
from streamlog.tables.stores.store import StoreSpec, escape_key, span_bytes, window_key
from streamlog.worker.state import snapshot_restore
from streamlog.worker.topics.app_topics import EVERY_TIMESTAMP
from tests.snapshots.test_object_store import CREDENTIALS
from tests.worker.operations.test_app_reset import rows, running

BEGIN_MS = 1_767_225_600_000
MINUTE_MS = 60_000
SALES = [("ann", 3, 0), ("bob", 5, 1), ("ann", 7, 2), ("ann", 4, 2), ("cid", 1, 5)]
"""Customer, amount, and minute."""


def shop(directory: Path, **settings: Any) -> App:
    url, where = f"embedded:{directory / 'log'}", str(directory / "state")
    app = App("shop", log=url, state_dir=where, commit_interval="20ms", **settings)
    sales = app.topic("sales", key=str, value=int, partitions=1)
    sums = app.topic("sums", key=str, value=int, partitions=1)
    grouped = app.stream(sales).group_by_key()
    grouped.reduce(lambda a, b: a + b, name="sum").changes().to(sums)
    counted = (
        grouped.windowed(tumbling("1m", grace="1h")).emit(Emit.UPDATE).count(name="per-minute")
    )
    counted.changes().map(lambda window, n: (window.key, n)).to(
        app.topic("counts", key=str, value=int, partitions=1)
    )
    return app


async def feed(app: App) -> None:
    async with Log.open(app.log, create=True) as log, log.producer() as producer:
        await log.admin().create_topics(
            [NewTopic(n, 1, configs=EVERY_TIMESTAMP) for n in app.topics]
        )
        for key, value, minute in SALES:
            data = app.topics["sales"].value.dumps(value)
            at_ms = BEGIN_MS + minute * MINUTE_MS
            await producer.send("sales", data, key=key.encode(), timestamp_ms=at_ms)
        await producer.flush()


def run(*arguments: str, code: int = 0) -> str:
    done = CliRunner().invoke(state, arguments, catch_exceptions=False)
    assert done.exit_code == code, done.output
    return done.stdout


def objects(*arguments: str, code: int = 0) -> list[Any]:
    return [json.loads(line) for line in run(*arguments, "--json", code=code).splitlines()]


def listing(where: Path) -> dict[Path, int]:
    """Return every file below a directory, with the time at which it was written."""
    return {each: each.stat().st_mtime_ns for each in where.rglob("*") if each.is_file()}


@pytest.fixture
def app(tmp_path: Path) -> App:
    app = shop(tmp_path)
    asyncio.run(feed(app))
    return app


def test_rows_are_those_of_plain_python(app: App, tmp_path: Path) -> None:
    with running(app):
        asyncio.run(rows(app, "sums", len(SALES)))
        asyncio.run(rows(app, "counts", len(SALES)))
        # A worker has the state open: it is neither locked nor changed.
        before = listing(tmp_path / "state")
        run("ls", str(tmp_path / "state"))
        after = listing(tmp_path / "state")
        assert after.keys() >= before.keys()
    where = str(tmp_path / "state" / "shop")
    sums = Counter[str]()
    windows = Counter[tuple[str, int]]()
    for key, value, minute in SALES:
        sums[key] += value
        windows[key, minute] += 1
    found = {each["key"]: each["value"] for each in objects("scan", where, "sum")}
    assert found == dict(sums)
    spans = {
        (each["key"], each["window"]["start"], each["window"]["end"]): each["value"]
        for each in objects("scan", where, "per-minute")
        if each["window"] is not None
    }
    assert spans == {
        (key, *(moment(BEGIN_MS + m * MINUTE_MS).isoformat() for m in (minute, minute + 1))): count
        for (key, minute), count in windows.items()
    }
    assert run("get", where, "sum", "bob").split("\t")[:4] == ["0_0", "sum", "bob", "5"]
    assert len(objects("get", where, "per-minute", "ann")) == len(
        [w for w in windows if w[0] == "ann"]
    )
    run("get", where, "sum", "nobody-else", code=1)
    context = typer.Context(get_command(state))
    context.params["where"] = where
    assert complete_stores(context, "su") == ["sum"]
    context.params["where"] = str(tmp_path)
    assert complete_stores(context, "") == []
    (listed,) = [each for each in json.loads(run("ls", where, "--json")) if each["store"] == "sum"]
    assert (listed["task"], listed["rows"]) == ("0_0", len(sums))
    assert listed["changelog_offset"] > 0


def test_a_history_has_the_state_of_the_worker(app: App, tmp_path: Path) -> None:
    with running(app):
        asyncio.run(rows(app, "counts", len(SALES)))
        asyncio.run(rows(app, "sums", len(SALES)))
    where = str(tmp_path / "state" / "shop")
    snapshot = shop(tmp_path).backfill(directory=str(tmp_path / "snapshots")).run()
    # The history ends before the last record, from which on more may follow.
    *known, last = objects("scan", where, "sum")
    assert (objects("scan", snapshot.url, "sum"), last["key"]) == (known, "cid")
    assert run("diff", snapshot.url, snapshot.url) == ""
    (line,) = run("diff", where, snapshot.url, "sum", code=1).splitlines()
    assert line == "- 0_0\tsum\tcid\t1"
    asyncio.run(more(app))
    with running(app):
        asyncio.run(rows(app, "sums", len(SALES) + 2))
    changed = objects("diff", snapshot.url, where, "sum", code=1)
    assert [(each["change"], each["key"], each["before"], each["after"]) for each in changed] == [
        ("~", "ann", 14, 114),
        ("+", "cid", None, 1),
        ("+", "dan", None, 9),
    ]


@pytest.fixture
def bucket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Return a URL in S3, as moto's server on this machine plays it."""
    server = ThreadedMotoServer("127.0.0.1", port=0, verbose=False)
    server.start()
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://{}:{}".format(*server.get_host_and_port()))
    boto3.client("s3", region_name="us-east-1").create_bucket(Bucket="snapshots")
    yield f"s3://snapshots/{tmp_path.name}"
    server.stop()


def test_snapshots_of_workers_in_object_storage_have_their_rows(
    tmp_path: Path, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshot_restore, "SAVED_MIN", 1)
    app = shop(tmp_path, snapshots=bucket, snapshot_interval="50ms")
    asyncio.run(feed(app))
    where = str(tmp_path / "state" / "shop")

    async def until_written() -> None:
        async with asyncio.timeout(60):
            # The last record of the input is in the newest snapshot, or will be in the next one.
            while not has_all(bucket):  # noqa: ASYNC110 - a worker in another thread
                await asyncio.sleep(0.05)

    with running(app):
        asyncio.run(until_written())
    for store in ("sum", "per-minute"):
        rows_here = objects("scan", where, store)
        for url in (bucket, f"{bucket}/shop", f"{bucket}/shop/0_0"):
            assert objects("scan", url, store) == rows_here
    assert run("diff", where, bucket, "sum") == ""
    (listed,) = [each for each in json.loads(run("ls", bucket, "--json")) if each["store"] == "sum"]
    assert (listed["rows"], listed["where"]) == (3, f"{bucket}/shop/0_0")
    assert listed["changelog_offset"] > 0
    with pytest.raises(UsageError, match="no snapshots of workers"):
        run("ls", f"{bucket}-of-nobody")


def has_all(url: str) -> bool:
    try:
        found = objects("scan", url)
    # Between two snapshots, a file of the older one may vanish while it is fetched.
    except (UsageError, CorruptData):
        return False
    sums = {each["key"]: each["value"] for each in found if each["store"] == "sum"}
    return sums == {"ann": 14, "bob": 5, "cid": 1}


WORDS = [(1, "12"), (2, "null"), (1, "13"), (3, "")]
AMOUNTS = [("a", 0.25), ("b", float("inf")), ("a", 2.5)]


def typed(directory: Path) -> App:
    url, where = f"embedded:{directory / 'log'}", str(directory / "state")
    app = App("typed", log=url, state_dir=where, commit_interval="20ms")
    words = app.topic("words", key=int, value=str, partitions=1)
    lasts = app.topic("lasts", key=int, value=str, partitions=1)
    app.stream(words).group_by_key().reduce(lambda _, new: new, name="last").changes().to(lasts)
    amounts = app.topic("amounts", key=str, value=float, partitions=1)
    sums = app.topic("sums", key=str, value=float, partitions=1)
    summed = app.stream(amounts).group_by_key().reduce(lambda a, b: a + b, name="sum")
    summed.changes().to(sums)
    return app


async def fill_typed(app: App) -> None:
    async with Log.open(app.log, create=True) as log, log.producer() as producer:
        await log.admin().create_topics([NewTopic(name, 1) for name in app.topics])
        for name, pairs in (("words", WORDS), ("amounts", AMOUNTS)):
            spec = app.topics[name]
            for key, value in pairs:
                await producer.send(name, spec.value.dumps(value), key=spec.key.dumps(key))
        await producer.flush()


async def until_typed_is_read(app: App) -> None:
    async with asyncio.timeout(60), Log.open(app.log) as log:
        for name, count in (("lasts", len(WORDS)), ("sums", len(AMOUNTS))):
            at = TopicPartition(name, 0)
            while len(await log.read_range(at)) < count:  # noqa: ASYNC110 - another thread's
                await asyncio.sleep(0.05)


def test_the_types_that_workers_have_recorded_tell_numbers_from_text(tmp_path: Path) -> None:
    app = typed(tmp_path)
    asyncio.run(fill_typed(app))
    with running(app):
        asyncio.run(until_typed_is_read(app))
    where, types = str(tmp_path / "state" / "typed"), ("--types", app.log)
    lasts = {each["key"]: each["value"] for each in objects("scan", where, "last", *types)}
    assert lasts == dict(WORDS)
    sums = {each["key"]: each["value"] for each in objects("scan", where, "sum", *types)}
    assert sums == {"a": 2.75, "b": "inf"}
    # Bytes alone don't tell: text of digits is a number, and a float is any other number.
    guessed = {each["key"]: each["value"] for each in objects("scan", where, "last")}
    assert (guessed[1], guessed[2]) == (13, None)
    assert run("get", where, "last", "1", *types).split("\t")[3] == "13"
    assert run("diff", where, where, *types) == ""
    elsewhere = (tmp_path / "state" / "typed").rename(tmp_path / "state" / "shop")
    with pytest.raises(UsageError, match="no record of app 'shop'"):
        run("scan", str(elsewhere), *types)


async def more(app: App) -> None:
    value = app.topics["sales"].value
    async with Log.open(app.log) as log, log.producer() as producer:
        for key, amount in (("ann", 100), ("dan", 9)):
            at_ms = BEGIN_MS + 6 * MINUTE_MS
            await producer.send("sales", value.dumps(amount), key=key.encode(), timestamp_ms=at_ms)
        await producer.flush()


def test_a_directory_without_state_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="holds no state"):
        run("ls", str(tmp_path))


TIMES = st.integers(0, 4_000_000_000_000)


@given(TIMES, st.integers(1, MINUTE_MS), st.text(alphabet="abcü-", min_size=1))
def test_windows_of_all_layouts_are_times(start_ms: int, size_ms: int, key: str) -> None:
    span = (moment(start_ms).isoformat(), moment(start_ms + size_ms).isoformat())
    raw = key.encode()
    waiting = window_key(start_ms + size_ms, start_ms, raw)
    session = b"\x00" + escape_key(raw) + span_bytes(start_ms + size_ms, start_ms)
    for stored in (waiting, session):
        row = shown("0_0", "s", stored, b"1")
        assert (row.key, row.window) == (key, span)


@given(st.text(min_size=1), st.text())
def test_text_is_never_taken_for_a_window(key: str, value: str) -> None:
    row = shown("0_0", "s", b"k" + key.encode(), b'"' + value.encode())
    assert (row.window, row.time) == (None, None)


@given(st.binary(), st.binary())
def test_bytes_that_are_shown_as_hex_are_marked(key: bytes, value: bytes) -> None:
    row = shown("0_0", "s", b"\xff" + key, b"\xff" + value)
    for name, data, part in (
        ("key", b"\xff" + key, row.key),
        ("value", b"\xff" + value, row.value),
    ):
        # No text, no JSON and no MessagePack with parts begins with FF: only a number may.
        is_number = len(data) == 8
        assert (name in row.raw) is not is_number
        assert part == (int.from_bytes(data, signed=True) if is_number else f"0x{data.hex()}")


KEYS = st.tuples(st.sampled_from(["a", "bb", "c"]), st.binary(max_size=2))
STATES = st.dictionaries(KEYS, st.binary(max_size=1))


@given(STATES, STATES)
def test_differences_are_those_of_dictionaries(before: Any, after: Any) -> None:
    found = list(differences([task(before)], [task(after)]))
    names = before.keys() | after.keys()
    assert {(each.store, each.key): (each.before, each.after) for each in found} == {
        name: (before.get(name), after.get(name))
        for name in names
        if before.get(name) != after.get(name)
    }
    assert len(list(merged(iter(()), iter(())))) == 0


def task(content: dict[tuple[str, bytes], bytes]) -> StoredTask:
    pairs = sorted(
        (StoreSpec(store).prefix + key, value) for (store, key), value in content.items()
    )
    return StoredTask("0_0", os.devnull, lambda: iter(pairs), "a")
