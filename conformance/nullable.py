"""Sends requests with nullable fields null, empty and set, to a broker of ours and to Kafka.

Every version of every API that clients use is tried, with every combination of the nullable fields
of one struct while there are few of them. What is compared are the error codes of the answers, and
whether a connection is closed: what Apache Kafka says is right. A topic id of zeros counts as null.
`python -m conformance.nullable` prints each difference, and exits with 1 if one is not explained by
`KNOWN`. A broker of Kafka is started unless `STREAMLOG_KAFKA` names one.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import sys
import time
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from conformance.client import PATIENCE_S
from conformance.clusters import own_broker
from conformance.kafka import Unavailable, apache_kafka
from conformance.sample_requests import Surroundings, sample, set_value
from streamlog.protocol.api_table import APIS, OWN_KEY, Api, api_of
from streamlog.protocol.error_codes import ErrorCode
from streamlog.protocol.frame import decode_response, encode_request
from streamlog.protocol.messages.classic_groups import FindCoordinatorRequest
from streamlog.protocol.messages.cluster_metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
)
from streamlog.protocol.messages.topics_and_configs import CreatableTopic, CreateTopicsRequest
from streamlog.protocol.schema import ZERO_UUID, Field, Message, Struct, StructType

TOPIC: Final = "there"
COMBINED_MAX: Final = 3
"""Up to this many nullable fields of one struct are tried in every combination."""
CLOSED: Final = "closes the connection"
SILENT: Final = "gives no answer"
ANSWER_S: Final = 5
"""How long an answer may take."""
PAUSE_S: Final = 0.05
STARTING: Final = frozenset({"COORDINATOR_NOT_AVAILABLE", "COORDINATOR_LOAD_IN_PROGRESS"})
"""Answers of a coordinator that starts: asked again."""
GROUP, TRANSACTION = 0, 1
"""Kinds of coordinators."""

NULL, EMPTY, SET = "null", "empty", "set"
KNOWN: Final[dict[tuple[str, str], str]] = {
    ("Metadata", "topics.topic_id null, topics.name null"): (
        "Kafka fails with a NullPointerException; the request is invalid"
    ),
    ("Produce", "topic_data.partition_data.records null"): (
        "Kafka fails with a NullPointerException and never answers"
    ),
}
"""Differences that stand, by API and the choices that lead to them, each with its reason."""


@dataclass(frozen=True)
class Choice:
    """What one nullable field of a request holds."""

    path: tuple[str, ...]
    """Names of the structs and of the field."""
    value: str
    """NULL, EMPTY or SET."""

    def __str__(self) -> str:
        return f"{'.'.join(self.path)} {self.value}"


@dataclass(frozen=True)
class Trial:
    """A version of a request, and what its nullable fields hold; the others are set."""

    api: Api
    version: int
    choices: tuple[Choice, ...]

    def __str__(self) -> str:
        said = ", ".join(map(str, self.choices)) or "as it is"
        return f"{self.api.name} v{self.version}: {said}"


def trials() -> Iterator[Trial]:
    """All of them, in the order of the API keys."""
    for api in APIS.values():
        if api.is_of_peers or api.key >= OWN_KEY:
            continue
        versions = api.request.__versions__
        for version in range(versions.first, api.client_version_max + 1):
            yield Trial(api, version, ())
            for choices in _choices(api.request, version, ()):
                yield Trial(api, version, choices)


def _choices(
    declared: StructType, version: int, above: tuple[str, ...]
) -> Iterator[tuple[Choice, ...]]:
    fields = [field for field in declared.__fields__ if version in field.versions]
    nullable = [
        [Choice((*above, field.name), value) for value in _values(field)]
        for field in fields
        if _is_nullable(field, version)
    ]
    if len(nullable) <= COMBINED_MAX:
        yield from (each for each in itertools.product(*nullable) if each)
    else:
        yield from ((each,) for values in nullable for each in values)
    for field in fields:
        if isinstance(field.item, StructType):
            yield from _choices(field.item, version, (*above, field.name))


def _is_nullable(field: Field, version: int) -> bool:
    return version in field.nullable or field.kind == "uuid"


def _values(field: Field) -> Sequence[str]:
    if field.kind in ("uuid", "struct"):
        return (NULL, SET)
    return (NULL, EMPTY, SET)


def message(trial: Trial, at: Surroundings) -> Message:
    """The request of a trial."""
    request = sample(trial.api, trial.version, at)
    for choice in trial.choices:
        for holder in _holders(request, choice.path[:-1]):
            field = next(each for each in type(holder).__fields__ if each.name == choice.path[-1])
            if choice.value == SET:
                value = set_value(trial.api, ".".join(choice.path), field, trial.version, at)
            else:
                value = _unset(field, choice.value)
            setattr(holder, field.name, value)
    return request


def _holders(root: Struct, path: Sequence[str]) -> list[Any]:
    found: list[Any] = [root]
    for name in path:
        inner = [getattr(each, name) for each in found]
        found = [
            item
            for each in inner
            for item in (each if isinstance(each, list) else [each])
            if item is not None
        ]
    return found


def _unset(field: Field, value: str) -> object:
    if field.kind == "uuid":
        return ZERO_UUID
    if value == NULL:
        return None
    empty: dict[str, object] = {"string": "", "bytes": b"", "records": b"", "array": []}
    return empty[field.kind]


def codes(answer: Struct, above: str = "") -> list[str]:
    """The error codes of an answer, with the names of their fields."""
    found = []
    for field in type(answer).__fields__:
        value, name = getattr(answer, field.name), f"{above}{field.name}"
        if field.name.endswith("error_code"):
            found.append(f"{name}={_code_name(value)}")
        for each in value if isinstance(value, list) else [value]:
            if isinstance(each, Struct):
                found += codes(each, f"{name}.")
    return sorted(found)


def _code_name(code: int) -> str:
    return ErrorCode(code).name if code in ErrorCode.__members__.values() else str(code)


class Asked:
    """One broker, and what it answers; a connection that it closes is opened again."""

    def __init__(self, address: str) -> None:
        host, _, port = address.partition(":")
        self._address = host, int(port)
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def prepare(self) -> bytes:
        """Make the topic, and wait until it and the coordinators are there; returns its id."""
        topic = CreatableTopic(name=TOPIC, num_partitions=1, replication_factor=1)
        await self._call(CreateTopicsRequest(topics=[topic], timeout_ms=PATIENCE_S * 1000), 7)
        for kind in (GROUP, TRANSACTION):
            await self._settled(FindCoordinatorRequest(key_type=kind, coordinator_keys=[TOPIC]), 4)
        until_s = time.monotonic() + PATIENCE_S
        while time.monotonic() < until_s:
            wanted = MetadataRequest(topics=[MetadataRequestTopic(name=TOPIC)])
            found = await self._call(wanted, 12)
            if isinstance(found, MetadataResponse) and not found.topics[0].error_code:
                return found.topics[0].topic_id
            await asyncio.sleep(PAUSE_S)
        raise TimeoutError(f"{TOPIC} is not there after {PATIENCE_S} s")

    async def answer(self, request: Message, version: int) -> Message | str:
        """Its answer, or CLOSED or SILENT."""
        try:
            return await self._settled(request, version)
        except TimeoutError:
            await self.close()
            return SILENT
        except (OSError, EOFError):
            await self.close()
            return CLOSED

    async def close(self) -> None:
        """Let go of the connection."""
        if self._streams is not None:
            self._streams[1].close()
        self._streams = None

    async def _settled(self, request: Message, version: int) -> Message:
        until_s = time.monotonic() + PATIENCE_S
        while True:
            answer = await self._call(request, version)
            said = {each.rpartition("=")[2] for each in codes(answer)}
            if not said & STARTING or time.monotonic() > until_s:
                return answer
            await asyncio.sleep(PAUSE_S)

    async def _call(self, request: Message, version: int) -> Message:
        if self._streams is None:
            self._streams = await asyncio.open_connection(*self._address)
        reader, writer = self._streams
        api = api_of(type(request))
        writer.writelines(encode_request(api, version, 1, "nullable", request))
        async with asyncio.timeout(ANSWER_S):
            size_bytes = int.from_bytes(await reader.readexactly(4), "big")
            frame = await reader.readexactly(size_bytes)
        return decode_response(api, version, frame)[1]


class Difference(NamedTuple):
    """A request to which our broker says something else than Kafka."""

    trial: Trial
    ours: list[str]
    kafkas: list[str]

    @property
    def reason(self) -> str | None:
        """Why it stands, if that is known."""
        return KNOWN.get((self.trial.api.name, ", ".join(map(str, self.trial.choices))))

    def __str__(self) -> str:
        lines = [str(self.trial), f"ours   {self.ours}", f"Kafka  {self.kafkas}"]
        return "\n    ".join([*lines, *filter(None, [self.reason])])


async def differences(
    ours: str, kafkas: str, wanted: Callable[[Trial], bool]
) -> AsyncIterator[Difference]:
    """Send every request to both."""
    brokers = [Asked(ours), Asked(kafkas)]
    ids = [await broker.prepare() for broker in brokers]
    for number, trial in enumerate(filter(wanted, trials())):
        answers = []
        for broker, topic_id in zip(brokers, ids, strict=True):
            request = message(trial, Surroundings(TOPIC, topic_id, number))
            answer = await broker.answer(request, trial.version)
            answers.append([answer] if isinstance(answer, str) else codes(answer))
        if answers[0] != answers[1]:
            yield Difference(trial, *answers)
    for broker in brokers:
        await broker.close()


async def report(ours: str, kafkas: str, names: Collection[str]) -> int:
    """Print the differences; how many of them are not explained."""
    found = unexplained = 0
    async for each in differences(ours, kafkas, lambda trial: not names or trial.api.name in names):
        print(each, flush=True)
        found += 1
        unexplained += each.reason is None
    total = sum(1 for _ in trials())
    print(f"{total} requests, {found} answered differently, {unexplained} of them unexplained")
    return unexplained


def main() -> int:
    """Compare, and tell."""
    with ExitStack() as stack:
        ours = stack.enter_context(own_broker({"num.partitions": "4"}))
        try:
            kafkas = os.environ.get("STREAMLOG_KAFKA") or stack.enter_context(apache_kafka())
        except Unavailable as error:
            print(error)
            return 1
        return min(asyncio.run(report(ours, kafkas, sys.argv[1:])), 1)


if __name__ == "__main__":
    sys.exit(main())
