"""The script: requests to a worker of Connect, in their order, and what is waited for between them.

Both workers begin with nothing. `{"wait": ...}` is no request: it waits until a connector is in a
state, so that what is asked next has one answer.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

NUMBERS: Final = {
    "connector.class": "Numbers",
    "topic": "numbers",
    "count": "20",
    "parts": "3",
    "tasks.max": "2",
    "errors.auto.restart": "false",
}
LISTED: Final = {
    "connector.class": "Listed",
    "topics": "numbers",
    "into": "list",
    "tasks.max": "1",
}
BROKEN: Final = {**NUMBERS, "label": "broken"}
STRANGE: Final = "a b ü"
STRANGE_PATH: Final = "/connectors/a%20b%20%C3%BC"
"""Jetty refuses names with a slash or a percent sign; here they work."""
PART: Final = {"partition": {"part": 0}, "offset": {"at": 7}}
AT_SINK: Final = {
    "partition": {"kafka_topic": "numbers", "kafka_partition": 0},
    "offset": {"kafka_offset": 5},
}


class Wait(NamedTuple):
    """What is waited for: a connector and its tasks in a state, or that it is gone."""

    name: str
    state: str
    tasks: int | None = None


class Ask(NamedTuple):
    """One request."""

    method: str
    target: str
    body: Any = None
    """JSON; bytes are sent as they are."""


Step = Ask | Wait


def _faults() -> list[Step]:
    """Requests about connectors that do not exist, and paths that do not."""
    asked = [
        Ask("GET", target)
        for target in (
            "/", "/health", "/connectors", "/connectors/", "/nowhere", "/connectors?expand=status",
            "/connectors?expand=nothing", "/connectors/y", "/connectors/y/", "/connectors/y/config",
            "/connectors/y/status", "/connectors/y/tasks", "/connectors/y/tasks/0/status",
            "/connectors/y/topics", "/connectors/y/offsets", "/connectors/y/tasks-config",
            "/connectors/y/nothing", "/connectors/y/tasks/0", "/connectors/y/tasks/x/status",
            "/connectors/y/pause", "/admin/loggers/no.such.logger", "/admin",
            "/connector-plugins/No", "/connector-plugins/No/config",
        )
    ]  # fmt: skip
    asked += [
        Ask("PUT", "/connectors/y/pause"),
        Ask("PUT", "/connectors/y/resume"),
        Ask("PUT", "/connectors/y/stop"),
        Ask("POST", "/connectors/y/restart"),
        Ask("POST", "/connectors/y/restart?includeTasks=true"),
        Ask("POST", "/connectors/y/tasks/0/restart"),
        Ask("DELETE", "/connectors/y"),
        Ask("PUT", "/connectors/y/topics/reset"),
        Ask("PATCH", "/connectors/y/config", {"a": "b"}),
        Ask("PATCH", "/connectors/y/offsets", {"offsets": [PART]}),
        Ask("DELETE", "/connectors/y/offsets"),
        Ask("POST", "/", {}),
        Ask("DELETE", "/connectors"),
        Ask("PUT", "/connectors", {}),
        Ask("POST", "/connectors/y"),
        Ask("DELETE", "/connectors/y/config"),
        Ask("POST", "/connectors/y/tasks/x/restart"),
        Ask("POST", "/connector-plugins", {}),
    ]
    return [*asked]


def _refused() -> list[Step]:
    """Configurations that are refused."""
    return [
        Ask("POST", "/connectors", b""),
        Ask("POST", "/connectors", b"{"),
        Ask("POST", "/connectors", []),
        Ask("POST", "/connectors", {}),
        Ask("POST", "/connectors", {"name": "z"}),
        Ask("POST", "/connectors", {"name": "z", "config": {}}),
        Ask("POST", "/connectors", {"config": NUMBERS}),
        Ask("POST", "/connectors", {"name": "", "config": NUMBERS}),
        Ask("POST", "/connectors", {"name": "z\n\u0001", "config": NUMBERS}),
        Ask("POST", "/connectors", {"name": "z", "config": {**NUMBERS, "name": "q"}}),
        Ask("POST", "/connectors", {"name": "z", "config": NUMBERS, "unknown": 1}),
        Ask("POST", "/connectors", {"name": "z", "config": NUMBERS, "initial_state": "ASLEEP"}),
        Ask("POST", "/connectors", {"name": "z", "config": {**NUMBERS, "connector.class": "No"}}),
        Ask("POST", "/connectors", {"name": "z", "config": {**NUMBERS, "count": "many"}}),
        Ask("POST", "/connectors", {"name": "z", "config": {**NUMBERS, "tasks.max": "0"}}),
        Ask("POST", "/connectors", {"name": "z", "config": {**LISTED, "topics": ""}}),
        Ask("POST", "/connectors", {"name": "z", "config": {"connector.class": "Listed"}}),
        Ask("PUT", "/connectors/z/config", {**NUMBERS, "name": "q"}),
        Ask("PUT", "/connectors/z/config", {**NUMBERS, "transforms": "a"}),
        Ask("PUT", "/connectors/z/config", {**NUMBERS, "value.converter": "Xml"}),
        Ask("PUT", "/connectors/z/config", {**NUMBERS, "errors.tolerance": "some"}),
        Ask("PUT", "/connectors/z/config", b"null"),
        Ask("PUT", "/connectors/z/config", b"{"),
        Ask("PUT", "/connectors/z/config", []),
        # One of these is no fault to either. Its tasks come later than the answer.
        Wait("z", "RUNNING", 2),
        Ask("GET", "/connectors/z"),
        Ask("GET", "/connectors"),
    ]


def _lives() -> list[Step]:
    """Connectors that are created, changed, paused, stopped, restarted and deleted."""
    return [
        Ask("POST", "/connectors", {"name": "n", "config": NUMBERS}),
        Wait("n", "RUNNING", 2),
        Ask("POST", "/connectors", {"name": "n", "config": NUMBERS}),
        Ask("GET", "/connectors"),
        Ask("GET", "/connectors/n"),
        Ask("GET", "/connectors/n/config"),
        Ask("GET", "/connectors/n/status"),
        Ask("GET", "/connectors/n/tasks"),
        Ask("GET", "/connectors/n/tasks/0/status"),
        Ask("GET", "/connectors/n/tasks/7/status"),
        Ask("GET", "/connectors?expand=status"),
        Ask("GET", "/connectors?expand=info"),
        Ask("GET", "/connectors?expand=status&expand=info"),
        Ask("PUT", "/connectors/n/config", {**NUMBERS, "tasks.max": "1"}),
        Wait("n", "RUNNING", 1),
        Ask("GET", "/connectors/n/tasks"),
        Ask("PATCH", "/connectors/n/config", {"tasks.max": "3", "password": None, "label": "x"}),
        Wait("n", "RUNNING", 3),
        Ask("GET", "/connectors/n/config"),
        Ask("PATCH", "/connectors/n/config", {"label": None}),
        Ask("GET", "/connectors/n/config"),
        Ask("PATCH", "/connectors/n/config", {"count": "many"}),
        Ask("PATCH", "/connectors/n/config", {"name": "other"}),
        Ask("PATCH", "/connectors/n/config", b""),
        Ask("PATCH", "/connectors/n/config", []),
        Wait("n", "RUNNING", 3),
        Ask("PUT", "/connectors/n/pause"),
        Wait("n", "PAUSED", 3),
        Ask("GET", "/connectors/n/status"),
        Ask("POST", "/connectors/n/restart"),
        Wait("n", "PAUSED", 3),
        Ask("PATCH", "/connectors/n/offsets", {"offsets": [PART]}),
        Ask("DELETE", "/connectors/n/offsets"),
        Ask("PUT", "/connectors/n/resume"),
        Wait("n", "RUNNING", 3),
        Ask("POST", "/connectors/n/restart"),
        Wait("n", "RUNNING", 3),
        Ask("POST", "/connectors/n/restart?includeTasks=true&onlyFailed=true"),
        Wait("n", "RUNNING", 3),
        Ask("POST", "/connectors/n/restart?includeTasks=true"),
        Wait("n", "RUNNING", 3),
        Ask("POST", "/connectors/n/restart?includeTasks=maybe"),
        Wait("n", "RUNNING", 3),
        Ask("POST", "/connectors/n/tasks/0/restart"),
        Wait("n", "RUNNING", 3),
        Ask("POST", "/connectors/n/tasks/9/restart"),
        Ask("GET", "/connectors/n/topics"),
        Ask("PUT", "/connectors/n/stop"),
        Wait("n", "STOPPED", 0),
        Ask("GET", "/connectors/n/status"),
        Ask("GET", "/connectors/n/tasks"),
        Ask("GET", "/connectors/n"),
        Ask("POST", "/connectors/n/tasks/0/restart"),
        Ask("PUT", "/connectors/n/topics/reset"),
        *_offsets_of_a_source(),
        Ask("GET", "/connectors/n/topics"),
        Ask("PUT", "/connectors/n/resume"),
        Wait("n", "RUNNING", 3),
        Ask("DELETE", "/connectors/n"),
        Wait("n", "GONE"),
        Ask("GET", "/connectors/n"),
        Ask("GET", "/connectors/n/status"),
        Ask("GET", "/connectors/n/topics"),
    ]


def _offsets_of_a_source() -> list[Step]:
    at = "/connectors/n/offsets"
    return [
        Ask("GET", at),
        Ask("PATCH", at, b""),
        Ask("PATCH", at, {}),
        Ask("PATCH", at, []),
        Ask("PATCH", at, {"offsets": []}),
        Ask("PATCH", at, {"offsets": [{"offset": {"at": 1}}]}),
        Ask("PATCH", at, {"offsets": [PART, {"partition": {"part": 1}, "offset": None}]}),
        Ask("GET", at),
        Ask("PATCH", at, {"offsets": [{"partition": {"part": 2}}]}),
        Ask("GET", at),
        Ask("DELETE", at),
        Ask("GET", at),
        Ask("DELETE", at),
        Ask("POST", at, {}),
    ]


def _failing() -> list[Step]:
    """A source whose tasks fail, and connectors that begin paused or stopped."""
    return [
        Ask("PUT", "/connectors/b/config", BROKEN),
        Wait("b", "FAILED", 2),
        Ask("GET", "/connectors/b/status"),
        Ask("GET", "/connectors/b/tasks/1/status"),
        Ask("POST", "/connectors/b/restart?includeTasks=true&onlyFailed=true"),
        Wait("b", "FAILED", 2),
        Ask("PUT", "/connectors/b/config", {**BROKEN, "label": "whole"}),
        Wait("b", "RUNNING", 2),
        Ask("DELETE", "/connectors/b"),
        Wait("b", "GONE"),
        Ask("POST", "/connectors", {"name": "p", "config": NUMBERS, "initial_state": "PAUSED"}),
        Wait("p", "PAUSED"),
        Ask("GET", "/connectors/p/status"),
        Ask("DELETE", "/connectors/p"),
        Ask("POST", "/connectors", {"name": "s", "config": NUMBERS, "initial_state": "stopped"}),
        Wait("s", "STOPPED", 0),
        Ask("GET", "/connectors/s/status"),
        Ask("GET", "/connectors/s/offsets"),
        Ask("DELETE", "/connectors/s"),
        Ask("POST", "/connectors", {"name": STRANGE, "config": NUMBERS}),
        Wait(STRANGE, "RUNNING", 2),
        Ask("GET", STRANGE_PATH),
        Ask("GET", f"{STRANGE_PATH}/status"),
        Ask("DELETE", STRANGE_PATH),
        Wait(STRANGE, "GONE"),
    ]


def _sinks() -> list[Step]:
    at = "/connectors/k/offsets"
    negative = {**AT_SINK, "offset": {"kafka_offset": -1}}
    return [
        Ask("PUT", "/connectors/k/config", LISTED),
        Wait("k", "RUNNING", 1),
        Ask("GET", "/connectors/k"),
        Ask("GET", "/connectors/k/tasks"),
        Ask("PATCH", at, {"offsets": [AT_SINK]}),
        Ask("PUT", "/connectors/k/pause"),
        Wait("k", "PAUSED", 1),
        Ask("PUT", "/connectors/k/stop"),
        Wait("k", "STOPPED", 0),
        Ask("DELETE", at),
        Ask("GET", at),
        Ask("PATCH", at, {"offsets": [AT_SINK]}),
        Ask("GET", at),
        Ask("PATCH", at, {"offsets": [negative]}),
        Ask("PATCH", at, {"offsets": [{**AT_SINK, "offset": {"at": 1}}]}),
        Ask("PATCH", at, {"offsets": [{**AT_SINK, "offset": {"kafka_offset": "6"}}]}),
        Ask("PATCH", at, {"offsets": [{**AT_SINK, "partition": {"kafka_topic": "numbers"}}]}),
        Ask("PATCH", at, {"offsets": [{**AT_SINK, "partition": {"kafka_partition": 0}}]}),
        Ask("PATCH", at, {"offsets": [{**AT_SINK, "offset": None}]}),
        Ask("GET", at),
        Ask("DELETE", "/connectors/k"),
        Wait("k", "GONE"),
        Ask("GET", "/connectors"),
    ]


def _plugins_and_loggers() -> list[Step]:
    at, own = "/connector-plugins/Numbers/config", "org.apache.kafka.connect.conformance"
    return [
        Ask("GET", "/connector-plugins"),
        Ask("GET", "/connector-plugins?connectorsOnly=true"),
        Ask("GET", "/connector-plugins?connectorsOnly=false"),
        Ask("GET", at),
        Ask("GET", "/connector-plugins/Listed/config"),
        Ask("PUT", f"{at}/validate", {**NUMBERS, "name": "v"}),
        Ask("PUT", f"{at}/validate", {**NUMBERS, "name": "v", "count": "many"}),
        Ask("PUT", f"{at}/validate", {"connector.class": "Numbers"}),
        Ask("PUT", f"{at}/validate", {**NUMBERS, "connector.class": "Listed"}),
        Ask("PUT", f"{at}/validate", {"count": "1"}),
        Ask("PUT", f"{at}/validate", {}),
        Ask("PUT", f"{at}/validate", []),
        Ask("PUT", "/connector-plugins/Listed/config/validate", {**LISTED, "name": "v"}),
        Ask("PUT", "/connector-plugins/Listed/config/validate", {"connector.class": "Listed"}),
        Ask("PUT", "/connector-plugins/No/config/validate", {"connector.class": "No"}),
        Ask("GET", "/admin/loggers/root"),
        Ask("PUT", f"/admin/loggers/{own}", {"level": "debug"}),
        Ask("GET", f"/admin/loggers/{own}"),
        Ask("PUT", f"/admin/loggers/{own}", {"level": "LOUD"}),
        Ask("PUT", f"/admin/loggers/{own}", {}),
        Ask("PUT", f"/admin/loggers/{own}", b""),
        Ask("PUT", f"/admin/loggers/{own}?scope=worker", {"level": "WARN"}),
        Ask("PUT", f"/admin/loggers/{own}?scope=cluster", {"level": "ERROR"}),
        # Another level: Kafka Connect answers before it has applied that of the cluster.
        Ask("PUT", f"/admin/loggers/{own}?scope=galaxy", {"level": "INFO"}),
        Ask("PUT", "/admin/loggers/no.logger?scope=cluster", {"level": "LOUD"}),
        Ask("POST", "/admin/loggers", {}),
    ]


STEPS: Final[list[Step]] = [
    *_faults(),
    *_refused(),
    *_lives(),
    *_failing(),
    *_sinks(),
    *_plugins_and_loggers(),
]
