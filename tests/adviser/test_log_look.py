"""Faults that are planted in a real broker are found, and a new log has none."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from streamlog import App, Emit, Windowed, tumbling
from streamlog.adviser import Diagnosis, Thresholds, advise, log_look
from streamlog.adviser.app_look import look_at_app
from streamlog.adviser.log_look import LogLook
from streamlog.adviser.log_view import LogView
from streamlog.client.admin import Admin, NewTopic
from streamlog.errors import NotAuthorized, UnsupportedVersion
from streamlog.log import Log
from streamlog.protocol.error_codes import ErrorCode, error_for
from streamlog.record import TopicPartition
from streamlog.replace import replace
from streamlog.worker.topics.app_topics import ensure_topics

NOW_MS = time.time_ns() // 1_000_000
HOUR_MS = 60 * 60 * 1000
OF_THIS_MACHINE = {"disk-full", "disk-days", "interpreted-modules", "few-descriptors"}
"""What may be wrong with the machine that runs the tests."""
T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


@asynccontextmanager
async def opened(path: Path, *topics: NewTopic) -> AsyncIterator[Log]:
    async with Log.open(f"embedded:{path}/log", listen=False) as log:
        await log.admin().create_topics(topics or [NewTopic("t", 2)])
        yield log


async def look(log: Log, watch_s: float = 0.0) -> LogView:
    return await LogLook(log, url="kafka://h:1").view(watch_s)


async def find(log: Log, thresholds: Thresholds | None = None) -> dict[str, Diagnosis]:
    found = advise(await look(log), thresholds=thresholds or Thresholds())
    return {each.code: each for each in found if each.code not in OF_THIS_MACHINE}


async def send(
    log: Log, topic: str, partition: int, *records: tuple[int, bytes | None], value: bytes = b"v"
) -> None:
    """Write records of these times and keys."""
    async with log.producer() as producer:
        rows = [(time_ms, key, value, ()) for time_ms, key in records]
        await (await producer.send_batch(topic, partition, rows, atomic=True))


def test_a_new_log_with_records_and_readers_has_no_finding(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path) as log:
            assert await find(log) == {}
            for partition in (0, 1):
                await send(log, "t", partition, *[(NOW_MS, b"k")] * 50)
            async with log.consumer(group_id="g", auto_offset_reset="earliest") as consumer:
                await consumer.subscribe(["t"])
                read = 0
                while read < 100:
                    read += sum(map(len, (await consumer.poll(timeout_ms=1_000)).values()))
                await consumer.commit()
                view = await look(log, watch_s=0.05)
            assert {each.code for each in advise(view)} <= OF_THIS_MACHINE
            assert view.unseen == ()
            (broker,) = view.brokers
            assert broker.version
            assert abs(broker.clock_ahead_ms or 0) <= broker.clock_error_ms + 1
            assert broker.settings["flush"] == "always"
            assert view.topics["t"].ends == {0: 50, 1: 50}
            assert all(view.topics["t"].sizes.values())
            assert view.groups["g"].readings[T0].lag == 0
            assert view.groups["g"].members
            assert view.watched_s > 0

    asyncio.run(main())


Plant = Callable[[Log], Awaitable[object]]


def settings(**given: str) -> Plant:
    """Return a plant that alters settings of topic `t`; `_` stands for `.`."""
    changes = {name.replace("_", "."): value for name, value in given.items()}
    return lambda log: log.admin().alter_configs(changes, topic="t")


def of_brokers(name: str, value: str) -> Plant:
    return lambda log: log.admin().alter_configs({name: value}, broker="all")


PLANTS: dict[str, Plant] = {
    "unclean-election": settings(unclean_leader_election_enable="true"),
    "throttle-left": settings(leader_replication_throttled_replicas="0:1"),
    "cleaner-off": of_brokers("log.cleaner.enable", "false"),
    "verbose-loggers": lambda log: log.admin().alter_loggers(1, {"streamlog.broker": "DEBUG"}),
    "frequent-pushes": lambda log: log.admin().alter_client_metrics(
        "all", {"metrics": "*", "interval.ms": "1000"}
    ),
    "cordoned-broker": lambda log: log.admin().alter_configs({"cordoned.log.dirs": "*"}, broker=1),
    "few-descriptors": of_brokers("max.connections", "100000000"),
}


def test_each_planted_setting_is_found_and_mended(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path) as log:
            for plant in PLANTS.values():
                await plant(log)
            view = await look(log)
            found = {each.code for each in advise(view)} - (OF_THIS_MACHINE - PLANTS.keys())
            assert found == PLANTS.keys()
            admin = log.admin()
            await admin.alter_configs(
                dict.fromkeys(
                    ("unclean.leader.election.enable", "leader.replication.throttled.replicas")
                ),
                topic="t",
            )
            await admin.alter_configs(
                dict.fromkeys(("log.cleaner.enable", "max.connections")), broker="all"
            )
            await admin.alter_configs({"cordoned.log.dirs": None}, broker=1)
            await admin.alter_loggers(1, {"streamlog.broker": None})
            await admin.alter_client_metrics("all", {"interval.ms": None})
            assert await find(log) == {}

    asyncio.run(main())


def test_lag_loss_and_records_that_are_about_to_expire_are_found(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path) as log:
            admin = log.admin()
            for partition in (0, 1):
                await send(log, "t", partition, *[(NOW_MS - HOUR_MS, None)] * 20)
            await admin.alter_group_offsets("slow", {T0: 5, T1: 20})
            found = await find(log)
            assert {*found} == {"unread-lag"}
            assert found["unread-lag"].where == "group slow: t-0"
            await admin.alter_configs({"retention.ms": str(HOUR_MS * 10 // 9)}, topic="t")
            assert {*await find(log)} == {"unread-lag", "lag-near-retention"}
            await admin.alter_configs({"retention.ms": "-1"}, topic="t")
            await admin.delete_records({T0: 8})
            found = await find(log)
            assert {*found} == {"unread-lag", "lost-records"}
            assert found["lost-records"].problem.startswith("3 offsets were deleted")
            await admin.alter_group_offsets("slow", {T0: 20})
            assert await find(log) == {}

    asyncio.run(main())


def test_a_group_that_reads_less_than_is_written_is_found(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path) as log:
            async with log.consumer(group_id="slow", auto_offset_reset="earliest") as consumer:
                await consumer.subscribe(["t"])
                while not consumer.assignment():
                    await consumer.poll(timeout_ms=100)
                await log.admin().alter_group_offsets("other", {T0: 0})
                await send(log, "t", 0, *[(NOW_MS - 60_000, None)] * 10)
                await consumer.commit({T0: 0, T1: 0})
                looking = LogLook(log, url="kafka://h:1")
                await looking.next_view()
                await send(log, "t", 0, *[(NOW_MS - 60_000, None)] * 200)
                await consumer.commit({T0: 20})
                view = await looking.next_view()
            codes = {each.code: each for each in advise(view)}
            assert "falling-behind" in codes
            assert codes["falling-behind"].where == "group slow, topic t"
            reading = view.groups["slow"].readings[T0]
            assert (reading.lag, reading.is_falling_behind) == (190, True)

    asyncio.run(main())


def test_ages_that_brokers_do_not_tell_are_read_from_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        async with opened(tmp_path) as log:
            await send(log, "t", 0, *[(NOW_MS - n * HOUR_MS, None) for n in range(9, 0, -1)])
            async with log.producer(transactional_id="shop") as producer, producer.transaction():
                await (await producer.send("t", b"v", partition=1))
            await log.admin().alter_group_offsets("slow", {T0: 4, T1: 1})
            await log.admin().alter_group_offsets("lost", {T0: 0})
            await log.admin().delete_records({T0: 2})
            told = (await look(log)).groups
            monkeypatch.setattr(Admin, "describe_group_lag", unsupported)
            view = await look(log)
            assert view.unseen == ()
            for name, at in (("slow", T0), ("slow", T1), ("lost", T0)):
                read, known = view.groups[name].readings[at], told[name].readings[at]
                assert (read.lag, read.lost) == (known.lag, known.lost)
                assert read.lag_ms == pytest.approx(known.lag_ms, abs=30_000)
            assert view.groups["slow"].readings[T1].lag == 1
            assert view.groups["slow"].readings[T1].lag_ms == 0

    async def unsupported(*_: object) -> None:
        raise UnsupportedVersion("DescribeGroupLag")

    asyncio.run(main())


def test_what_has_no_answer_in_time_or_is_refused_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def never(*_: object) -> None:
        await asyncio.Event().wait()

    async def refused(*_: object) -> None:
        raise NotAuthorized("describe the quorum")

    async def main() -> None:
        async with opened(tmp_path) as log:
            monkeypatch.setattr(Admin, "describe_quorum", refused)
            view = await look(log)
            assert view.unseen == ("the quorum: this user may not see it",)
            assert view.controller == 1
            for name in ("PATIENCE_S", "IMPATIENT_S"):
                monkeypatch.setattr(log_look, name, 0.05)
            monkeypatch.setattr(Admin, "describe_quorum", never)
            view = await look(log)
            assert "the quorum: no answer in time" in view.unseen
            assert "no-controller" in {each.code for each in advise(view)}

    asyncio.run(main())


def test_a_group_that_is_deleted_meanwhile_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def gone(*_: object) -> None:
        raise error_for(ErrorCode.GROUP_ID_NOT_FOUND, "group g")

    async def main() -> None:
        async with opened(tmp_path) as log:
            await log.admin().alter_group_offsets("g", {T0: 0})
            for name in ("describe_groups", "describe_group_lag"):
                monkeypatch.setattr(Admin, name, gone)
            view = await look(log)
            assert view.unseen == ()
            assert view.groups["g"].members == {}

    asyncio.run(main())


def test_open_transactions_are_found(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path) as log, log.producer(transactional_id="shop") as producer:
            async with producer.transaction():
                await (await producer.send("t", b"v", partition=0))
                view = await look(log)
                (open_one,) = view.transactions
                assert open_one.transactional_id == "shop"
                assert open_one.partitions == {T0}
                assert open_one.timeout_ms > open_one.open_ms
                assert "hanging-transaction" not in {each.code for each in advise(view)}
                late = replace(view, transactions=(replace(open_one, open_ms=10**9),))
                assert "hanging-transaction" in {each.code for each in advise(late)}
            assert (await look(log)).transactions == ()

    asyncio.run(main())


def windowed_app(**source: Any) -> App:
    app = App("shop", log="kafka://h:1")
    orders = app.topic("t", key=str, value=str, **source)
    app.stream(orders).rekey(lambda _, value: value, name="by-value").group_by_key().windowed(
        tumbling("1m", grace="10s")
    ).emit(Emit.CLOSE).count(name="counts").changes().to(
        app.topic("rows", key=Windowed[str], value=int)
    )
    return app


async def find_for(app: App, log: Log) -> dict[str, Diagnosis]:
    view, topology = await look(log), app.program().topology
    of_app = await look_at_app(
        topology,
        log,
        view,
        module="shop",
        guarantee=app.guarantee,
        commit_interval_ms=app.commit_interval_ms,
        standby_replicas=0,
    )
    found = advise(view, of_app)
    return {each.code: each for each in found if each.code not in OF_THIS_MACHINE}


def test_faults_between_an_app_and_its_log_are_found(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path) as log:
            app, admin = windowed_app(), log.admin()
            program = app.program()
            await ensure_topics(log, program.topology, app.topics, required=())
            assert await find_for(app, log) == {}
            in_order = [(NOW_MS + n, b"k%d" % n) for n in range(1_000)]
            for partition in (0, 1):
                await send(log, "t", partition, *in_order)
            assert await find_for(app, log) == {}
            await send(log, "t", 0, *[(NOW_MS - HOUR_MS, b"hot")] * 500)
            await admin.alter_configs({"retention.ms": "30000"}, topic="t")
            await admin.alter_configs({"cleanup.policy": "delete"}, topic="shop-1-changelog")
            await admin.alter_configs(
                {"retention.ms": "604800000"}, topic="shop-by-value-repartition"
            )
            await admin.create_topics([NewTopic("shop-9-changelog", 1)])
            assert {*await find_for(app, log)} == {
                "late-records",
                "hot-key",
                "short-retention",
                "changelog-retention",
                "repartition-retention",
                "orphaned-topics",
            }

    asyncio.run(main())


def test_event_times_come_from_the_apps_own_functions(tmp_path: Path) -> None:
    def refuses(value: str) -> int:
        if value == "bad":
            raise ValueError(value)
        return int(value)

    async def main() -> None:
        async with opened(tmp_path) as log:
            app = windowed_app(timestamp=refuses)
            ahead = str(NOW_MS + 30 * HOUR_MS).encode()
            await send(log, "t", 0, (NOW_MS, b"a"), value=b"bad")
            await send(log, "t", 0, (NOW_MS, b"a"), value=ahead)
            found = await find_for(app, log)
            assert found["future-times"].where == "topic t"
            assert "1.25 d ahead" in found["future-times"].problem

    asyncio.run(main())
