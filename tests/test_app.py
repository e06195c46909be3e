from __future__ import annotations

import asyncio
from datetime import datetime
from typing import Any

import pytest

from streamlog import App, Stream
from streamlog.errors import ConfigError, SerdeError, TopologyError, UsageError
from streamlog.snapshots.object_store import SnapshotSettings


def test_state_memory_has_a_minimum() -> None:
    assert App("a", state_memory_bytes=1 << 24).program().state_memory_bytes == 1 << 24
    with pytest.raises(ConfigError, match="state_memory_bytes is 1000: set it to 16777216 or more"):
        App("a", state_memory_bytes=1_000)


def test_an_unknown_setting_is_refused_with_the_nearest_name() -> None:
    settings: dict[str, Any] = {"state_directory": "x"}
    with pytest.raises(ConfigError, match="no setting 'state_directory': did you mean 'state_dir'"):
        App("a", **settings)
    with pytest.raises(ConfigError, match="its settings are log, security, state_dir"):
        App("a", zzz=1)


def test_interval_settings_have_units_and_bounds() -> None:
    assert App("a", commit_interval="2s").commit_interval_ms == 2_000
    with pytest.raises(ConfigError, match="no unit"):
        App("a", commit_interval="2")
    with pytest.raises(ConfigError, match="longer than 0"):
        App("a", commit_interval="0s")


def test_replica_settings_have_bounds() -> None:
    assert App("shop", standby_replicas=1).policy.standbys == 1
    with pytest.raises(ConfigError, match="standby_replicas is -1: set it to 0 or more"):
        App("shop", standby_replicas=-1)
    with pytest.raises(ConfigError, match="warmup_replicas is 0"):
        App("shop", warmup_replicas=0)


def test_security_settings_are_checked_when_they_are_declared() -> None:
    settings = {
        "security.protocol": "sasl_ssl",
        "sasl.mechanism": "PLAIN",
        "sasl.username": "alice",
        "sasl.password": "white-rabbit-17",
    }
    app = App("a", security=settings)
    assert app.security is not None
    assert (app.security.protocol, app.security.user) == ("SASL_SSL", "alice")
    assert "white-rabbit-17" not in repr(app.security)
    assert App("b", security=app.security).security is app.security
    assert App("c").security is None
    with pytest.raises(ConfigError, match=r"unknown security setting 'sasl\.pasword'") as info:
        App("d", security={"sasl.pasword": "white-rabbit-17"})
    assert "white-rabbit-17" not in str(info.value)


def test_topics_are_declared_once_with_valid_types() -> None:
    app = App("a")
    words = app.topic("words", key=str, value=int, partitions=3, compact=True)
    assert app.topics["words"] is words.spec
    assert (words.spec.partitions, words.spec.compact) == (3, True)
    with pytest.raises(TopologyError, match="already declared"):
        app.topic("words", key=str, value=int)
    with pytest.raises(TopologyError, match="1 or more, not 0"):
        app.topic("none", key=str, value=int, partitions=0)
    with pytest.raises(SerdeError, match="the value of topic 'odd'"):
        app.topic("odd", key=str, value=type("Odd", (), {}))


def test_a_topic_of_another_app_is_refused() -> None:
    other = App("b").topic("words", key=str, value=int)
    for use in (App("a").stream, App("a").table, App("a").agent):
        with pytest.raises(TopologyError, match="does not belong to app 'a'"):
            use(other)
    with pytest.raises(TopologyError, match="needs a topic"):
        App("a").stream()


def test_the_name_of_a_topic_is_not_accepted_as_a_topic() -> None:
    app = App("a")
    words = app.topic("words", key=str, value=int)
    for use in (app.stream, app.agent, app.stream(words).to):
        with pytest.raises(
            TopologyError, match=r"'words' is not a topic: declare it .* app\.topic\("
        ):
            use("words")


def test_a_topic_that_is_streamed_twice_is_one_source() -> None:
    app = App("a")
    words = app.topic("words", key=str, value=int)
    app.stream(words).peek(print)
    app.stream(words).peek(print)
    (sub,) = app.topology().subtopologies
    assert sub.inputs == ("words",)


def test_schedules_are_checked_when_they_are_declared() -> None:
    app = App("a", timezone="Europe/Berlin")

    @app.timer("15s", on="every_worker")
    async def ping() -> None: ...

    @app.crontab("30 2 * * *", misfire="once")
    async def close_day(due: datetime) -> None: ...

    (timer,), (crontab,) = app.timers, app.crontabs
    assert (timer.name, timer.every_ms, timer.on) == ("ping", 15_000, "every_worker")
    assert (crontab.spec, crontab.timezone, crontab.misfire) == (
        "30 2 * * *", "Europe/Berlin", "once"
    )  # fmt: skip
    with pytest.raises(ConfigError, match="longer than 0"):
        app.timer("0s")
    with pytest.raises(ConfigError, match="cron"):
        app.crontab("every day")
    with pytest.raises(ConfigError, match="time zone"):
        app.crontab("30 2 * * *", tz="Mars/Olympus")
    wrong: Any = "nobody"
    with pytest.raises(ConfigError, match="'every_worker', not 'nobody'"):
        app.timer("1s", on=wrong)
    with pytest.raises(ConfigError, match="misfire"):
        app.crontab("30 2 * * *", misfire=wrong)


def test_agent_names_are_unique() -> None:
    app = App("a")
    words = app.topic("words", key=str, value=str)

    async def greet(stream: Stream[str, str]) -> None:
        async for word in stream:
            assert word

    app.agent(words)(greet)
    app.agent(words, name="again")(greet)
    assert [agent.name for agent in app.agents] == ["greet", "again"]
    with pytest.raises(TopologyError, match="agent 'greet' is already declared"):
        app.agent(words)(greet)


def test_sending_without_a_running_app_is_refused() -> None:
    words = App("a").topic("words", key=str, value=str)
    with pytest.raises(UsageError, match="the app is not running"):
        asyncio.run(words.send("hello"))


def test_the_program_contains_everything_declared() -> None:
    app = App("a", state_dir="/somewhere", state_cleanup_delay="1m", commit_interval="1s")
    words = app.topic("words", key=str, value=str)
    app.stream(words).group_by_key().count(name="seen")
    program = app.program()
    assert (program.app_id, program.state_dir) == ("a", "/somewhere")
    assert (program.commit_interval_ms, program.state_cleanup_delay_ms) == (1_000, 60_000)
    assert [*program.topics] == ["words"]
    assert program.topology.subtopologies[0].changelog_topic == "a-0-changelog"


def test_snapshots_are_settings_of_workers() -> None:
    assert App("a").program().snapshots is None
    found = App("a", snapshots="s3://bucket/a", snapshot_interval="1m").program().snapshots
    assert found == SnapshotSettings(url="s3://bucket/a", interval_ms=60_000)
    with pytest.raises(ConfigError, match="snapshots is 'bucket': use s3://BUCKET/PREFIX"):
        App("a", snapshots="bucket")
    with pytest.raises(ConfigError, match="snapshots is 's3:/bucket': use s3://BUCKET/PREFIX"):
        App("a", snapshots="s3:/bucket")
    with pytest.raises(ConfigError, match="snapshot_interval must be longer than 0 ms"):
        App("a", snapshot_interval="0s")
    with pytest.raises(ConfigError, match="snapshot_bytes_per_s is 0"):
        App("a", snapshots="file:///tmp/x", snapshot_bytes_per_s=0)
