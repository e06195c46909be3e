"""Rows from any worker: two real workers share an app's tasks, over HTTP and in process."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic
from typing import Any
from urllib.parse import quote

import pytest

from streamlog.log import Log
from tests.worker.processes import DEADLINE_S, STREAMLOG, Process, attached, read_until, running
from tests.worker.web.requests import Answer, get

SHOP = """
import os
from dataclasses import dataclass

from streamlog import App, Emit, Stream, agg, tumbling
from streamlog.worker import worker

worker.SESSION_TIMEOUT_MS = int(os.environ["SESSION_MS"])
worker.HEARTBEAT_INTERVAL_MS = 300

@dataclass
class User:
    name: str
    age: int

@dataclass
class Sum:
    ages: int

def last_digit(_: str, user: User) -> int:
    return user.age % 10

app = App(
    "shop",
    log=os.environ["LOG"],
    state_dir=os.environ["STATE"],
    commit_interval="50ms",
    standby_replicas=int(os.environ.get("STANDBYS", "0")),
)
users = app.topic("users", key=str, value=User, partitions=4)
asked = app.topic("asked", key=str, value=str, partitions=2)
answers = app.topic("answers", key=str, value=str, partitions=1)
by_name = app.table(users, name="by-name")
adults = by_name.filter(lambda _, user: user.age >= 18, name="adults")
changes = app.stream(users).group_by_key().count(name="changes")
ages = (
    app.stream(users)
    .group_by(last_digit, name="by-digit")
    .windowed(tumbling("1h", grace="365d", retention="730d"))
    .emit(Emit.UPDATE)
    .agg(Sum, name="ages", ages=agg.sum(lambda user: user.age))
)

@app.agent(asked)
async def answer(stream: Stream[str, str]) -> None:
    async for name in stream:
        user = await by_name.fetch(name)
        if user is not None:
            user.age += 100
            await by_name.put(name, user)
            user = await by_name.fetch(name)
        rows = [key async for key, _ in adults.scan(prefix=name)]
        await answers.send(f"{user} {await changes.fetch(name)} {rows}", key=name)
