"""Account: what Connect's topics have to amount to, by the calls alone, without any record."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping
from typing import Any

State = dict[str, Any]
RESTART = "restart-connector-"


class Account:
    """The state that a history of calls leads to, as one of the sides has to know it.

    Here, the last record of a status holds, whatever was read before. Kafka Connect has two
    exceptions, which a worker that starts on a compacted topic does not see: a connector whose
    status is deleted loses those of its tasks, and UNASSIGNED replaces RUNNING only in a later
    generation.
    """

    def __init__(self, *, is_ours: bool) -> None:
        self._is_ours = is_ours
        self.connectors: dict[str, dict[str, str]] = {}
        self.targets: dict[str, str] = {}
        self.tasks: dict[str, list[dict[str, str]]] = {}
        self.session_key: list[Any] | None = None
        self.restarts: list[list[Any]] = []
        self.levels: dict[str, str] = {}
        self.statuses: defaultdict[str, dict[str, list[Any]]] = defaultdict(dict)
        self.topics: defaultdict[str, dict[str, list[Any]]] = defaultdict(dict)
        self.offsets: defaultdict[str, dict[str, Any]] = defaultdict(dict)

    def apply(self, asked: Mapping[str, Any]) -> None:
        """Apply a call."""
        call, name = str(asked["call"]), str(asked.get("name"))
        match call:
            case "connector":
                self.connectors[name] = asked["config"]
                if asked["state"] is not None:
                    self.targets[name] = asked["state"]
            case "delete":
                for each in (self.connectors, self.targets, self.tasks):
                    each.pop(name, None)
            case "tasks" if name in self.connectors:
                self.tasks[name] = asked["tasks"]
            case "target":
                self.targets[name] = asked["state"]
            case "restart":
                self.restarts.append([name, asked["include_tasks"], asked["only_failed"]])
            case "session_key":
                self.session_key = [asked["key"], asked["algorithm"], asked["created"]]
            case "level":
                self.levels[name] = asked["level"]
            case _:
                self._apply_report(call, name, asked)

    def _apply_strange(self, *, topic: str, key: str, value: str, **_: str) -> None:
        """Apply a record that no side writes: most mean nothing."""
        # The fields of a restart have defaults, so any object asks for one.
        if topic == "config" and key.startswith(RESTART) and value.endswith("}"):
            self.restarts.append([key.removeprefix(RESTART), False, False])

    def _apply_report(self, call: str, name: str, asked: Mapping[str, Any]) -> None:
        match call:
            case "status":
                self._status(self.statuses[name], _number(asked), asked)
            case "topic":
                self.topics[name][asked["topic"]] = [name, asked["task"], asked["at"]]
            case "topic_forgotten":
                self.topics[name].pop(asked["topic"], None)
            case "offset":
                self.offsets[name][canonical(asked["part"])] = asked["offset"]
            case "strange":
                self._apply_strange(**asked)
            case _:
                pass

    def may_write(self, asked: Mapping[str, Any]) -> bool:
        """Return whether this side makes a call that has `is_safe`."""
        before = self.statuses[asked["name"]].get(_number(asked))
        if before is None:
            return True
        _, worker, generation, *_ = before
        # A status of a later generation stays, unless it is the worker's own.
        is_newer: bool = generation <= asked["generation"]
        return is_newer or worker == asked["worker"]

    def _status(self, known: dict[str, list[Any]], number: str, asked: Mapping[str, Any]) -> None:
        before, _, generation, *_ = known.get(number, ("", "", 0))
        if asked["state"] == "DESTROYED":
            known.pop(number, None)
            if not number and not self._is_ours:
                known.clear()
        elif (
            number
            and not self._is_ours
            and (before, asked["state"]) == ("RUNNING", "UNASSIGNED")
            and generation >= asked["generation"]
        ):
            pass
        else:
            fields = ("state", "worker", "generation", "trace", "version")
            known[number] = [asked[each] for each in fields]

    def state(self) -> State:
        """Return the state in the form of `form`."""
        return {
            "connectors": self.connectors,
            "targets": {each: self.targets.get(each, "STARTED") for each in self.connectors},
            "tasks": {name: tasks for name, tasks in self.tasks.items() if tasks},
            "session_key": self.session_key,
            "restarts": self.restarts,
            "levels": self.levels,
            "statuses": {name: each for name, each in self.statuses.items() if each},
            "topics": {name: each for name, each in self.topics.items() if each},
            "offsets": {
                name: parts
                for name, each in self.offsets.items()
                if (parts := {part: at for part, at in each.items() if at is not None})
            },
        }


def _number(asked: Mapping[str, Any]) -> str:
    return "" if asked["task"] is None else str(asked["task"])


def canonical(part: object) -> str:
    """Return the text of a part, equal for parts that are equal as JSON."""
    return json.dumps(part, sort_keys=True)


def form(read: Mapping[str, Any]) -> State:
    """Return what a side has read, in the form of `Account.state`."""
    levels = dict(read["levels"])
    offsets = {
        name: {canonical(part): at for part, at in pairs if at is not None}
        for name, pairs in read["offsets"].items()
    }
    whole = {**read, "levels": levels, "offsets": offsets}
    del whole["inconsistent"]
    for each in ("tasks", "statuses", "topics", "offsets"):
        whole[each] = {name: value for name, value in whole[each].items() if value}
    return whole
