"""Commands for a version: it is compared with its app, promoted, and undone; in this process."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread

import pytest
import typer
from typer.testing import CliRunner

from streamlog import App
from streamlog.cli import history_commands
from streamlog.cli.session import Session
from streamlog.errors import UsageError
from streamlog.log import Log
from streamlog.record import TopicPartition
from streamlog.worker.operations import promotion
from streamlog.worker.savepoint import savepoint_log
from streamlog.worker.worker import Worker

Say = Callable[..., tuple[int, str]]
BEGIN_MS = 1_000_000


def shop(directory: Path, factor: int) -> App:
    """Build one of two programs, which differ in a factor."""
    url, state = f"embedded:{directory / 'log'}", str(directory / "state")
    app = App("shop", log=url, state_dir=state, commit_interval="20ms")
    sales = app.topic("sales", key=str, value=int, partitions=2)
    totals = app.topic("totals", key=str, value=int, partitions=1)
    app.stream(sales).group_by_key().reduce(lambda a, b: a * factor + b, name="sums").changes().to(
        totals
    )
    return app


def runner_of(app: App) -> Say:
    """Return a function that runs a command with this program, for its exit code and output."""
    room = typer.Typer()
    for command in (
        history_commands.backfill,
        history_commands.compare,
        history_commands.hand_over,
        history_commands.promote,
    ):
        room.command()(command)

    def say(*arguments: str) -> tuple[int, str]:
        done = CliRunner().invoke(
            room, list(arguments), obj=Session(app=app), catch_exceptions=False
        )
        return done.exit_code, done.output

    return say


async def feed(app: App, first: int, count: int) -> None:
    sales = app.topics["sales"]
    async with Log.open(app.log) as log, log.producer() as producer:
        for n in range(first, first + count):
            key, value = sales.key.dumps("ab"[n % 2]), sales.value.dumps(n)
            await producer.send("sales", value, key=key, timestamp_ms=BEGIN_MS + n * 1_000)
        await producer.flush()


async def wait_for_end(app: App) -> None:
    """Wait until the app's workers have committed all input."""
    topic_partitions = [TopicPartition("sales", n) for n in range(2)]
    async with asyncio.timeout(60), Log.open(app.log) as log, log.consumer() as consumer:
        ends = await consumer.end_offsets(topic_partitions)
        committed: dict[TopicPartition, int] = {}
        while committed != ends:
            await asyncio.sleep(0.02)
            committed = await log.admin().group_offsets(app.id, topic_partitions)


@contextmanager
def running_worker(app: App) -> Iterator[list[str]]:
    """Run a worker in a thread, and fill the list with its messages at the end."""
    messages: list[str] = []
    started = Event()

    async def work() -> None:
        stop = asyncio.Event()
        stops.append(lambda: loop.call_soon_threadsafe(stop.set))
        loop = asyncio.get_running_loop()
        try:
            await Worker(app.program(), log_url=app.log, announce=lambda _: started.set()).run(stop)
        except UsageError as error:
            messages.append(str(error))

    stops: list[Callable[[], object]] = []
    thread = Thread(target=lambda: asyncio.run(work()))
    thread.start()
    assert started.wait(60)
    try:
        yield messages
    except BaseException:
        stops[0]()
        raise
    finally:
        thread.join()


@pytest.fixture(autouse=True)
def _quick_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(savepoint_log, "LOOK_MS", 100)
    monkeypatch.setattr(savepoint_log, "HALTED_LOOK_MS", 50)
    monkeypatch.setattr(promotion, "LOOK_MS", 50)
    monkeypatch.setattr(promotion, "ALONE_MS", 200)


def test_a_version_is_compared_promoted_and_undone(tmp_path: Path) -> None:
    former, latter = shop(tmp_path, 1), shop(tmp_path, 2)
    by_former, by_latter = runner_of(former), runner_of(latter)
    with running_worker(former) as messages:
        asyncio.run(feed(former, 0, 6))
        code, printed = by_latter("backfill", "--id", "one", "--lower", "off")
        assert (code, "5 staged rows" in printed) == (0, True), printed
        code, printed = by_latter("hand-over", "one", "--version", "v2")
        assert (code, "shop-v2 starts from snapshot one" in printed) == (0, True), printed
        asyncio.run(wait_for_end(former))
        with pytest.raises(UsageError, match="'shop-v2' has not read"):
            by_latter("compare", "totals", "--version", "v2", "--patience", "0s")
        code, printed = by_latter("promote", "v2")
        assert (code, "version 'v2' is app 'shop' from 1970-01-01T00:16:45" in printed) == (0, True)
    assert "stop the workers of the former program" in messages[0]
    code, printed = by_latter("compare", "totals", "--version", "v2")
    assert code == history_commands.EXIT_DIFFERENT, printed
    assert "only in the app: 'b' = 4, " in printed
    assert "only in the version: 'b' = 5, " in printed
    with running_worker(latter) as messages:
        asyncio.run(feed(former, 6, 2))
        code, printed = by_former("promote", "--undo")
        assert (code, "version 'before-v2' is app 'shop'" in printed) == (0, True), printed
    assert "stop the workers of the former program" in messages[0]
    assert by_former("promote", "--cancel") == (0, "no promotion is in progress\n")


def test_contradictory_promote_options_are_refused(tmp_path: Path) -> None:
    by_command = runner_of(shop(tmp_path, 1))
    with pytest.raises(UsageError, match="one of VERSION, --undo and --cancel"):
        by_command("promote", "v2", "--undo")
    with pytest.raises(UsageError, match="SNAPSHOT TOPIC to compare a history, or TOPIC --version"):
        by_command("compare", "one", "totals", "--version", "v2")
    with pytest.raises(UsageError, match="SNAPSHOT TOPIC to compare a history, or TOPIC --version"):
        by_command("compare", "totals")
