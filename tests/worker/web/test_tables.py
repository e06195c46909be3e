"""The answers under /tables: one worker, every kind of table, every kind of mistake."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from streamlog.log import Log
from tests.worker.processes import STREAMLOG, Process, attached, running
from tests.worker.web.requests import Answer, get

KINDS = """
from dataclasses import dataclass
from streamlog import App, session, sliding, tumbling

class Own:
    def __init__(self, text):
        self.text = text

class OwnSerde:
    def dumps(self, obj):
        return obj.text.encode()
    def loads(self, data):
        return Own(data.decode())

@dataclass(frozen=True)
class Place:
    row: int
    seat: str

app = App("kinds", log="embedded:./log", state_dir="./state", commit_interval="20ms")
texts = app.table(app.topic("texts", key=str, value=str, partitions=2))
numbers = app.table(app.topic("numbers", key=int, value=float))
places = app.table(app.topic("places", key=Place, value=bytes))
own = app.table(app.topic("own", key=str, value=Own, value_serde=OwnSerde()))
words = app.topic("words", key=str, value=str)
shouts = texts.map_values(str.upper, name="shouts")
letters = app.stream(words).group_by(lambda _, word: word[:1], name="by-letter")
letters.count(name="letters")
ticks = app.table(app.topic("ticks", key=str, value=int))
hourly = app.stream(words).group_by_key().windowed(tumbling("1h", grace="1d")).count(name="hourly")
visits = app.stream(words).group_by_key().windowed(session("1h", grace="1d")).count(name="visits")
around = app.stream(words).group_by_key().windowed(sliding("1h", grace="1d")).count(name="around")

@app.timer("50ms")
async def tick():
    await ticks.put("tick", (await ticks.fetch("tick") or 0) + 1)
"""


def put(url: str, value: Any) -> Answer:
    return get(url, method="PUT", body=json.dumps(value).encode())


def value_of(answer: Answer) -> Any:
    assert answer.status == 200, answer.body
    return json.loads(answer.body)["value"]


def error_of(answer: Answer, status: int) -> str:
    assert answer.status == status, answer.body
    error: str = json.loads(answer.body)["error"]
    return error


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Process, Path]]:
    """Run one worker for all tests of this file, and return its process and directory."""
    path = tmp_path_factory.mktemp("served")
    (path / "kinds.py").write_text(KINDS)
    with running(*STREAMLOG, "-A", "kinds", "worker", "--web", ":0", cwd=path) as worker:
        worker.line("rebalance: this worker has")
        yield worker, path
        assert worker.stop() == 0
        assert "Traceback" not in worker.output


@pytest.fixture
def site(served: tuple[Process, Path]) -> str:
    found: str = served[0].line(r"web +(http://\S+)").group(1)
    return found


@pytest.fixture
def url(site: str) -> str:
    return f"{site}/tables"


def test_tables_are_listed_with_their_abilities(url: str) -> None:
    listed = {each["name"]: each for each in json.loads(get(url).body)}
    assert listed["texts"] == {
        "name": "texts", "partitions": 2, "windowed": False, "writable": True,
    }  # fmt: skip
    assert (listed["shouts"]["writable"], listed["hourly"]["windowed"]) == (False, True)


def test_rows_are_written_and_read_with_every_key_type(url: str) -> None:
    for key in ("a", "with/slash", "with space", "with%20escape", "ünï", ""):
        assert put(f"{url}/texts/{quoted(key)}", f"<{key}>").status == 200
        assert value_of(get(f"{url}/texts/{quoted(key)}")) == f"<{key}>"
    assert value_of(get(f"{url}/shouts/a")) == "<A>"
    assert put(f"{url}/texts/a", None).status == 200
    assert "no row" in error_of(get(f"{url}/texts/a"), 404)
    assert len(get(f"{url}/texts?limit=3").body.splitlines()) == 3
    assert put(f"{url}/numbers/-7", 2.5).status == 200
    assert value_of(get(f"{url}/numbers/-7")) == 2.5
    seat = quoted('{"row":3,"seat":"b"}')
    assert put(f"{url}/places/{seat}", "AAEC").status == 200
    assert value_of(get(f"{url}/places/{seat}")) == "AAEC"
    assert json.loads(get(f"{url}/places").body)["key"] == {"row": 3, "seat": "b"}
    assert get(f"{url}/own/x", method="PUT", body=b"plain").status == 200
    assert "Own can't be written as JSON" in error_of(get(f"{url}/own/x"), 400)


def test_rows_of_windows_and_untyped_keys_are_read(served: tuple[Process, Path], url: str) -> None:
    async def feed(log: Log) -> None:
        async with log.producer() as producer:
            for word in (b"ant", b"ape", b"bee"):
                await producer.send("words", word, key=b"k", timestamp_ms=7_200_000)

    attached(f"embedded:{served[1]}/log", feed)
    while get(f"{url}/letters/b").status == 404:
        pass
    assert value_of(get(f"{url}/letters/a")) == 2
    while not (found := get(f"{url}/hourly?at=1970-01-01T02:30:00Z").body):
        pass
    assert json.loads(found)["value"] == 3
    assert get(f"{url}/hourly?at=10800000").body == b""
    assert value_of(get(f"{url}/hourly/k?start=7200000")) == 3
    assert "add ?start=" in error_of(get(f"{url}/hourly/k"), 400)
    assert value_of(get(f"{url}/visits/k?start=7200000&end=7200000")) == 3
    assert "add &end=" in error_of(get(f"{url}/visits/k?start=7200000"), 400)
    assert json.loads(get(f"{url}/visits?at=7200000").body)["value"] == 3
    assert get(f"{url}/visits?at=7200001").body == b""
    assert value_of(get(f"{url}/around/k?start=3600000")) == 3


def test_a_timer_reads_its_own_writes(url: str) -> None:
    seen = 0
    while seen < 3:
        answer = get(f"{url}/ticks/tick")
        assert answer.status == 404 or value_of(answer) >= seen
        seen = 0 if answer.status == 404 else value_of(answer)


def test_mistakes_get_an_explanation(url: str) -> None:
    assert "no table 'lost'" in error_of(get(f"{url}/lost"), 404)
    assert "'x' is not a number" in error_of(get(f"{url}/numbers/x"), 400)
    assert "is computed" in error_of(put(f"{url}/shouts/a", "x"), 400)
    assert "not str" in error_of(put(f"{url}/texts/a", 7), 400)
    assert "not windowed" in error_of(get(f"{url}/texts?at=0"), 400)
    assert "limit=x" in error_of(get(f"{url}/texts?limit=x"), 400)
    assert "stale_ok=1 is neither true nor false" in error_of(get(f"{url}/texts/a?stale_ok=1"), 400)
    assert "takes GET, HEAD, PUT" in error_of(get(f"{url}/texts/a", method="DELETE"), 405)


def test_a_foreign_host_name_is_refused(site: str) -> None:
    assert get(f"{site}/live", host="evil.example").status == 400
    assert get(f"{site}/live", host="localhost:80").status == 200


def quoted(key: str) -> str:
    return quote(key, safe="")
