"""Run, reset, run: the second run gives what plain Python computes from the records alone."""

from __future__ import annotations

import asyncio
import json
import shutil
import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest
import typer
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from conformance.kafka import Unavailable, apache_kafka
from streamlog import App
from streamlog.cli.one_app.state_commands import reset
from streamlog.cli.session import Session
from streamlog.client.admin import NewTopic
from streamlog.errors import UsageError
from streamlog.log import Log
from streamlog.record import TopicPartition
from streamlog.worker.operations.app_reset import ResetFacts, plan_reset
from streamlog.worker.worker import Worker
from tests.worker.commit_steps import IS_THOROUGH

SALES = [("ann", 3), ("bob", 5), ("ann", 7), ("cid", 1), ("bob", 2), ("ann", 4)]
PARTITIONS = 2


def shop(
    directory: Path, guarantee: Any = "exactly_once", *, name: str = "sum", url: str = ""
) -> App:
    """Sum per customer behind a repartition topic, and pass each sale on without state."""
    url, state = url or f"embedded:{directory / 'log'}", str(directory / "state")
    app = App("shop", log=url, state_dir=state, commit_interval="20ms", guarantee=guarantee)
    sales = app.topic("sales", key=str, value=int, partitions=PARTITIONS)
    sums = app.topic("sums", key=str, value=int, partitions=1)
    doubled = app.topic("doubled", key=str, value=int, partitions=1)
    counts = app.topic("counts", key=str, value=int, partitions=1)
    stream = app.stream(sales)
    by_initial = stream.rekey(lambda key, _: key[:1]).group_by_key()
    by_initial.reduce(lambda a, b: a + b, name=name).changes().to(sums)
    # Its changelog belongs to the task that reads the source, so `--to` decides where it begins.
    stream.group_by_key().count(name="count").changes().to(counts)
    app.stream(app.topic("plain", key=str, value=int, partitions=1)).map(
        lambda key, value: (key, 2 * value)
    ).to(doubled)
    return app


def last_sums(sales: list[tuple[str, int]]) -> dict[str, int]:
    total: Counter[str] = Counter()
    for key, value in sales:
        total[key[:1]] += value
    return dict(total)


@contextmanager
def running(app: App) -> Iterator[None]:
    """Run a worker in a thread until the block ends."""
    started, stops = Event(), []

    async def work() -> None:
        stop, loop = asyncio.Event(), asyncio.get_running_loop()
        stops.append(lambda: loop.call_soon_threadsafe(stop.set))
        await Worker(app.program(), log_url=app.log, announce=lambda _: started.set()).run(stop)

    thread = Thread(target=lambda: asyncio.run(work()))
    thread.start()
    assert started.wait(60)
    try:
        yield
    finally:
        stops[0]()
        thread.join()


async def feed(app: App) -> None:
    async with Log.open(app.log, create=True) as log, log.producer() as producer:
        names = {each.name for each in await log.admin().list_topics()}
        missing = [NewTopic(n, s.partitions or 1) for n, s in app.topics.items() if n not in names]
        await log.admin().create_topics(missing)
        for key, value in SALES:
            for topic in ("sales", "plain"):
                data = app.topics[topic].value.dumps(value)
                await producer.send(topic, data, key=key.encode())
        await producer.flush()


async def rows(app: App, topic: str, at_least: int) -> list[tuple[str, int]]:
    """Return all rows of a topic once there are so many of them."""
    spec, part = app.topics[topic], TopicPartition(topic, 0)
    async with asyncio.timeout(60), Log.open(app.log) as log:
        while True:
            found = await log.read_range(part)
            if len(found) >= at_least:
                return [(r.key.decode(), spec.value.loads(r.value)) for r in found if r.key]
            await asyncio.sleep(0.05)


def run_reset(app: App, *arguments: str) -> Any:
    command = typer.Typer()
    command.command()(reset)
    done = CliRunner().invoke(command, arguments, obj=Session(app))
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout) if "--json" in arguments else done.stdout


def run_until_done(app: App, times: int, sales: int = len(SALES)) -> dict[str, list[Any]]:
    """Run until each sale has its row in each output, after `times - 1` runs over all sales."""
    before = (times - 1) * len(SALES)
    with running(app):
        return {
            topic: asyncio.run(rows(app, topic, before + sales))[before:]
            for topic in ("sums", "counts", "doubled")
        }


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        yield


def check_first_run(found: dict[str, list[Any]]) -> None:
    assert dict(found["sums"]) == last_sums(SALES)
    assert dict(found["counts"]) == dict(Counter(key for key, _ in SALES))
    assert sorted(found["doubled"]) == sorted((key, 2 * value) for key, value in SALES)


