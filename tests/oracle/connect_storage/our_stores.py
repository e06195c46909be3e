"""OurStores: the same calls as `BackingStores.java`, by the records of `streamlog/connect`.

Configurations are written in transactions, as the leader of a service writes them, and all topics
are followed as a worker follows them.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any, Final

from streamlog.client.producer import Producer
from streamlog.connect.herding.configs import (
    ConfigRecord,
    ConnectConfigs,
    RestartRequest,
    SessionKey,
    connector_record,
    deletion_records,
    level_record,
    restart_record,
    session_key_record,
    target_record,
    task_records,
)
from streamlog.connect.herding.lifecycle import ConnectorState, TargetState
from streamlog.connect.herding.statuses import (
    ConnectStatuses,
    Status,
    UsedTopic,
    status_record,
    topic_record,
)
from streamlog.connect.parts import OffsetBook, encode_offset
from streamlog.log import Log
from streamlog.records.batch import LogRecord
from streamlog.worker.connect.compacted_topic import CompactedTopic

KINDS: Final = ("config", "status", "offset")


class _Abort(Exception):
    """Ends a transaction without its records."""


class OurStores:
    """Our reading of three topics, and our records into them; `open_stores` opens them."""

    def __init__(
        self, log: Log, topics: Mapping[str, str], leader: Producer, plain: Producer
    ) -> None:
        """`topics` has the topics by `KINDS`."""
        self.configs, self.statuses, self.offsets = (
            ConnectConfigs(),
            ConnectStatuses(),
            OffsetBook(),
        )
        self._topics, self._leader, self._plain = topics, leader, plain
        self._restarts: list[list[Any]] = []
        self._followers = [
            CompactedTopic(log, topics[kind], 1, replay)
            for kind, replay in zip(
                KINDS, (self._on_config, self._on_status, self._on_offset), strict=True
            )
        ]

    async def run(self, group: asyncio.TaskGroup) -> list[asyncio.Task[None]]:
        """Follow the topics in tasks of a group."""
        for each in self._followers:
            await each.open()
        return [group.create_task(each.run()) for each in self._followers]

    async def do(self, asked: Mapping[str, Any]) -> None:
        """Make a call, and read it back."""
        await self._catch_up()
        match asked["call"]:
            case "aborted":
                with suppress(_Abort):
                    await self._transact(task_records(asked["name"], asked["tasks"]), ends=_Abort())
            case "strange":
                key, value = asked["key"].encode(), asked["value"].encode()
                await self._plain.send(self._topics[asked["topic"]], value, key=key)
            case "status" | "topic" | "topic_forgotten" as call:
                if (record := self._report(call, asked)) is not None:
                    key, value_or_none = record
                    await self._plain.send(self._topics["status"], value_or_none, key=key)
            case "offset":
                at = self.offsets.key(asked["name"], asked["part"])
                await self._plain.send(
                    self._topics["offset"], encode_offset(asked["offset"]), key=at
                )
            case call:
                await self._transact(_config_records(call, asked))
        await self._plain.flush()
        await self._catch_up()

    async def state(self, names: Sequence[str]) -> dict[str, Any]:
        """Return what the topics amount to, in the form of `BackingStores.java`."""
        await self._catch_up()
        configs, key = self.configs, self.configs.session_key
        return {
            "session_key": key and [key.key, key.algorithm, key.creation_timestamp],
            "restarts": self._restarts,
            "levels": [[name, level] for name, level in configs.levels.items()],
            "connectors": configs.connectors,
            "targets": {name: configs.target(name).value for name in configs.connectors},
            "tasks": configs.tasks,
            "inconsistent": sorted(configs.inconsistent),
            "statuses": {name: self._statuses_of(name) for name in names},
            "topics": {
                name: {
                    use.name: [use.connector, use.task, use.discover_timestamp]
                    for use in self.statuses.topics.get(name, {}).values()
                }
                for name in names
            },
            "offsets": {
                name: [[*each] for each in self.offsets.offsets_of(name)] for name in names
            },
        }

    def _statuses_of(self, name: str) -> dict[str, list[Any]]:
        numbered: list[tuple[int | str, Status]] = [*self.statuses.tasks_of(name)]
        if (whole := self.statuses.connector(name)) is not None:
            numbered.append(("", whole))
        return {
            str(number): [
                each.state.value,
                each.worker_id,
                each.generation,
                each.trace,
                each.version,
            ]
            for number, each in numbered
        }

    async def _catch_up(self) -> None:
        for each in self._followers:
            await each.catch_up()

    async def _transact(
        self, records: Sequence[ConfigRecord], ends: Exception | None = None
    ) -> None:
        async with self._leader.transaction():
            for key, value in records:
                await self._leader.send(self._topics["config"], value, key=key)
            if ends is not None:
                raise ends

    def _report(self, call: str, asked: Mapping[str, Any]) -> ConfigRecord | None:
        name = asked["name"]
        if call == "topic":
            use = UsedTopic(asked["topic"], name, asked["task"], asked["at"])
            return topic_record(asked["topic"], name, use)
        if call == "topic_forgotten":
            return topic_record(asked["topic"], name, None)
        status = Status(
            state=ConnectorState(asked["state"]),
            worker_id=asked["worker"],
            generation=asked["generation"],
            trace=asked["trace"],
            version=asked["version"],
        )
        if asked["is_safe"] and not self.statuses.may_write((name, asked["task"]), status):
            return None
        is_over = status.state is ConnectorState.DESTROYED
        return status_record(name, asked["task"], None if is_over else status)

    def _on_config(self, record: LogRecord) -> None:
        name = self.configs.replay(record.key, record.value, record.offset)
        offset, asked = self.configs.restarts.get(name or "", (-1, RestartRequest()))
        if name is not None and offset == record.offset:
            self._restarts.append([name, asked.include_tasks, asked.only_failed])

    def _on_status(self, record: LogRecord) -> None:
        self.statuses.replay(record.key, record.value)

    def _on_offset(self, record: LogRecord) -> None:
        self.offsets.replay(record.key, record.value)


@asynccontextmanager
async def open_stores(log: Log, topics: Mapping[str, str]) -> AsyncIterator[OurStores]:
    """Follow and write the topics in the block."""
    async with (
        log.producer(transactional_id="our-leader") as leader,
        log.producer() as plain,
        asyncio.TaskGroup() as group,
    ):
        stores = OurStores(log, topics, leader, plain)
        tasks = await stores.run(group)
        try:
            yield stores
        finally:
            for each in tasks:
                each.cancel()


def _config_records(call: str, asked: Mapping[str, Any]) -> list[ConfigRecord]:
    name, state = str(asked.get("name")), asked.get("state")
    target = [] if state is None else [target_record(name, TargetState(state))]
    make: dict[str, Callable[[], list[ConfigRecord]]] = {
        "connector": lambda: [*target, connector_record(name, asked["config"])],
        "delete": lambda: [*deletion_records(name)],
        "tasks": lambda: task_records(name, asked["tasks"]),
        "target": lambda: target,
        "restart": lambda: [restart_record(name, _restart(asked))],
        "session_key": lambda: [
            session_key_record(SessionKey(asked["key"], asked["algorithm"], asked["created"]))
        ],
        "level": lambda: [level_record(name, asked["level"])],
    }
    return make[call]()


def _restart(asked: Mapping[str, Any]) -> RestartRequest:
    return RestartRequest(include_tasks=asked["include_tasks"], only_failed=asked["only_failed"])