"""
USERS = [f"user-{number:02}" for number in range(40)]


def worker(path: Path, url: str, number: int, **environment: str) -> Any:
    return running(
        *STREAMLOG, "-A", "shop", "worker", "--web", ":0",
        cwd=path, LOG=url, STATE=f"./state-{number}", **environment,
    )  # fmt: skip


@contextmanager
def broker(path: Path) -> Iterator[str]:
    command = (*STREAMLOG, "broker", "--data", "log", "--listen", "127.0.0.1:0", "--flush", "os")
    with running(*command, cwd=path) as process:
        address = process.line(r"listening on (\S+)").group(1)
        yield f"kafka://{address}"


@pytest.fixture
def app_dir(tmp_path: Path) -> Path:
    (tmp_path / "shop.py").write_text(SHOP)
    return tmp_path


async def feed(log: Log) -> None:
    async with log.producer() as producer:
        for number, name in enumerate(USERS):
            value = json.dumps({"name": name, "age": number}).encode()
            await producer.send("users", value, key=name.encode(), timestamp_ms=3_600_000 * number)


def ask_agent(url: str, name: str) -> str:
    async def story(log: Log) -> str:
        async with log.producer() as producer:
            await producer.send("asked", name.encode(), key=name.encode())
        found = await read_until(
            log, "answers", lambda rows: any(row.key == name.encode() for _, row in rows)
        )
        return next((row.value or b"").decode() for _, row in found if row.key == name.encode())

    return attached(url, story)


def wait_for_tasks(first: Process, second: Process) -> list[str]:
    """Wait until both workers have tasks, and return their addresses."""
    urls = [process.line(r"web +(http://\S+)").group(1) for process in (first, second)]
    for process in (first, second):
        process.line(
            r"rebalance: this worker has [1-9]\d* partitions?, tasks (?!.*0_0.*0_1.*0_2.*0_3)"
        )
    return urls


def rows(answer: Answer) -> dict[str, Any]:
    assert answer.status == 200, answer.body
    lines = [json.loads(line) for line in answer.body.splitlines()]
    return {json.dumps(line["key"]): line["value"] for line in lines}


def is_whole(answer: Answer) -> bool:
    """Return whether the answer is complete: a scan that loses a task ends with an error line."""
    return answer.status == 200 and b'{"error"' not in answer.body


def until(url: str, is_there: Any = is_whole) -> Answer:
    """Repeat a query: rows appear once committed, and queries fail while tasks move."""
    deadline = monotonic() + DEADLINE_S
    while not is_there(answer := get(url)):
        assert answer.status in {200, 404, 503}, answer.body
        assert monotonic() < deadline, answer.body
    return answer


def test_every_worker_serves_all_rows_even_after_one_is_killed(app_dir: Path) -> None:
    # A failure is noticed sooner than by default, but not at each pause of a busy machine: a worker
    # that is expelled starts again, and an agent repeats its unfinished work.
    environment = {"SESSION_MS": "6000"}
    with (
        broker(app_dir) as url,
        worker(app_dir, url, 1, **environment) as first,
    ):
        first.line("rebalance: this worker has")
        with worker(app_dir, url, 2, **environment) as second:
            web = wait_for_tasks(first, second)
            attached(url, feed)
            for each in web:
                found = rows(until(f"{each}/tables/by-name", lambda a: a.body.count(b"\n") == 40))
                assert found == {
                    f'"{name}"': {"name": name, "age": number} for number, name in enumerate(USERS)
                }
                assert len(rows(until(f"{each}/tables/adults?prefix=user-1"))) == 2
                for number in (0, 7, 21, 39):
                    row = until(f"{each}/tables/by-name/{USERS[number]}")
                    assert json.loads(row.body)["value"] == {"name": USERS[number], "age": number}
                assert json.loads(until(f"{each}/tables/changes/user-07").body)["value"] == 1
                until(f"{each}/tables/adults/user-07", lambda answer: answer.status == 404)
                start = quote("1970-01-01T07:00:00Z")
                window = until(f"{each}/tables/ages/7?start={start}")
                assert json.loads(window.body) == {
                    "key": {
                        "key": 7,
                        "start": "1970-01-01T07:00:00Z",
                        "end": "1970-01-01T08:00:00Z",
                    },
                    "value": {"ages": 7},
                }
            for number, each in enumerate(web):
                body = json.dumps({"name": "new", "age": 50 + number}).encode()
                for name in ("user-01", "fresh"):
                    put = get(f"{each}/tables/by-name/{name}", method="PUT", body=body)
                    assert (put.status, json.loads(put.body)["applied"]) == (200, True)
                    for other in web:
                        row = json.loads(until(f"{other}/tables/by-name/{name}").body)
                        assert row["value"]["age"] == 50 + number
            for name in USERS[30:32]:
                number = int(name[-2:])
                assert ask_agent(url, name) == (
                    f"User(name='{name}', age={number + 100}) 2 ['{name}']"
                )
            second.kill()
        answer = until(f"{web[0]}/tables/by-name")
        assert len(rows(answer)) == 41
        assert first.stop() == 0
        assert "Traceback" not in first.output


def test_a_standby_answers_for_a_dead_worker_and_reports_its_age(app_dir: Path) -> None:
    # The group does not notice the dead worker during this test.
    environment = {"STANDBYS": "1", "SESSION_MS": "60000"}
    with broker(app_dir) as url, worker(app_dir, url, 1, **environment) as first:
        first.line("rebalance: this worker has")
        with worker(app_dir, url, 2, **environment) as second:
            web, _ = wait_for_tasks(first, second)
            attached(url, feed)
            until(f"{web}/tables/by-name", lambda answer: answer.body.count(b"\n") == len(USERS))
            second.kill()
        ages = 0
        for number, name in enumerate(USERS):
            answer = until(f"{web}/tables/by-name/{name}?stale_ok=true")
            row = json.loads(answer.body)
            assert row["value"] == {"name": name, "age": number}
            assert ("age_ms" in row) == ("age" in answer.headers)
            ages += "age_ms" in row
        assert 0 < ages < len(USERS)
        found = until(f"{web}/tables/by-name?stale_ok=true")
        assert len(rows(found)) == len(USERS)
        assert (
            b'streamlog_table_answers_total{by="standby"}'
            in get(web.removesuffix("/") + "/metrics").body
        )
