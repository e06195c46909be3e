"""The REST API: paths, statuses and messages, as Kafka Connect's."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from streamlog.connect import names
from streamlog.connect.herding.herder_requests import ConnectRefusal
from streamlog.connect_service.rest_answers import TARGET_BYTES_MAX, parse_call
from tests.connect_service.running import Client, running

CONFIG = {"connector.class": "Numbers", "topic": "t", "count": "0", "tasks.max": "1"}
BAD = {"connector.class": "Numbers", "topic": "t", "count": "many"}
Case = tuple[str, str, object, int, str]
CASES: list[Case] = [
    ("GET", "/nowhere", None, 404, "404"),
    ("POST", "/", None, 405, "405"),
    ("DELETE", "/connectors", None, 405, "405"),
    ("POST", "/connectors/x", None, 405, "405"),
    ("GET", "/connectors/x/pause", None, 405, "405"),
    ("GET", "/connectors/y", None, 404, "Connector y not found"),
    ("GET", "/connectors/y/config", None, 404, "Connector y not found"),
    ("GET", "/connectors/y/status", None, 404, "No status found for connector y"),
    ("GET", "/connectors/y/tasks", None, 404, "Connector y not found"),
    ("GET", "/connectors/x/tasks/7/status", None, 404, "No status found for task x-7"),
    ("GET", "/connectors/y/offsets", None, 404, "Connector y not found"),
    ("DELETE", "/connectors/y", None, 404, "Connector y not found"),
    ("PATCH", "/connectors/y/config", {"a": "b"}, 404, "Connector y not found"),
    ("PUT", "/connectors/y/pause", None, 404, "Unknown connector y"),
    ("POST", "/connectors/y/restart", None, 404, "Unknown connector: y"),
    ("POST", "/connectors/x/tasks/7/restart", None, 404, "Unknown task: x-7"),
    ("POST", "/connectors/x/tasks/a/restart", None, 404, "404"),
    ("POST", "/connectors", {"name": "x", "config": CONFIG}, 409, "Connector x already exists"),
    ("POST", "/connectors", {"name": "z", "config": BAD}, 400, "following 1 error(s)"),
    ("POST", "/connectors", {"config": CONFIG}, 400, "cannot be empty"),
    ("POST", "/connectors", {"name": "z\n", "config": {"name": "q"}}, 400, "doesn't match"),
    ("POST", "/connectors", ["x"], 400, "not what this takes"),
    (
        "POST",
        "/connectors",
        {"name": "z", "config": CONFIG, "initial_state": "ASLEEP"},
        400,
        "RUNNING, PAUSED, STOPPED",
    ),
    ("PUT", "/connectors/z/config", {**CONFIG, "name": "x"}, 400, "doesn't match connector name"),
    ("PUT", "/connectors/z/config", {"connector.class": "No"}, 400, "there is no connector 'No'"),
    ("PUT", "/connectors/z/config", {"connector.class": "Exec"}, 400, "--allow-exec"),
    ("PUT", "/connectors/z/config", {**CONFIG, "transforms": "a"}, 400, "transforms.a"),
    ("PUT", "/connectors/z/config", {**CONFIG, "value.converter": "Xml"}, 400, "no such converter"),
    ("PATCH", "/connectors/x/offsets", {"offsets": []}, 400, "STOPPED state"),
    ("GET", "/connector-plugins/No/config", None, 404, "Unknown plugin No."),
    (
        "PUT",
        "/connector-plugins/Listed/config/validate",
        CONFIG,
        400,
        "does not match request type",
    ),
    ("GET", "/connector-plugins/Numbers", None, 404, "404"),
    ("POST", "/connectors", {"name": "z", "config": CONFIG, "a": 1}, 400, "unknown field `a`"),
    ("POST", "/connectors", {"name": "z", "config": {}}, 400, "contains no connector type"),
    ("POST", "/connector-plugins", None, 405, "405"),
    ("GET", "/admin/loggers/no.such", None, 404, "Logger no.such not found."),
    ("PUT", "/admin/loggers/a", {}, 400, "'level' parameter was not specified"),
    ("PUT", "/admin/loggers/a", {"level": "LOUD"}, 404, "invalid log level 'LOUD'"),
]


@pytest.fixture(autouse=True)
def _connectors(monkeypatch: pytest.MonkeyPatch) -> None:
    here = "tests.connect_service.outside"
    monkeypatch.setattr(
        names, "BUILT_IN", {"Numbers": here, "Listed": here, "Exec": names.BUILT_IN["Exec"]}
    )


def test_each_request_is_answered_as_by_kafka_connect(tmp_path: Path) -> None:
    async def main() -> None:
        async with asyncio.timeout(100), running(tmp_path) as client:
            assert (await client.ask("PUT", "/connectors/x/config", CONFIG))[0] == 201
            await client.until_state("x", "RUNNING", tasks=1)
            for method, target, body, status, message in CASES:
                found, answer = await client.ask(method, target, body)
                what = f"{method} {target} {body}: {answer}"
                assert (found, answer["error_code"]) == (status, status), what
                assert message in answer["message"], what
            await answers_that_are_no_errors(client)

    asyncio.run(main())


async def answers_that_are_no_errors(client: Client) -> None:
    root = await client.get("/")
    assert root == {"version": "4.4.0", "commit": "streamlog", "kafka_cluster_id": "a-cluster"}
    assert (await client.get("/health"))["status"] == "healthy"
    expanded = await client.get("/connectors?expand=status&expand=info")
    assert expanded["x"]["info"] == await client.get("/connectors/x")
    assert expanded["x"]["status"] == await client.get("/connectors/x/status")
    running = {"state": "RUNNING", "worker_id": "127.0.0.1:8083", "version": "4.4.0"}
    assert expanded["x"]["status"] == {
        "name": "x",
        "connector": running,
        "tasks": [{"id": 0, **running}],
        "type": "source",
    }
    (task,) = await client.get("/connectors/x/tasks")
    assert task["id"] == {"connector": "x", "task": 0}
    assert task["config"]["task.parts"] == '[{"part":0},{"part":1},{"part":2}]'
    assert await client.get("/connectors/x/topics") == {"x": {"topics": []}}
    status, body = await client.ask("PUT", "/connectors/x/config", {**CONFIG, "count": 0})
    assert (status, body["config"]["count"]) == (200, "0")
    everything = await client.get("/connector-plugins?connectorsOnly=false")
    assert {
        "class": "org.apache.kafka.connect.transforms.Cast$Key",
        "type": "transformation",
        "version": "4.4.0",
    } in everything
    found = await client.get("/connector-plugins")
    assert found[1:] == [
        {"class": "Listed", "type": "sink", "version": "4.4.0"},
        {"class": "Numbers", "type": "source", "version": "4.4.0"},
    ]
    settings = {
        each["name"]: each for each in await client.get("/connector-plugins/Numbers/config")
    }
    assert {"tasks.max", "count", "password"} <= settings.keys()
    await validations(client)
    assert (await client.ask("PUT", "/admin/loggers/streamlog.x", {"level": "DEBUG"})) == (
        200,
        ["streamlog.x"],
    )
    found = await client.get("/admin/loggers/streamlog.x")
    assert (found["level"], found["last_modified"] > 0) == ("DEBUG", True)
    cluster = "/admin/loggers/streamlog.x?scope=cluster"
    assert await client.ask("PUT", cluster, {"level": "WARN"}) == (204, None)
    assert (await client.get("/admin/loggers"))["streamlog.x"]["level"] == "WARN"
    assert (await client.ask("POST", "/connectors/x/restart"))[0] == 204
    status, body = await client.ask("POST", "/connectors/x/restart?includeTasks=true")
    assert (status, body["name"]) == (202, "x")
    # A slash in a name is part of it, as %2F.
    assert (await client.ask("PUT", "/connectors/a%2Fb/config", CONFIG))[0] == 201
    assert (await client.get("/connectors/a%2Fb"))["name"] == "a/b"


def test_used_topics_are_noted_reset_and_gone_with_their_connector(tmp_path: Path) -> None:
    async def main() -> None:
        async with asyncio.timeout(100), running(tmp_path) as client:
            topics = client.service.herder.statuses.topics
            for name in ("x", "y"):
                config = {**CONFIG, "topic": f"{name}-topic", "count": "2"}
                await client.ask("PUT", f"/connectors/{name}/config", config)
            await client.until(lambda: topics.keys() == {"x", "y"})
            assert await client.get("/connectors/x/topics") == {"x": {"topics": ["x-topic"]}}
            # A source that runs would note its topic again.
            assert (await client.ask("PUT", "/connectors/x/stop"))[0] == 204
            await client.until_state("x", "STOPPED", tasks=0)
            assert await client.ask("PUT", "/connectors/x/topics/reset") == (202, None)
            assert (await client.ask("DELETE", "/connectors/y"))[0] == 204
            assert [await client.get(f"/connectors/{name}/topics") for name in "xy"] == [
                {name: {"topics": []}} for name in "xy"
            ]
        # As the topic has it, for a worker that starts later.
        off = {"topic.tracking.allow.reset": "false"}
        async with asyncio.timeout(100), running(tmp_path, **off) as client:
            assert not any(client.service.herder.statuses.topics.values())
            status, body = await client.ask("PUT", "/connectors/x/topics/reset")
            assert (status, body["message"]) == (403, "Topic tracking reset is disabled.")

    asyncio.run(main())


async def validations(client: Client) -> None:
    path = "/connector-plugins/Numbers/config/validate"

    async def errors(settings: dict[str, Any]) -> dict[str, list[str]]:
        status, body = await client.ask("PUT", path, settings)
        assert status == 200
        found = {each["value"]["name"]: each["value"]["errors"] for each in body["configs"]}
        assert body["error_count"] == sum(map(len, found.values()))
        return {name: listed for name, listed in found.items() if listed}

    whole = {**CONFIG, "name": "v"}
    assert await errors(whole) == {}
    assert list(await errors({**whole, "count": "many"})) == ["count"]
    assert list(await errors({**whole, "counts": "1"})) == ["counts"]
    assert list(await errors({**whole, "exactly.once.support": "required"})) == []
    path = "/connector-plugins/Listed/config/validate"
    assert (await errors({"connector.class": "Listed"})).keys() == {
        "name", "into", "topics", "topics.regex",
    }  # fmt: skip
    path = "/connector-plugins/Numbers/config/validate"
    assert "transforms.a" in (await errors({**whole, "transforms": "a"}))["connector.class"][0]


@pytest.mark.parametrize("target", ["/" + "a" * TARGET_BYTES_MAX, "/%ff", "/?a=%ff"])
def test_a_malformed_target_is_refused(target: str) -> None:
    with pytest.raises(ConnectRefusal):
        parse_call("GET", target)
