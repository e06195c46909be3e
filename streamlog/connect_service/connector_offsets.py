"""Connector offsets: how far connectors are, shown and set as Kafka Connect does it (KIP-875).

Offsets of sources are records of the offsets topic, those of sinks the offsets of their groups.
They are changed only while a connector is stopped, when no task writes them. A sink whose target
has offsets of its own is asked to follow (`SinkTask.reset`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from streamlog.connect.declared_connectors import SinkConnector
from streamlog.connect.herding.herder_requests import (
    BAD_REQUEST,
    NOT_FOUND,
    ConnectRefusal,
)
from streamlog.connect.parts import encode_offset
from streamlog.connect.setting_types import INT32_MAX
from streamlog.connect.sink_progress import WriteRange
from streamlog.connect_service.connector_release import comes_to_rest
from streamlog.connect_service.rest_port import RestPort
from streamlog.connect_tasks.contexts import ConnectorContext
from streamlog.record import TopicPartition
from streamlog.serdes.erased_types import JsonValue

METHOD_NOT_ALLOWED: Final = 405
OFFSETS_MAX: Final = 100_000
INT64_MAX: Final = 2**63 - 1


class _Entry(msgspec.Struct):
    partition: dict[str, JsonValue]
    offset: dict[str, JsonValue] | None = None


class _Offsets(msgspec.Struct):
    offsets: list[_Entry] = []


class ConnectorOffsets:
    """The offsets of a service's connectors."""

    def __init__(self, service: RestPort) -> None:
        self._service = service

    async def answer(self, method: str, name: str, body: bytes) -> tuple[int, object]:
        """Return the answer to a request about a connector's offsets.

        Raises:
            ConnectRefusal: there is no such connector, it is not stopped, or the body is wrong.
        """
        herder = self._service.herder
        if name not in herder.configs.connectors:
            raise ConnectRefusal(NOT_FOUND, f"Connector {name} not found")
        is_sink = herder.kind(name) == "sink"
        if method == "GET":
            return 200, {
                "offsets": await (self._of_sink(name) if is_sink else self._of_source(name))
            }
        if method not in ("PATCH", "DELETE"):
            raise ConnectRefusal(METHOD_NOT_ALLOWED, "HTTP 405 Method Not Allowed")
        await self._require_stopped(name)
        given = None if method == "DELETE" else _decode(body)
        if is_sink:
            await self._set_sink(name, given)
        else:
            await self._set_source(name, given)
        what = "altered" if given is not None else "reset"
        return 200, {"message": f"The offsets for this connector have been {what} successfully"}

    async def _require_stopped(self, name: str) -> None:
        if not await comes_to_rest(self._service, name):
            raise ConnectRefusal(
                BAD_REQUEST,
                "Connectors must be in the STOPPED state before their offsets can be modified. This"
                " can be done for the specified connector by issuing a 'PUT' request to the"
                f" '/connectors/{name}/stop' endpoint",
            )

    async def forget_ranges(self, name: str) -> tuple[int, object]:
        """Let a sink go on without repeating the ranges that it has begun; returns the answer.

        The group's offsets stay, and lose the metadata that names the ranges.

        Raises:
            ConnectRefusal: there is no such connector, or it is not stopped.
        """
        if name not in self._service.herder.configs.connectors:
            raise ConnectRefusal(NOT_FOUND, f"Connector {name} not found")
        await self._require_stopped(name)
        group, admin = self._service.sink_group(name), self._service.log.admin()
        is_sink = self._service.herder.kind(name) == "sink"
        found = await admin.group_offsets_and_metadata(group) if is_sink else {}
        offsets: dict[TopicPartition, int] = {}
        texts: list[str] = []
        for at, position in sorted(found.items()):
            begun = WriteRange.decode(position.metadata)
            if begun is not None:
                offsets[at] = position.offset
                texts.append(f"{at.topic}-{at.partition} from {position.offset} to {begun.until}")
        if not offsets:
            return 200, {"message": f"Connector {name} has begun no range"}
        await admin.alter_group_offsets(group, offsets)
        which = ", ".join(texts)
        message = f"Forgot the range of {which}: its rows may be in the target twice"
        return 200, {"message": message}

    async def forget(self, name: str) -> None:
        """Forget the offsets of a source whose tasks have ended."""
        await self._set_source(name, None)

    async def _of_source(self, name: str) -> list[dict[str, object]]:
        await self._service.offsets_log.catch_up()
        return [
            {"partition": dict(part), "offset": dict(offset)}
            for part, offset in self._service.offsets.offsets_of(name)
        ]

    async def _of_sink(self, name: str) -> list[dict[str, object]]:
        found = await self._service.log.admin().group_offsets(self._service.sink_group(name))
        return [
            {
                "partition": {"kafka_topic": at.topic, "kafka_partition": at.partition},
                "offset": {"kafka_offset": offset},
            }
            for at, offset in sorted(found.items())
        ]

    async def _set_source(self, name: str, given: list[_Entry] | None) -> None:
        service, book = self._service, self._service.offsets
        await service.offsets_log.catch_up()
        entries = given
        if entries is None:
            entries = [_Entry(dict(part), None) for part, _ in book.offsets_of(name)]
        records = [(book.key(name, each.partition), encode_offset(each.offset)) for each in entries]
        await service.write_offsets(records)
        await service.offsets_log.catch_up()

    async def _set_sink(self, name: str, given: list[_Entry] | None) -> None:
        admin, group = self._service.log.admin(), self._service.sink_group(name)
        if given is None:
            before = await admin.group_offsets(group)
            offsets: dict[TopicPartition, int | None] = dict.fromkeys(before)
        else:
            offsets = dict(map(_of_kafka, given))
        # The target first: if it can't be reached, nothing has changed.
        await self._reset_target(name, offsets)
        new = {at: offset for at, offset in offsets.items() if offset is not None}
        if new:
            await admin.alter_group_offsets(group, new)
        gone = [at for at, offset in offsets.items() if offset is None]
        if gone:
            await admin.delete_group_offsets(group, gone)

    async def _reset_target(self, name: str, offsets: Mapping[TopicPartition, int | None]) -> None:
        service = self._service
        connector = service.declare(name, service.herder.configs.connectors[name])
        if not isinstance(connector, SinkConnector) or not offsets:
            return
        context = ConnectorContext(name, 0, service.task_clock)
        try:
            async with connector.sink.open(context) as task:
                await task.reset(offsets)
        finally:
            context.close()


