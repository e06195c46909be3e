"""Answers: what a worker says to the script, and how two workers' answers are held together."""

from __future__ import annotations

import http.client
import json
import re
import time
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple
from urllib.parse import quote, urlsplit

from tests.oracle.connect_rest.requests import Ask, Step

WAIT_S: Final = 60
_ORIGIN: Final = {
    *("worker_id", "workerId", "commit", "kafka_cluster_id", "kafkaClusterId"),
    *("last_modified", "groups"),
}
"""Fields whose values belong to the worker; Java's client has names of its own for some."""


class Answer(NamedTuple):
    """The answer to one request."""

    asked: Ask
    status: int
    body: Any
    content_type: str
    allow: str


class Worker:
    """A worker, asked over HTTP."""

    def __init__(self, url: str) -> None:
        self._address = urlsplit(url).netloc

    def run(self, steps: Sequence[Step]) -> Iterator[Answer]:
        """Yield the answers to the requests among the steps."""
        for step in steps:
            if isinstance(step, Ask):
                yield self.ask(step)
            else:
                self._until(*step)

    def ask(self, asked: Ask) -> Answer:
        """Return the answer to one request."""
        data = asked.body
        if data is not None and not isinstance(data, bytes):
            data = json.dumps(data).encode()
        headers = {"Accept": "application/json"}
        if data is not None:
            headers["Content-Type"] = "application/json"
        connection = http.client.HTTPConnection(self._address, timeout=WAIT_S)
        try:
            connection.request(asked.method, asked.target, data, headers)
            answer = connection.getresponse()
            text = answer.read()
            kind = (answer.headers.get("Content-Type") or "").partition(";")[0]
            allow = ",".join(
                sorted((answer.headers.get("Allow") or "").replace(" ", "").split(","))
            )
        finally:
            connection.close()
        try:
            body = json.loads(text) if text else None
        except ValueError:
            body = {"no JSON": text.decode("utf-8", "replace")}
        return Answer(asked, answer.status, body, kind, allow)

    def _until(self, name: str, state: str, tasks: int | None) -> None:
        path = f"/connectors/{quote(name, safe='')}/status"
        deadline = time.monotonic() + WAIT_S
        found: Answer | None = None
        same = 0
        while time.monotonic() < deadline:
            found = self.ask(Ask("GET", path))
            same = same + 1 if _is_so(found, state, tasks) else 0
            # Twice: what was there before a change is not taken for what follows it.
            if same == (1 if state == "GONE" else 3):
                return
            time.sleep(0.1)
        raise TimeoutError(f"{name} is not {state} with {tasks} tasks: {found}")


def _is_so(found: Answer, state: str, tasks: int | None) -> bool:
    if state == "GONE":
        return found.status == http.client.NOT_FOUND
    if found.status != http.client.OK:
        return False
    states = [each["state"] for each in found.body["tasks"]]
    own = found.body["connector"]["state"]
    # The tasks of a connector fail, it does not.
    fits = own == ("RUNNING" if state == "FAILED" else state)
    return fits and tasks in (None, len(states)) and set(states) <= {state}


def normal(body: Any) -> Any:
    """Return a body without what belongs to its worker, and lists in an order of their own.

    Kafka Connect's lists of connectors, tasks, offsets and plugins have the order of hash maps.
    """
    if isinstance(body, dict):
        return {
            name: ("TRACE" if name == "trace" else "ORIGIN" if name in _ORIGIN else normal(value))
            for name, value in body.items()
        }
    if isinstance(body, list):
        if body and all(_setting_name(each) for each in body):
            return {_setting_name(each): _setting(each) for each in body}
        return sorted(map(normal, body), key=lambda each: json.dumps(each, sort_keys=True))
    return body


def _setting_name(each: Any) -> str:
    """Return the name of a setting, if this is one."""
    if not isinstance(each, dict):
        return ""
    found: str = each.get("definition", each).get("name", "")
    return found if "definition" in each or "order_in_group" in each else ""


def _setting(each: dict[str, Any]) -> dict[str, Any]:
    """Return what a client relies on: texts, groups and sizes of input fields are each one's own.

    Of errors, whether there are any: their messages are ours.
    """
    definition = each.get("definition", each)
    found = {"type": definition["type"], "required": definition["required"]}
    found["fields"] = sorted(definition)
    if "value" in each:
        value = each["value"]
        found |= {"wrong": bool(value["errors"]), "visible": value["visible"]}
    return found


def differences(theirs: Any, ours: Any, at: str = "") -> Iterator[str]:
    """Yield the places at which two bodies differ, with both values."""
    if isinstance(theirs, dict) and isinstance(ours, dict):
        for name in sorted(theirs.keys() | ours.keys()):
            if name not in ours:
                yield f"{at}.{name}: {_short(theirs[name])}, ours has none"
            elif name not in theirs:
                yield f"{at}.{name}: only ours has {_short(ours[name])}"
            else:
                yield from differences(theirs[name], ours[name], f"{at}.{name}")
    elif isinstance(theirs, list) and isinstance(ours, list) and len(theirs) == len(ours):
        for number, (one, other) in enumerate(zip(theirs, ours, strict=True)):
            yield from differences(one, other, f"{at}[{number}]")
    elif theirs != ours or type(theirs) is not type(ours):
        yield f"{at or 'body'}: {_short(theirs)}, ours {_short(ours)}"


def _short(value: Any) -> str:
    return re.sub(r"\s+", " ", json.dumps(value, ensure_ascii=False))[:300]
