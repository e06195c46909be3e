"""Topics that a worker creates have the settings that the app declares."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from pathlib import Path

import pytest

from streamlog import App, on_error
from streamlog.client.admin import NewTopic
from streamlog.log import Log
from streamlog.worker.topics.app_topics import (
    EVERY_TIMESTAMP,
    UNBOUNDED,
    declare_topics,
    ensure_topics,
    without_bounds,
)


def test_declared_topic_settings_reach_the_log(tmp_path: Path) -> None:
    app = App("shop")
    app.topic("sales", key=str, value=str, partitions=3, retention="1h30m")
    app.topic("prices", key=str, value=str, compact=True)

    async def main() -> None:
        async with Log.open(f"embedded:{tmp_path / 'log'}", listen=False) as log:
            counts = await declare_topics(log, app.topics)
            assert counts["sales"] == 3
            sales = await log.admin().describe_configs("sales")
            prices = await log.admin().describe_configs("prices")
            assert sales["retention.ms"].value == "5400000"
            assert sales["cleanup.policy"].value == "delete"
            assert prices["cleanup.policy"].value == "compact"

    asyncio.run(main())


def test_an_app_counts_only_its_own_topics(tmp_path: Path) -> None:
    app = App("shop")
    sales = app.topic("sales", key=str, value=str, partitions=3)
    app.stream(sales).group_by(lambda _, sale: sale, name="by-sale").count(name="n")

    async def main() -> None:
        async with Log.open(f"embedded:{tmp_path / 'log'}", listen=False) as log:
            await log.admin().create_topics([NewTopic("of-others", 7)])
            counts = await ensure_topics(log, app.topology(), app.topics, required=())
            assert counts == {
                "sales": 3,
                "shop-by-sale-repartition": 3,
                "shop-1-changelog": 3,
            }

    asyncio.run(main())


def test_a_topic_that_differs_from_its_declaration_is_logged_with_the_command(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    app = App("shop")
    app.topic("prices", key=str, value=str, partitions=1, compact=True)
    app.topic("rates", key=str, value=str, partitions=1, compact=True, retention="1h")
    app.topic("fitting", key=str, value=str, partitions=1, compact=True)
    app.topic("created", key=str, value=str, partitions=1, compact=True)
    app.topic("plain", key=str, value=str, partitions=1)
    existing = {"prices": {}, "rates": {}, "plain": {"cleanup.policy": "compact"}}
    existing["fitting"] = {"cleanup.policy": "delete,compact"}

    async def main() -> None:
        async with Log.open(f"embedded:{tmp_path / 'log'}", listen=False) as log:
            await log.admin().create_topics(
                [NewTopic(n, 1, configs=c) for n, c in existing.items()]
            )
            await ensure_topics(log, app.topology(), app.topics, required=())

    asyncio.run(main())
    logged = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert len(logged) == 3
    assert "topic prices has cleanup.policy=delete, but this app declares compact=True" in logged[0]
    assert "streamlog configs alter --topic prices --set cleanup.policy=compact --log" in logged[0]
    assert "topic rates has cleanup.policy=delete" in logged[1]
    assert "topic rates has retention.ms=-1, but this app declares retention=" in logged[2]


def counted_by_sale() -> App:
    """Build an app with every kind of internal topic."""
    app = App("shop", on_error=on_error.dlq())
    sales = app.topic("sales", key=str, value=str, partitions=1)
    app.stream(sales).group_by(lambda _, sale: sale, name="by-sale").count(name="n")
    app.table("notes", key=str, value=str)
    return app


OWN = ("shop-by-sale-repartition", "shop-1-changelog", "shop-dlq")
BOUNDED = "message.timestamp.after.max.ms"


async def bounds(log: Log, topics: Iterable[str]) -> dict[str, tuple[str | None, str]]:
    found = {}
    for topic in topics:
        entry = (await log.admin().describe_configs(topic))[BOUNDED]
        found[topic] = entry.value, entry.source
    return found


def test_internal_topics_accept_every_event_time(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    program = counted_by_sale().program()

    async def main() -> None:
        async with Log.open(f"embedded:{tmp_path / 'log'}", listen=False) as log:
            await log.admin().alter_configs({f"log.{BOUNDED}": "3600000"}, broker="all")
            counts = await ensure_topics(log, program.topology, program.topics, required=())
            created = counts.keys() - {"sales"}
            assert created > {*OWN}
            assert {*(await bounds(log, created)).values()} == {(UNBOUNDED, "topic")}
            assert await bounds(log, ["sales"]) == {"sales": ("3600000", "all brokers")}
            caplog.clear()
            await ensure_topics(log, program.topology, program.topics, required=())

    asyncio.run(main())
    assert not [each for each in caplog.records if "accepts every event time" in each.getMessage()]


def test_internal_topics_of_an_earlier_release_accept_every_event_time(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    program = counted_by_sale().program()
    caplog.set_level("INFO", "streamlog.worker")
    own_bound = {BOUNDED: "86400000"}

    async def main() -> None:
        async with Log.open(f"embedded:{tmp_path / 'log'}", listen=False) as log:
            existing = [NewTopic(name, 1) for name in ("sales", *OWN[:2])]
            existing += [NewTopic(OWN[2], 1, configs=own_bound)]
            await log.admin().alter_configs({f"log.{BOUNDED}": "3600000"}, broker="all")
            await log.admin().create_topics(existing)
            await ensure_topics(log, program.topology, program.topics, required=())
            assert await bounds(log, ("sales", *OWN)) == {
                "sales": ("3600000", "all brokers"),
                **dict.fromkeys(OWN[:2], (UNBOUNDED, "topic")),
                OWN[2]: (own_bound[BOUNDED], "topic"),
            }

    asyncio.run(main())
    logged = [
        each.getMessage() for each in caplog.records if "every event time" in each.getMessage()
    ]
    assert sorted(logged) == sorted(
        f"topic {name} now accepts every event time: set {BOUNDED}={UNBOUNDED}" for name in OWN[:2]
    )


def test_a_broker_without_timestamp_bounds_gets_the_topic_without_them() -> None:
    topic = NewTopic("t", 2, configs={"retention.ms": "-1", **EVERY_TIMESTAMP})
    left = {"retention.ms": "-1", "message.timestamp.type": "CreateTime"}
    assert without_bounds(topic) == NewTopic("t", 2, configs=left)
    assert without_bounds(NewTopic("t", 2, configs=left)) is None
