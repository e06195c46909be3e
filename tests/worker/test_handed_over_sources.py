"""Sources that are recreated or truncated between a history and the workers after it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

import pytest

from streamlog import App, Snapshot
from streamlog.broker.storage.data_directory import partition_folder
from streamlog.client.admin import NewTopic
from streamlog.errors import SourceLost
from streamlog.history.job import BackfillJob
from streamlog.log import Log
from streamlog.record import TopicPartition
from streamlog.worker.worker import Worker
from tests.broker.process import BrokerProcess

END = "2100-01-01"
OLD, MORE, NEW = range(20), range(20, 30), range(1_000, 1_040)
Shape = Literal["map", "count"]


class Case:
    """An app, its log, and the events of a test."""

    def __init__(self, broker: BrokerProcess, directory: Path, shape: Shape) -> None:
        self.broker = broker
        self.data = directory / "data"
        self.url = f"kafka://{broker.address}"
        self.snapshots = str(directory / "snapshots")
        self.app = App(
            "orders-app", log=self.url, state_dir=str(directory / "state"), commit_interval="50ms"
        )
        orders = self.app.topic("orders", key=str, value=str, partitions=1)
        out = self.app.topic("out", key=str, value=str, partitions=1)
        stream = self.app.stream(orders)
        if shape == "count":
            counts = stream.group_by_key().count(name="n")
            counts.changes().map(lambda key, n: (key, f"{key} {n}")).to(out)
        else:
            stream.to(out)
        self.do(lambda log: log.admin().create_topics([NewTopic("out", 1)]))
        self.write(OLD)

    def do(self, work: Callable[[Log], Any]) -> None:
        async def main() -> None:
            async with Log.open(self.url) as log:
                await work(log)

        asyncio.run(main())

    def write(self, numbers: range) -> None:
        async def work(log: Log) -> None:
            if not await log.admin().find_topics(["orders"]):
                await log.admin().create_topics([NewTopic("orders", 1)])
            async with log.producer() as producer:
                for number in numbers:
                    await producer.send("orders", b"%d" % number, key=b"k%d" % number, partition=0)

        self.do(work)

    def recreate(self) -> None:
        self.do(lambda log: log.admin().delete_topics(["orders"]))
        self.write(NEW)

    def cut(self, mark: dict[Path, int]) -> None:
        """Lose the records written since the mark, as in a power loss."""
        self.broker.kill()
        for path, size in mark.items():
            with path.open("r+b") as file:
                file.truncate(size)
        self.broker.__enter__()
        self.write(NEW)

    def mark(self) -> dict[Path, int]:
        """Return the current sizes of the source's files."""
        (found,) = asyncio.run(self.ids())
        folder = self.data / partition_folder(found, 0)
        return {path: path.stat().st_size for path in folder.glob("*.log")}

    async def ids(self) -> list[bytes]:
        async with Log.open(self.url) as log:
            return [each.topic_id for each in await log.admin().find_topics(["orders"])]

    def job(self) -> BackfillJob:
        return self.app.backfill(
            until=END, engine="local", outputs="stage", progress=False, directory=self.snapshots
        )

    def live(self, source_lost: Literal["fail", "earliest"] | None, rows: int) -> list[str]:
        """Return the rows of the history and the worker, once there are this many."""
        self.app.source_lost = source_lost

        async def main() -> list[str]:
            stop, found = asyncio.Event(), list[str]()
            worker = Worker(self.app.program(), log_url=self.url, announce=lambda _: None)
            async with Log.open(self.url) as log:
                running = asyncio.create_task(worker.run(stop))
                try:
                    async with (
                        asyncio.timeout(60),
                        log.consumer(
                            auto_offset_reset="earliest", isolation_level="read_committed"
                        ) as reader,
                    ):
                        reader.assign([TopicPartition("out", 0)])
                        while len(found) < rows and not running.done():
                            for polled in (await reader.poll(timeout_ms=200)).values():
                                found += [(each.value or b"").decode() for each in polled]
                finally:
                    stop.set()
                    await running
            return found

        try:
            return asyncio.run(main())
        except BaseExceptionGroup as group:
            raise group.exceptions[0] from None


def values(shape: Shape, *parts: range) -> list[str]:
    numbers = [number for part in parts for number in part]
    return [str(n) for n in numbers] if shape == "map" else [f"k{n} 1" for n in numbers]


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path / "data", flush="os") as process:
        yield process


def test_a_history_of_a_replaced_log_is_refused(broker: BrokerProcess, tmp_path: Path) -> None:
    case = Case(broker, tmp_path, "count")
    job = case.job()
    assert job.plan.logs["orders", 0].topic_id
    case.recreate()
    with pytest.raises(SourceLost, match=r"orders-0: the topic was deleted and created again") as e:
        job.run()
    assert e.value.exit_code == 5
    mark = case.mark()
    case.write(MORE)
    cut = case.job()
    assert cut.plan.ends["orders", 0] == (0, 50)
    case.cut(mark)
    with pytest.raises(SourceLost, match=r"orders-0: the log was truncated .* 40 to 49"):
        cut.run()
    case.job().run()


@pytest.mark.parametrize("shape", ["map", "count"])
def test_a_snapshot_of_a_replaced_log_is_not_handed_over(
    broker: BrokerProcess, tmp_path: Path, shape: Shape
) -> None:
    case = Case(broker, tmp_path, shape)
    mark = case.mark()
    case.write(MORE)
    snapshot = case.job().run()
    case.cut(mark)
    message = (
        r"orders-0: the log was truncated: offset 30 was next, and it differs from offset 20 on"
    )
    with pytest.raises(SourceLost, match=message) as caught:
        case.app.hand_over(Snapshot.open(snapshot.url))
    assert caught.value.exit_code == 5
    snapshot = case.job().run()
    case.recreate()
    with pytest.raises(SourceLost, match=r"orders-0: the topic was deleted .* create the snapshot"):
        case.app.hand_over(snapshot)
    case.app.hand_over(case.job().run())
    assert case.live(None, 40) == values(shape, NEW)


@pytest.mark.parametrize("shape", ["map", "count"])
@pytest.mark.parametrize("how", ["recreated", "cut"])
def test_a_worker_notices_a_loss_since_the_hand_over(
    broker: BrokerProcess, tmp_path: Path, shape: Shape, how: str
) -> None:
    case = Case(broker, tmp_path, shape)
    mark = case.mark()
    case.write(MORE)
    case.app.hand_over(case.job().run())
    if how == "cut":
        case.cut(mark)  # Only the source is truncated: the handed-over state stays.
    else:
        case.recreate()
    # Deleting a topic also deletes the group's offsets for it: without state, nothing else is kept.
    if (shape, how) != ("map", "recreated"):
        message = r"orders-0: the (log was truncated|topic was deleted)"
        with pytest.raises(SourceLost, match=message) as caught:
            case.live("fail", 1_000)
        assert caught.value.exit_code == 5
    found = case.live("earliest", 70)
    assert found == values(shape, OLD, MORE, NEW)
