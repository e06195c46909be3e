"""The service: connectors made, changed and removed by requests, and what they carry."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from streamlog.connect import names, source_progress
from streamlog.connect_service import task_keeper
from streamlog.connect_service.herder_shell import ServiceSettings
from streamlog.connect_service.rest_answers import parse_call
from streamlog.connect_service.service_group import ServiceGroup
from streamlog.errors import UnknownMember
from streamlog.log import Log
from streamlog.protocol.messages.classic_groups import LeaveGroupRequest, MemberIdentity
from streamlog.record import TopicPartition
from streamlog.transport.client_connection import TcpTransport
from tests.connect_service.outside import BROKEN, WRITTEN
from tests.connect_service.running import Client, running, worker

SOURCE = {"connector.class": "Numbers", "topic": "numbers", "tasks.max": "2", "count": "5"}
ROWS = Counter((part, number) for part in range(3) for number in range(5))


@pytest.fixture(autouse=True)
def _connectors(monkeypatch: pytest.MonkeyPatch) -> None:
    here = "tests.connect_service.outside"
    monkeypatch.setattr(names, "BUILT_IN", {"Numbers": here, "Listed": here})
    WRITTEN.clear()
    BROKEN.clear()


def sink(into: str) -> dict[str, str]:
    return {"connector.class": "Listed", "topics": "numbers", "into": into}


def lives(
    directory: Path, *lives_of: Callable[[Client], Coroutine[Any, Any, None]], **others: str
) -> None:
    """Run a service once for each function."""

    async def main() -> None:
        for life in lives_of:
            async with asyncio.timeout(60), running(directory, **others) as client:
                await life(client)

    asyncio.run(main())


def rows(into: str) -> Counter[tuple[int, int]]:
    found = (row for row in WRITTEN[into] if isinstance(row, dict))
    return Counter((int(row["part"]), int(row["number"])) for row in found)


def test_rows_go_from_a_source_through_the_log_to_a_sink(tmp_path: Path) -> None:
    async def life(client: Client) -> None:
        status, body = await client.ask("POST", "/connectors", {"name": "in", "config": SOURCE})
        assert status == 201
        assert body == {
            "name": "in", "config": {**SOURCE, "name": "in"}, "tasks": [], "type": "source",
        }  # fmt: skip
        status, _ = await client.ask("PUT", "/connectors/out/config", sink("a"))
        assert status == 201
        await client.until(lambda: rows("a") == ROWS)
        await client.until_state("in", "RUNNING", tasks=2)
        await client.until_state("out", "RUNNING", tasks=1)
        assert await client.get("/connectors") == ["in", "out"]
        offsets = (await client.get("/connectors/in/offsets"))["offsets"]
        assert sorted((each["partition"]["part"], each["offset"]["at"]) for each in offsets) == [
            (0, 5), (1, 5), (2, 5),
        ]  # fmt: skip

    lives(tmp_path, life)


def test_a_source_that_is_full_does_not_wait_for_its_next_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source_progress, "HELD_RECORDS_MAX", 10)

    async def main() -> None:
        async with running(tmp_path, commit_ms=3_600_000) as client:
            source = {**SOURCE, "tasks.max": "1", "parts": "1", "count": "150"}
            await client.ask("PUT", "/connectors/in/config", source)
            await client.ask("PUT", "/connectors/out/config", sink("a"))
            # Those that do not fill it again wait for an hour.
            await client.until(lambda: len(WRITTEN["a"]) > 140)

    asyncio.run(main())


def test_a_service_that_is_started_again_goes_on_where_it_was(tmp_path: Path) -> None:
    async def first(client: Client) -> None:
        await client.ask("PUT", "/connectors/in/config", {**SOURCE, "count": "2"})
        await client.ask("PUT", "/connectors/out/config", sink("a"))
        await client.until(lambda: sum(rows("a").values()) == 6)

    async def second(client: Client) -> None:
        assert await client.get("/connectors/in/config") == {**SOURCE, "count": "2", "name": "in"}
        await client.ask("PATCH", "/connectors/in/config", {"count": "5"})
        await client.until(lambda: rows("a") == ROWS)

    lives(tmp_path, first, second)


def test_malformed_records_in_the_topics_of_a_service_stop_no_worker(tmp_path: Path) -> None:
    deep = b"[" * 100_000
    part = b'["in",{"part":%b}]'
    malformed = [
        ("connect-configs", b"logger-cluster-x", b"[]"),
        ("connect-configs", b"connector-x", b'{"properties":{},"more":%b' % deep),
        ("connect-configs", b"commit-x", b'{"tasks":%d}' % 10**15),
        ("connect-status", b"status-connector-x", b'{"more":%b' % deep),
        ("connect-offsets", part % b'"\xff"', b'{"at":9}'),
        ("connect-offsets", part % b"1", b'{"at":"\xff"}'),
        ("connect-offsets", part % b"1", b'{"at":%b' % deep),
    ]

    async def write(log: Log) -> None:
        async with log.producer() as producer:
            for topic, key, value in malformed:
                await producer.send(topic, value, key=key)

    async def main() -> None:
        async with (
            asyncio.timeout(60),
            Log.open(f"embedded:{tmp_path}") as log,
            worker(log, "127.0.0.1:8083") as client,
        ):
            await write(log)
            await client.ask("PUT", "/connectors/in/config", SOURCE)
            await client.until_state("in", "RUNNING", tasks=2)
            await client.ask("PUT", "/connectors/in/stop")
            await client.until_state("in", "STOPPED", tasks=0)
            body = b'{"offsets":[{"partition":{"part":%b' % deep
            call = parse_call("PATCH", "/connectors/in/offsets", body)
            assert (await client.rest.answer(call))[0] == 400

    asyncio.run(main())


def test_stop_offsets_reset_and_resume_read_everything_again(tmp_path: Path) -> None:
    async def life(client: Client) -> None:
        await client.ask("PUT", "/connectors/in/config", SOURCE)
        await client.ask("PUT", "/connectors/out/config", sink("a"))
        await client.until(lambda: rows("a") == ROWS)
        status, body = await client.ask("DELETE", "/connectors/in/offsets")
        assert (status, "must be in the STOPPED state" in body["message"]) == (400, True)
        assert (await client.ask("PUT", "/connectors/in/stop"))[0] == 204
        await client.until_state("in", "STOPPED", tasks=0)
        part = {"partition": {"part": 1}, "offset": {"at": 4}}
        status, _ = await client.ask("PATCH", "/connectors/in/offsets", {"offsets": [part]})
        assert status == 200
        assert part in (await client.get("/connectors/in/offsets"))["offsets"]
        assert (await client.ask("DELETE", "/connectors/in/offsets"))[0] == 200
        assert await client.get("/connectors/in/offsets") == {"offsets": []}
        assert (await client.ask("PUT", "/connectors/in/resume"))[0] == 202
        await client.until(lambda: rows("a") == ROWS + ROWS)

    lives(tmp_path, life)


def test_offsets_of_a_sink_are_its_groups_and_its_target_follows(tmp_path: Path) -> None:
    async def life(client: Client) -> None:
        await client.ask("PUT", "/connectors/in/config", SOURCE)
        await client.ask("PUT", "/connectors/out/config", sink("a"))
        await client.until(lambda: rows("a") == ROWS)
        await client.ask("PUT", "/connectors/out/stop")
        await client.until_state("out", "STOPPED", tasks=0)
        offsets = (await client.get("/connectors/out/offsets"))["offsets"]
        assert {each["partition"]["kafka_topic"] for each in offsets} == {"numbers"}
        assert (await client.ask("DELETE", "/connectors/out/offsets"))[0] == 200
        assert WRITTEN["a"][-1] == "reset"
        await client.ask("PUT", "/connectors/out/resume")
        await client.until(lambda: rows("a") == ROWS + ROWS)

    lives(tmp_path, life)


def test_a_paused_connector_carries_nothing_until_it_is_resumed(tmp_path: Path) -> None:
    async def life(client: Client) -> None:
        await client.ask("PUT", "/connectors/in/config", SOURCE)
        await client.ask(
            "POST",
            "/connectors",
            {"name": "out", "config": sink("a"), "initial_state": "PAUSED"},
        )
        await client.until_state("in", "RUNNING", tasks=2)
        await client.until_state("out", "PAUSED", tasks=1)
        assert not WRITTEN["a"]
        await client.ask("PUT", "/connectors/out/resume")
        await client.until(lambda: rows("a") == ROWS)
        await client.until_state("out", "RUNNING", tasks=1)

    lives(tmp_path, life)


def test_a_failed_task_shows_its_trace_and_is_restarted(tmp_path: Path) -> None:
    async def life(client: Client) -> None:
        BROKEN.add("x")
        await client.ask("PUT", "/connectors/out/config", sink("a"))
        config = {**SOURCE, "label": "x", "errors.auto.restart": "false", "tasks.max": "1"}
        await client.ask("PUT", "/connectors/in/config", config)

        async with asyncio.timeout(30):
            while True:
                _, body = await client.ask("GET", "/connectors/in/tasks/0/status")
                if body.get("state") == "FAILED":
                    break
                await asyncio.sleep(0.02)
        assert "x is broken" in body["trace"]
        assert body["worker_id"] == "127.0.0.1:8083"
        BROKEN.clear()
        assert (await client.ask("POST", "/connectors/in/tasks/0/restart"))[0] == 204
        await client.until(lambda: rows("a") == ROWS)

    lives(tmp_path, life)


def test_transforms_and_secrets_reach_the_task_and_stay_out_of_topics(tmp_path: Path) -> None:
    async def life(client: Client) -> None:
        config = {
            **SOURCE,
            "password": "${env:WORD}",
            "transforms": "route,name",
            "transforms.name.type": "org.apache.kafka.connect.transforms.ReplaceField$Value",
            "transforms.name.renames": "hidden:shown",
            "transforms.route.type": "org.apache.kafka.connect.transforms.RegexRouter",
            "transforms.route.regex": "numbers",
            "transforms.route.replacement": "others",
        }
        await client.ask("PUT", "/connectors/in/config", config)
        await client.ask("PUT", "/connectors/out/config", {**sink("a"), "topics": "others"})
        await client.until(lambda: rows("a") == ROWS)
        assert {row["shown"] for row in WRITTEN["a"] if isinstance(row, dict)} == {"secret"}
        assert (await client.get("/connectors/in/config"))["password"] == "${env:WORD}"

    lives(tmp_path, life)


def test_what_stops_during_a_rebalance_does_not_hold_it_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(task_keeper, "SETTLE_MS", 3_600_000)

    async def main() -> None:
        # What is read waits for an hour, so each task has something for its last commit.
        async with running(tmp_path, commit_ms=3_600_000) as client, asyncio.timeout(30):
            source = {**SOURCE, "count": "1000000", "parts": "2"}
            for name in ("a", "b"):
                await client.ask("PUT", f"/connectors/{name}/config", source)
            await client.until_state("b", "RUNNING", 2)
            # The first of them is in the round that the last ones ask for.
            await client.ask("PUT", "/connectors/a/stop")
            await client.ask("PATCH", "/connectors/b/config", {"tasks.max": "1"})
            await client.ask("DELETE", "/connectors/b")
            assert (await client.ask("DELETE", "/connectors/a"))[0] == 204

    asyncio.run(main())


def test_a_worker_whose_session_ends_in_the_middle_of_a_round_joins_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a machine that stands still: the coordinator has given the member up meanwhile."""
    removed: list[str] = []

    async def on_assigned(group: ServiceGroup, partitions: frozenset[TopicPartition]) -> None:
        if not removed:
            removed.append(group._consumer.group_metadata().member_id)
            await remove(removed[0])
            # The next heartbeat tells it; the member then joins again, while this round is old.
            while is_member(group):  # noqa: ASYNC110 - nothing else tells it
                await asyncio.sleep(0)
        await real(group, partitions)

    def is_member(group: ServiceGroup) -> bool:
        try:
            return group._consumer.group_metadata().member_id == removed[0]
        except UnknownMember:
            return False

    async def remove(member: str) -> None:
        async with Log.open(f"embedded:{tmp_path}") as log:
            assert log.address is not None
            transport = await TcpTransport.connect(
                *log.address, client_id="operator", timeout_ms=5_000
            )
            members = [MemberIdentity(member_id=member)]
            request = LeaveGroupRequest(group_id=ServiceSettings().group_id, members=members)
            answer = await transport.call(request, timeout_ms=5_000)
            await transport.close()
            assert (answer.error_code, answer.members[0].error_code) == (0, 0)

    async def story() -> None:
        async with running(tmp_path) as client:
            await client.until(lambda: client.service.group.is_settled)

    real = ServiceGroup._on_assigned
    monkeypatch.setattr(ServiceGroup, "_on_assigned", on_assigned)
    asyncio.run(story())
    assert removed