def _decode(body: bytes) -> list[_Entry]:
    try:
        entries = msgspec.json.decode(body, type=_Offsets).offsets
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ConnectRefusal(BAD_REQUEST, f"The body is not what this takes: {error}") from None
    if not entries or len(entries) > OFFSETS_MAX:
        raise ConnectRefusal(
            BAD_REQUEST, "Partitions / offsets need to be provided for an alter offsets request"
        )
    return entries


def _of_kafka(entry: _Entry) -> tuple[TopicPartition, int | None]:
    topic, number = entry.partition.get("kafka_topic"), entry.partition.get("kafka_partition")
    if topic is None or number is None:
        raise ConnectRefusal(
            BAD_REQUEST,
            "The partition for a sink connector offset must contain the keys 'kafka_topic' and"
            " 'kafka_partition'",
        )
    if not isinstance(topic, str):
        raise ConnectRefusal(BAD_REQUEST, "'kafka_topic' has to be a text")
    at = TopicPartition(topic, _count("kafka_partition", number, INT32_MAX))
    if entry.offset is None:
        return at, None
    offset = entry.offset.get("kafka_offset")
    if offset is None:
        raise ConnectRefusal(
            BAD_REQUEST,
            "The offset for a sink connector should either be null or contain the key"
            " 'kafka_offset'",
        )
    return at, _count("kafka_offset", offset, INT64_MAX)


def _count(name: str, value: JsonValue, limit: int) -> int:
    """Return a number of an entry, which may be written as a text as well."""
    text = str(value)
    if isinstance(value, str | int) and text.isascii() and text.isdecimal() and len(text) < 20:  # noqa: PLR2004 - digits of int64
        number = int(text)
        if number <= limit:
            return number
    raise ConnectRefusal(BAD_REQUEST, f"'{name}' has to be a whole number from 0 to {limit}")
