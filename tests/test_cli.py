"""The command line as users meet it: its output and its exit codes."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import signal
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from streamlog import App
from streamlog.cli.broker_command import parse_address
from streamlog.cli.records_commands import key_bytes, value_bytes
from streamlog.cli.session import load_app
from streamlog.errors import SerdeError, UsageError
from streamlog.log import Log
from tests.worker.processes import STREAMLOG, running, streamlog

SHOP = """
from dataclasses import dataclass
from streamlog import App, Stream, agg, tumbling, Windowed

@dataclass
class Sale:
    shop: str
    cents: int

app = App("shop", log="embedded:./log", state_dir="./state")
sales = app.topic("sales", key=str, value=Sale)
notes = app.topic("notes", key=str, value=str, partitions=2)
numbers = app.topic("numbers", key=int, value=float)
totals = app.topic("totals", key=Windowed[str], value=int)

(
    app.stream(sales)
    .group_by(lambda _, s: s.shop, name="by-shop")
    .windowed(tumbling("1m"))
    .agg(Sale, name="sums", shop=agg.max(lambda s: s.shop), cents=agg.sum(lambda s: s.cents))
)

@app.agent(notes)
async def strict(stream: Stream[str, str]) -> None:
    async for note in stream:
        if note == "bad":
            raise ValueError("no such note")
        print(f"noted {note}")
