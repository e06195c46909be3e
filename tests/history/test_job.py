"""Jobs over the log of a live app: equal rows, and no leftover files."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamlog import App, Emit, Windowed, tumbling
from streamlog.client.admin import NewTopic
from streamlog.client.consumer import Consumer
from streamlog.durations import duration_text
from streamlog.errors import ConfigError, ProcessingError, TopologyError, UsageError
from streamlog.history.job_report import JobProgress, progress_line
from streamlog.history.task_run import Read
from streamlog.log import Log
from streamlog.record import TopicPartition
from streamlog.worker.worker import Worker

ORDERS = [(f"shop{n % 3}", n % 7, 1_000_000 + n * 250) for n in range(600)]
END = "2100-01-01"
NO_MARKS = {"mark.quiet.ms": "-1"}


class Till:
    """An app over orders, with a repartition and windows that close."""

    def __init__(
        self, directory: Path, scale: int = 1, factor: int = 3, *, url: str | None = None
    ) -> None:
        self.url = url or f"embedded:{directory / 'log'}"
        self.app = App(
            "till", log=self.url, state_dir=str(directory / "state"), commit_interval="20ms"
        )
        self.orders = self.app.topic("orders", key=str, value=int, partitions=3)
        self.sums = self.app.topic("sums", key=Windowed[str], value=int, partitions=2)
        self.scaled = self.app.topic("scaled", key=str, value=int, partitions=2)
        orders = self.app.stream(self.orders)
        orders.map_values(lambda v: v * scale).to(self.scaled)
        by_digit = orders.group_by(lambda _, v: f"digit {v}", name="by-digit")
        windows = by_digit.windowed(tumbling("10s", grace="1s")).emit(Emit.CLOSE)
        windows.reduce(lambda a, b: a * factor + b, name="folded").changes().to(self.sums)

    async def fill(self) -> None:
        names = {"orders": 3, "sums": 2, "scaled": 2}
        async with Log.open(self.url) as log:
            await log.admin().create_topics(
                [NewTopic(name, count, configs=NO_MARKS) for name, count in names.items()]
            )
            async with log.producer() as producer:
                for n, (key, value, at_ms) in enumerate(ORDERS):
                    raw_key, raw_value = self.orders.encoded(key, value)
                    await producer.send(
                        "orders", raw_value, key=raw_key, timestamp_ms=at_ms, partition=n % 3
                    )
                await producer.flush()

    async def live(self) -> None:
        """Run a worker until it has written all rows that the driver writes."""
        stop = asyncio.Event()
        worker = Worker(self.app.program(), log_url=self.url, announce=lambda _start: None)
        async with asyncio.TaskGroup() as group:
            group.create_task(worker.run(stop))
            async with asyncio.timeout(60), Log.attach(self.url, timeout_ms=30_000) as log:
                wanted = self.driven()
                async with self.reading(log) as consumer:
                    while wanted > 0:
                        wanted -= sum(map(len, (await consumer.poll(timeout_ms=500)).values()))
                stop.set()

    def driven(self) -> int:
        """Return the number of rows that the driver writes."""
        with self.app.test() as t:
            for n, (key, value, at_ms) in enumerate(ORDERS):
                t.input(self.orders).send(value, key=key, at=at_ms, partition=n % 3)
            sums = len(t.output(self.sums).records)
            assert sums > 50
            return sums + len(t.output(self.scaled).records)

    @asynccontextmanager
    async def reading(self, log: Log) -> AsyncIterator[Consumer]:
        tps = [TopicPartition(name, n) for name in ("sums", "scaled") for n in range(2)]
        async with log.consumer(
            auto_offset_reset="earliest", isolation_level="read_committed"
        ) as consumer:
            consumer.assign(tps)
            yield consumer


@pytest.fixture
def till(tmp_path: Path) -> Till:
    till = Till(tmp_path)
    asyncio.run(till.fill())
    return till


def test_a_history_equals_the_live_app_s_output(till: Till) -> None:
    asyncio.run(till.live())
    job = till.app.backfill(outputs="stage", until=END)
    snapshot = job.run()
    assert sum(snapshot.offsets.values()) == len(ORDERS)
    for topic in (till.scaled, till.sums):
        comparison = job.compare(topic)
        assert comparison, str(comparison)
        assert "equal" in str(comparison)
    assert job.rows["scaled"] == len(ORDERS)


def test_a_history_of_a_changed_program_shows_the_differences(till: Till, tmp_path: Path) -> None:
    asyncio.run(till.live())
    job = Till(tmp_path, scale=2).app.backfill(outputs="stage", until=END)
    job.run()
    comparison = job.compare(till.scaled)
    assert not comparison
    assert "only in the history: 'shop" in str(comparison)
    # The first record of shop 0 is 0, which doubling does not change.
    first = "'shop0' = 6, 1970-01-01T00:16:40.750000+00:00"
    led = "orders-0 at offset 1: 'shop0' = 3, 1970-01-01T00:16:40.750000+00:00"
    assert f"    only in the history: {first}\n      from {led}\n" in str(comparison)
    assert "only live: 'shop0' = 3, 1970-01-01T00:16:40.750000+00:00 at offset" in str(comparison)
    plain = str(job.compare(till.scaled, inputs=False))
    assert "only live" in plain
    assert "from orders" not in plain
    assert not [*(tmp_path / "state" / ".history" / "till").iterdir()]


def test_a_differing_window_row_is_shown_with_its_records(till: Till, tmp_path: Path) -> None:
    till.app.backfill(outputs="publish", until=END).run()
    job = Till(tmp_path, factor=5).app.backfill(outputs="stage", until=END)
    job.run()
    comparison = job.compare(till.sums)
    differences = [each for p in comparison.partitions for each in p.differences]
    assert {each.is_staged for each in differences} == {True, False}
    for each in differences:
        key, value = till.sums.spec.key.loads(each.row.key), int.from_bytes(each.row.value or b"")
        start_ms = round(key.start.timestamp() * 1_000)
        inside = [
            (n % 3, n // 3, f"{key.key!r} = {digit}")
            for n, (_, digit, at_ms) in enumerate(ORDERS)
            if f"digit {digit}" == key.key and start_ms <= at_ms < start_ms + 10_000
        ]
        made = [line for line in each.inputs if line.startswith("from ")]
        assert len(made) == min(len(inside), 4)
        expected_lines = {f"from orders-{part} at {n}: {row}" for part, n, row in inside}
        assert {line.rpartition(",")[0] for line in made} <= expected_lines
        # A record after the end of a window closes it.
        closing = [line for line in each.inputs if line not in made]
        assert len(closing) == each.is_staged
        assert all(line.startswith("triggered by orders-") for line in closing)
        factor = 5 if each.is_staged else 3
        first = int(key.key.removeprefix("digit "))
        assert value == sum(first * factor**power for power in range(len(inside)))


def test_a_history_ends_at_the_time_all_partitions_reached(till: Till) -> None:
    job = till.app.backfill()
    assert "ends at 1970-01-01T00:" in job.explain()
    snapshot = job.run()
    assert sum(snapshot.offsets.values()) < len(ORDERS)
    assert snapshot.manifest.cut_ms == min(
        max(at for key, _, at in ORDERS if key == shop) for shop in ("shop0", "shop1", "shop2")
    )


def test_since_leaves_out_older_records(till: Till) -> None:
    job = till.app.backfill(since=1_000_000 + 300 * 250, until=END, outputs="stage")
    job.run()
    assert job.rows["scaled"] == 300


def test_a_failing_function_is_reported_with_its_record(tmp_path: Path) -> None:
    till = Till(tmp_path)
    asyncio.run(till.fill())

    def breaks(value: int) -> int:
        return 1 // (value - 6)

    till.app.stream(till.orders).map_values(breaks, name="inverse").to(till.scaled)
    job = till.app.backfill(until=END, outputs="stage")
    with pytest.raises(ProcessingError, match="inverse") as raised:
        job.run()
    assert raised.value.topic == "orders"
    assert raised.value.offset >= 0
    assert not (tmp_path / "snapshots" / job.id).exists()
    with pytest.raises(UsageError, match="has not run yet"):
        _ = job.rows


def test_a_missing_input_topic_is_named(tmp_path: Path) -> None:
    till = Till(tmp_path)

    async def make() -> None:
        async with Log.open(till.url):
            pass

    asyncio.run(make())
    with pytest.raises(TopologyError, match="topic 'orders' is read by 'till' but does not exist"):
        till.app.backfill().run()


def test_a_history_that_ends_before_it_starts_is_refused(till: Till) -> None:
    with pytest.raises(ConfigError, match=r"ends .* before it begins"):
        till.app.backfill(since="2024-01-02", until="2024-01-01").explain()


def test_a_backfill_on_an_event_loop_is_refused(till: Till) -> None:
    async def call() -> None:
        till.app.backfill().run()

    with pytest.raises(UsageError, match=r"asyncio\.to_thread"):
        asyncio.run(call())


def test_discarded_rows_can_not_be_compared(till: Till) -> None:
    job = till.app.backfill(until=END)
    job.run()
    with pytest.raises(UsageError, match="outputs='stage'"):
        job.compare(till.sums)


async def published(till: Till, rows: int) -> list[tuple[bytes | None, bytes | None]]:
    found: list[tuple[bytes | None, bytes | None]] = []
    async with Log.open(till.url) as log, till.reading(log) as consumer:
        ends = await consumer.end_offsets(list(consumer.assignment()))
        while any(consumer.positions().get(at, 0) < end for at, end in ends.items()):
            for records in (await consumer.poll(timeout_ms=100)).values():
                found += [(r.key, r.value) for r in records]
    assert len(found) == rows
    return found


def test_a_repeated_job_publishes_its_rows_once(till: Till) -> None:
    wanted = till.driven()
    job = till.app.backfill(until=END, outputs="publish", job_id="till-2")
    snapshot = job.run()
    assert snapshot.manifest.staged == ()
    assert {topic for topic, *_ in snapshot.manifest.outputs} == {"sums", "scaled"}
    before = asyncio.run(published(till, wanted))
    # As if the result of the first run had been lost.
    again = till.app.backfill(until=END, outputs="publish", job_id="till-2").run()
    assert again.manifest.outputs == snapshot.manifest.outputs
    assert asyncio.run(published(till, wanted)) == before


@given(total=st.integers(1, 10**12), elapsed_ms=st.integers(0, 10**9), data=st.data())
def test_a_line_of_progress_extrapolates_what_was_read(
    total: int, elapsed_ms: int, data: st.DataObject
) -> None:
    done = data.draw(st.integers(0, total))
    line = progress_line(done, total, elapsed_ms)
    assert f"{total:,}" in line
    assert f"{duration_text(elapsed_ms // 1000 * 1000)} so far" in line
    assert ("left" in line) == (0 < done < total)
    if done * 2 == total and elapsed_ms % 1000 == 0:
        # Halfway, as much time is left as has passed.
        assert f"about {duration_text(elapsed_ms)} left" in line


@pytest.mark.parametrize("shown", [None, False])
def test_a_job_without_a_terminal_says_how_far_it_is(
    caplog: pytest.LogCaptureFixture, *, shown: bool | None
) -> None:
    said = threading.Event()

    class Listener(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if "3 of 9 records are read" in record.getMessage():
                said.set()

    logger = logging.getLogger("streamlog.history.job_report")
    listener = Listener()
    logger.addHandler(listener)
    try:
        with (
            caplog.at_level(logging.INFO, logger.name),
            JobProgress("july", 9, shown=shown, first_line_s=0.001) as progress,
        ):
            progress.read(Read(("orders", 1), 3, 9, is_staged=False))
            # What a stage has staged is no record of the log.
            progress.read(Read(("by-digit", 0), 5, 5, is_staged=True))
            assert shown is False or said.wait(30)
    finally:
        logger.removeHandler(listener)
    assert said.is_set() == (shown is None)