@pytest.mark.parametrize("guarantee", ["exactly_once", "at_least_once"])
def test_an_app_starts_over(tmp_path: Path, guarantee: str) -> None:
    app = shop(tmp_path, guarantee)
    asyncio.run(feed(app))
    check_first_run(run_until_done(app, 1))
    # A dry run changes nothing; the worker that follows has nothing to do.
    shown = run_reset(app, "--json")
    assert not shown["executed"]
    assert shown["changelogs"] == ["shop-0-changelog", "shop-1-changelog"]
    assert len(shown["repartitions"]) == 1
    assert {(p["topic"], p["new_offset"]) for p in shown["positions"]} == {
        ("sales", 0),
        ("plain", 0),
    }
    assert sum(p["offset"] or 0 for p in shown["positions"]) == 2 * len(SALES)
    assert run_reset(app, "--json") == shown
    # Another machine keeps its state, which must not come back.
    shutil.copytree(tmp_path / "state", tmp_path / "elsewhere")
    done = run_reset(app, "--json", "--execute")
    assert done == {**shown, "executed": True}
    left = run_reset(app, "--json")
    assert (left["changelogs"], left["repartitions"], left["state_tasks"]) == ([], [], [])
    shutil.rmtree(tmp_path / "state")
    (tmp_path / "elsewhere").rename(tmp_path / "state")
    # Under another name of the node, too: there is no state that the new program could lose.
    check_first_run(run_until_done(shop(tmp_path, guarantee), 2))


@pytest.mark.skipif(not IS_THOROUGH, reason="Apache Kafka: the thorough profile")
@pytest.mark.timeout(600)
@pytest.mark.parametrize("guarantee", ["exactly_once", "at_least_once"])
def test_an_app_starts_over_on_apache_kafka(tmp_path: Path, guarantee: str) -> None:
    with ExitStack() as stack:
        try:
            address = stack.enter_context(apache_kafka())
        except Unavailable as reason:
            pytest.skip(str(reason))
        app = shop(tmp_path, guarantee, url=f"kafka://{address}")
        asyncio.run(feed(app))
        check_first_run(run_until_done(app, 1))
        shown = run_reset(app, "--json")
        assert shown["changelogs"] == ["shop-0-changelog", "shop-1-changelog"]
        assert sum(p["offset"] or 0 for p in shown["positions"]) == 2 * len(SALES)
        assert run_reset(app, "--json", "--execute") == {**shown, "executed": True}
        left = run_reset(app, "--json")
        assert (left["changelogs"], left["repartitions"], left["state_tasks"]) == ([], [], [])
        check_first_run(run_until_done(app, 2))


def test_a_changed_program_starts_over(tmp_path: Path) -> None:
    app = shop(tmp_path)
    asyncio.run(feed(app))
    run_until_done(app, 1)
    changed = shop(tmp_path, name="renamed")
    assert "starts over" in run_reset(changed, "--execute")
    check_first_run(run_until_done(changed, 2))


def test_an_app_begins_at_an_offset(tmp_path: Path) -> None:
    app = shop(tmp_path)
    asyncio.run(feed(app))
    run_until_done(app, 1)
    run_reset(app, "--execute", "--to", "1")
    # The first sale of each partition, and the first plain one, are behind the offset.
    with running(app):
        plain = asyncio.run(rows(app, "doubled", 2 * len(SALES) - 1))[len(SALES) :]
        assert plain == [(key, 2 * value) for key, value in SALES[1:]]
        parts = asyncio.run(by_partition(app))
        after = [sale for sales in parts for sale in sales[1:]]
        sums = asyncio.run(rows(app, "sums", len(SALES) + len(after)))[len(SALES) :]
        assert dict(sums) == last_sums(after)
        counts = asyncio.run(rows(app, "counts", len(SALES) + len(after)))[len(SALES) :]
        assert dict(counts) == dict(Counter(key for key, _ in after))


async def by_partition(app: App) -> list[list[tuple[str, int]]]:
    value = app.topics["sales"].value
    async with Log.open(app.log) as log:
        found = [await log.read_range(TopicPartition("sales", n)) for n in range(PARTITIONS)]
    return [[(r.key.decode(), value.loads(r.value)) for r in each if r.key] for each in found]


def test_a_running_app_is_refused(tmp_path: Path) -> None:
    app = shop(tmp_path)
    asyncio.run(feed(app))
    with running(app):
        before = asyncio.run(rows(app, "sums", len(SALES)))
        with pytest.raises(UsageError, match="1 running worker"):
            run_reset(app, "--execute")
    assert asyncio.run(rows(app, "sums", len(SALES))) == before


NAMES = st.from_regex(r"[a-z]{1,3}(-[a-z0-9]{1,2}){0,2}", fullmatch=True)


@given(st.lists(NAMES, min_size=2, max_size=6, unique=True), st.data())
def test_a_reset_takes_no_topic_of_another_app(apps: list[str], data: st.DataObject) -> None:
    """Whatever the apps are called: one is a prefix of another, or has a number in its name."""
    owners = {
        f"{app}-{middle}": app
        for app in apps
        for middle in ("0-changelog", "1-changelog", "x-repartition")
    }
    app = data.draw(st.sampled_from(apps))
    facts = ResetFacts(
        app_id=app,
        topics=[*owners, *(f"{each}-topology" for each in apps), "sales"],
        own={f"{app}-0-changelog", f"{app}-x-repartition"},
        owners={name: of for name, of in owners.items() if of != app},
        committed={},
        targets={},
        state_path="",
        state_tasks=(),
    )
    assert {owners[name] for name in plan_reset(facts).deleted} == {app}


def test_a_topic_that_two_apps_claim_is_refused() -> None:
    facts = ResetFacts(
        app_id="shop",
        topics=["shop-v2-by-repartition"],
        own={"shop-v2-by-repartition"},
        owners={"shop-v2-by-repartition": "shop-v2"},
        committed={},
        targets={},
        state_path="",
        state_tasks=(),
    )
    with pytest.raises(UsageError, match="also belongs to app 'shop-v2'"):
        plan_reset(facts)