"""
WORKER = (*STREAMLOG, "-A", "shop", "worker")
READY = "rebalance: this worker has"


def has_line(pattern: str, output: str) -> bool:
    """Return whether a line of the output matches."""
    return re.search(pattern, output, re.MULTILINE) is not None


@pytest.fixture
def here(tmp_path: Path) -> Path:
    (tmp_path / "shop.py").write_text(SHOP)
    (tmp_path / "two.py").write_text("from streamlog import App\na, b = App('a'), App('b')\n")
    (tmp_path / "broken.py").write_text("import no_such_module\n")
    (tmp_path / "file").write_text("not a directory")
    (tmp_path / "left").mkdir()
    (tmp_path / "left" / "topics.json").touch()
    return tmp_path


def write(directory: Path, topic: str, value: bytes, partition: int = 0) -> None:
    async def main() -> None:
        async with Log.open(f"embedded:{directory}", listen=False) as log, log.producer() as out:
            await (await out.send(topic, value, partition=partition))

    asyncio.run(main())


def delete_directory(directory: Path) -> None:
    """Delete a directory although another process may create files in it."""
    shutil.rmtree(directory.rename(directory.with_name("gone")))


@pytest.mark.parametrize(
    ("command", "code", "text"),
    [
        ("", 2, "Usage:"),
        ("--help", 0, "broker +Serve a log directory"),
        ("worker", 2, "^error: this command needs an app: streamlog -A MODULE"),
        ("-A nowhere worker", 2, "^error: no module 'nowhere' in "),
        ("-A shop:till worker", 2, "^error: module 'shop' has no app 'till'; .*: shop:app$"),
        ("-A two worker", 2, "^error: module 'two' has several apps, .*: two:a, two:b$"),
        ("-A shop.py worker", 2, "^error: -A takes a module, not a file: write -A shop$"),
        ("-A broken worker", 1, "No module named 'no_such_module'"),
        (
            "topics list --log nonsense",
            2,
            "^error: 'nonsense' is not the URL of a log: use 'embedded:DIR'",
        ),
        (
            "topics list --log kafka://127.0.0.1:1",
            4,
            "^error: can't reach the broker at 127.0.0.1:1",
        ),
        ("-A shop worker --log kafka://127.0.0.1:1", 4, "^error: can't reach the broker"),
        ("topics describe gone --log embedded:log", 5, "^error: there is no log in log: check"),
        ("topics list --log embedded:left", 5, "^error: left has topics and no meta.properties"),
        ("-A shp topology", 2, "^error: no module 'shp' in .*: did you mean 'shop'"),
        ("groups list --log embedded:log", 5, "^error: there is no log in log: check"),
        ("acls list --log embedded:log", 5, "^error: there is no log in log: check"),
        ("topics create a --config b --log embedded:log", 2, "^error: --config takes NAME=VALUE"),
        ("topics create a --config b=c --log embedded:log", 3, "^error: .*unknown topic setting"),
        ("consume gone --log embedded:log", 5, "^error: there is no log in log: check"),
        ("broker --data log --listen 9092", 2, "^error: '9092' is not HOST:PORT"),
        ("broker --data file --listen 127.0.0.1:0", 5, "^error: file can't be a data directory"),
        ("broker --data /proc/no --listen 127.0.0.1:0", 5, "^error: /proc/no can't be a data"),
        ("-A shop send gone x", 3, "^error: app 'shop' declares no topic 'gone'; its topics: no"),
        ("-A shop send sales x", 2, "^error: the value for 'sales': not Sale: .*x"),
        ('-A shop send sales {"shop":"ulm"}', 2, "^error: .*'sales': not Sale: .*missing.*cents"),
        ("-A shop send numbers x", 2, "^error: the value for 'numbers': 'x' is not a number"),
        ("-A shop send --key x numbers 1", 2, "^error: the key for 'numbers': 'x' is not a"),
    ],
)
def test_an_impossible_command_is_explained_in_one_line(
    here: Path, command: str, code: int, text: str
) -> None:
    exit_code, output = streamlog(*command.split(), cwd=here)
    assert exit_code == code, output
    assert has_line(text, output), output
    assert ("Traceback" in output) == (code == 1)
    # A traceback begins with the module's own line.
    assert "importlib" not in output
    assert "cli/session.py" not in output


def test_a_broker_prints_its_address_and_stops_cleanly(here: Path) -> None:
    for stop in (signal.SIGINT, signal.SIGTERM):
        with running(
            *STREAMLOG, "broker", "--data", "log", "--listen", "127.0.0.1:0", cwd=here
        ) as broker:
            address = broker.line(r"^listening on (127\.0\.0\.1:\d+) \(log log, cluster ").group(1)
            assert streamlog("topics", "list", "--log", f"kafka://{address}", cwd=here)[0] == 0
            broker.signal(stop)
            assert broker.wait() == 0
            assert "stopped: the log is closed" in broker.output


def test_a_port_and_a_directory_belong_to_one_broker(here: Path) -> None:
    with running(
        *STREAMLOG, "broker", "--data", "log", "--listen", "127.0.0.1:0", cwd=here
    ) as broker:
        address = broker.line(r"listening on (\S+)").group(1)
        code, output = streamlog("broker", "--data", "other", "--listen", address, cwd=here)
        assert code == 6
        assert f"error: can't listen on {address}: another process does" in output
        code, output = streamlog("broker", "--data", "log", "--listen", "127.0.0.1:0", cwd=here)
        assert code == 5
        assert has_line(rf"error: log is in use by process \d+, .*{address}", output)


def test_a_topic_is_created_listed_described_and_deleted(here: Path) -> None:
    at = ("--log", "embedded:log")
    assert streamlog("topics", "create", "a", "--partitions", "3", *at, cwd=here)[0] == 0
    write(here / "log", "a", b"x", partition=1)
    listed = streamlog("topics", "list", *at, cwd=here)[1]
    assert re.search(r"│ a +│ 3 ", listed)
    described = streamlog("topics", "describe", "a", *at, cwd=here)[1]
    assert re.search(r"│ 1 +│ 0 +│ 1 +│ 1 ", described)
    code, output = streamlog("topics", "create", "a", *at, cwd=here)
    assert (code, "topic a exists already" in output) == (3, True)
    for command, text in (
        ("topics describe gone", "^error: the log has no topic 'gone'"),
        ("topics delete gone", "^error: .*there is no topic gone"),
        ("consume gone", "^error: the log has no topic 'gone'"),
    ):
        code, output = streamlog(*command.split(), *at, cwd=here)
        assert (code, bool(has_line(text, output))) == (3, True), output
    assert streamlog("topics", "delete", "a", *at, cwd=here)[0] == 0
    assert "a" not in re.findall(r"│ (\S+) ", streamlog("topics", "list", *at, cwd=here)[1])


def test_sent_records_are_consumed(here: Path) -> None:
    sent = [("sales", '{"shop":"ulm","cents":3}', "k"), ("numbers", "2.5", "7")]
    for topic, value, key in sent:
        code, output = streamlog("-A", "shop", "send", topic, value, "--key", key, cwd=here)
        assert code == 0
        assert has_line(rf"^sent to {topic}, partition \d, offset 0$", output)
    for app, expected in ((("-A", "shop"), r"^7\t2\.5$"), ((), r"^\\x00")):
        command = (*STREAMLOG, *app, "consume", "numbers", "--from-beginning")
        with running(*command, "--log", "embedded:log", cwd=here) as reader:
            reader.line(expected)
            assert reader.stop() == 0


def test_topology_and_doctor_print_their_reports(here: Path) -> None:
    code, output = streamlog("-A", "shop", "topology", cwd=here)
    assert code == 0
    assert "WindowedAggregate sums windows of 1m" in output
    for as_, begins in (
        ("mermaid", "flowchart"),
        ("dot", "digraph"),
        ("svg", "<svg"),
        ("json", "{"),
    ):
        code, output = streamlog("-A", "shop", "topology", "--format", as_, cwd=here)
        assert (code, output.startswith(begins), "sums" in output) == (0, True, True), output
    code, output = streamlog("doctor", "--json", cwd=here)
    assert code == 0, output
    assert {"python", "streamlog", "open files"} <= {each["what"] for each in json.loads(output)}
    code, output = streamlog("doctor", cwd=here)
    assert code == 0
    assert has_line(r"python +3\.", output)
    assert has_line(r"streamlog\.records\.batch +(compiled|interpreted)", output)
    assert has_line(r"java +\S", output)


def test_a_missing_source_topic_is_not_created_on_a_cluster(here: Path) -> None:
    with running(
        *STREAMLOG, "broker", "--data", "log", "--listen", "127.0.0.1:0", cwd=here
    ) as broker:
        url = "kafka://" + broker.line(r"listening on (\S+)").group(1)
        code, output = streamlog("-A", "shop", "worker", "--log", url, cwd=here)
        assert code == 3
        assert "error: this app reads topic 'sales', which does not exist; create it " in output
        assert "streamlog topics create sales --partitions N" in output
        assert streamlog("topics", "create", "sales", "--log", url, cwd=here)[0] == 0
        with running(*WORKER, "--log", url, cwd=here) as worker:
            worker.line(READY)
            assert worker.stop() == 0


def test_an_agent_that_raises_stops_the_worker_and_names_the_record(here: Path) -> None:
    with running(*WORKER, cwd=here) as worker:
        worker.line(READY)
        for note in ("good", "bad"):
            streamlog("-A", "shop", "send", "notes", note, "--key", "k", cwd=here)
        assert worker.wait() == 7
        output = worker.output
    assert "noted good" in output
    assert has_line(
        r"^error: 'strict' failed at offset 1 of notes-\d: ValueError: no such note$", output
    )
    # The traceback shows only the user's code.
    assert 'raise ValueError("no such note")' in output
    assert "agents/run.py" not in output
    # Nothing was skipped: the last commit decides whether the record before it comes again.
    with running(*WORKER, cwd=here) as worker:
        assert worker.wait() == 7
        assert "failed at offset 1 of notes-" in worker.output


def test_a_value_of_a_wrong_type_stops_the_worker_and_names_the_record(here: Path) -> None:
    log = here / "log"
    at = ("--log", "embedded:log")
    streamlog("topics", "create", "sales", "--partitions", "2", *at, cwd=here)
    write(log, "sales", b'{"shop": 1}', partition=1)
    code, output = streamlog("-A", "shop", "worker", cwd=here)
    assert code == 7
    assert has_line(r"^error: 'sales' failed at offset 0 of sales-1: value: not Sale: ", output)
    assert "Traceback" not in output


def test_a_deleted_log_directory_stops_the_worker(here: Path) -> None:
    with running(*WORKER, cwd=here) as worker:
        worker.line(READY)
        delete_directory(here / "log")
        assert worker.wait() == 5
        assert has_line(r"^error: .*log.* has vanished while it was in use", worker.output)
        assert "Traceback" not in worker.output


def test_a_deleted_log_directory_stops_the_broker(here: Path) -> None:
    with running(
        *STREAMLOG, "broker", "--data", "log", "--listen", "127.0.0.1:0", cwd=here
    ) as broker:
        broker.line(r"listening on")
        delete_directory(here / "log")
        assert broker.wait() == 5
        # Either a check of the directory or a write to one of its files notices first.
        assert has_line(r"^error: log.* has vanished while it was in use", broker.output)


def test_state_of_another_log_is_refused(here: Path) -> None:
    with running(*WORKER, cwd=here) as worker:
        worker.line(READY)
        assert worker.stop() == 0
    shutil.rmtree(here / "log")
    code, output = streamlog("-A", "shop", "worker", cwd=here)
    assert code == 5
    assert has_line(r"^error: the state in \S+ belongs to log \S+, but this is log ", output)


def test_damaged_state_is_reported_and_restored_from_the_changelog(here: Path) -> None:
    with running(*WORKER, cwd=here) as worker:
        worker.line(READY)
        assert worker.stop() == 0
    for damaged in (here / "state").glob("shop/*/*/MANIFEST-*"):
        damaged.write_bytes(b"garbage")
    with running(*WORKER, cwd=here) as worker:
        worker.line(READY)
        assert worker.stop() == 0
        for partition in range(4):
            assert has_line(
                rf"WARNING \./state/shop/1_{partition}/\S+ can't be used", worker.output
            )
            assert has_line(rf"task 1_{partition}: restored [1-9]", worker.output)


def test_an_unusable_state_directory_is_reported(here: Path) -> None:
    (here / "state").write_text("a file")
    code, output = streamlog("-A", "shop", "worker", cwd=here)
    assert code == 5
    assert has_line(r"^error: the state directory \S+ can't be used: ", output)


@pytest.mark.parametrize("text", ["localhost", ":1", "host:", "host:x", "host:65536", "host:-1"])
def test_malformed_addresses_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match="is not HOST:PORT"):
        parse_address(text)


def test_addresses_are_parsed_as_host_and_port() -> None:
    assert parse_address("localhost:0") == ("localhost", 0)
    assert parse_address("[::1]:9092") == ("::1", 9092)


@pytest.mark.parametrize(
    ("declared", "text", "data"),
    [
        (str, "a b", b"a b"),
        (bytes, "a", b"a"),
        (int, "-1", b"\xff" * 8),
        (float, "1", b"\x3f\xf0" + bytes(6)),
        (bool, "true", b"true"),
        (list[int], "[1, 2]", b"[1,2]"),
    ],
)
def test_text_is_converted_to_bytes_by_the_declared_type(
    declared: Any, text: str, data: bytes
) -> None:
    spec = App("shop").topic("sales", key=declared, value=declared).spec
    assert key_bytes(spec, text) == value_bytes(spec, text) == data


def test_text_of_a_wrong_type_is_refused() -> None:
    spec = App("shop").topic("sales", key=int, value=list[int]).spec
    with pytest.raises(SerdeError, match="the key for 'sales': 'a' is not a number"):
        key_bytes(spec, "a")
    with pytest.raises(SerdeError, match=r"the value for 'sales': .* Expected `int`"):
        value_bytes(spec, '["a"]')


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ('"2025-01-01T12:00:00"', "has no time zone"),
        ('"1969-12-31T12:00:00Z"', "before 1970"),
    ],
)
def test_a_value_without_an_event_time_is_refused(text: str, why: str) -> None:
    spec = App("shop").topic("sales", key=str, value=datetime, timestamp=lambda at: at).spec
    assert value_bytes(spec, '"2025-01-01T12:00:00Z"') == b'"2025-01-01T12:00:00Z"'
    with pytest.raises(SerdeError, match=f"the value for 'sales': timestamp= .*{why}"):
        value_bytes(spec, text)


def test_an_app_is_found_by_its_module(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(here)
    monkeypatch.syspath_prepend(str(here))
    assert load_app("two:b").id == "b"
    with pytest.raises(UsageError, match="two:a, two:b"):
        load_app("two")
