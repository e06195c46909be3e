"""From the reader's options to one range of offsets per partition, fixed before any row is read.

Options have the names of Spark's own Kafka source. What it has and we have not is refused by
name, not ignored. `startingOffsets` and `endingOffsets` are inclusive and exclusive.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import TypeAlias

import msgspec

from streamlog.errors import ConfigError

EARLIEST = -2
LATEST = -1
OPTIONS = (
    "path",
    "kafka.bootstrap.servers",
    "subscribe",
    "startingOffsets",
    "endingOffsets",
    "includeHeaders",
)

Offsets: TypeAlias = str | dict[str, dict[str, int]]
Bounds: TypeAlias = Callable[[str, int], tuple[int, int]]
"""Topic and partition to the offsets that the log holds: first, and one past the last."""


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """What the user asked for, checked."""

    path: str | None
    bootstrap_servers: str | None
    topics: tuple[str, ...]
    starting: Offsets
    ending: Offsets
    include_headers: bool


@dataclass(frozen=True, slots=True)
class OffsetRange:
    """Records `start` up to but not including `end` of one partition."""

    topic: str
    partition: int
    start: int
    end: int


def parse_options(options: Mapping[str, str]) -> ReadOptions:
    """Check the options of `spark.read`.

    Raises:
        ConfigError: one is unknown, missing or malformed; the text names it.
    """
    known = {name.lower(): name for name in OPTIONS}
    given = {key.lower(): value for key, value in options.items()}
    for key in given:
        if key not in known:
            near = get_close_matches(key, known, n=1)
            hint = f"did you mean '{known[near[0]]}'?" if near else f"known: {', '.join(OPTIONS)}"
            raise ConfigError(f"the streamlog source has no option '{key}'; {hint}")
    path, servers = given.get("path"), given.get("kafka.bootstrap.servers")
    if (path is None) == (servers is None):
        raise ConfigError(
            "give either the option 'path' (a data directory) or 'kafka.bootstrap.servers' "
            "(a running broker), and not both"
        )
    topics = tuple(name.strip() for name in given.get("subscribe", "").split(",") if name.strip())
    if not topics:
        raise ConfigError("give the option 'subscribe': one topic, or several with commas")
    headers = given.get("includeheaders", "false").lower()
    if headers not in {"true", "false"}:
        raise ConfigError(f"option 'includeHeaders' is true or false, not '{headers}'")
    return ReadOptions(
        path=path,
        bootstrap_servers=servers,
        topics=topics,
        starting=_offsets("startingOffsets", given.get("startingoffsets", "earliest"), "latest"),
        ending=_offsets("endingOffsets", given.get("endingoffsets", "latest"), "earliest"),
        include_headers=headers == "true",
    )


def _offsets(option: str, text: str, refused: str) -> Offsets:
    word = text.strip().lower()
    if word == refused:
        raise ConfigError(f"option '{option}' can't be '{refused}': it would read nothing")
    if word in {"earliest", "latest"}:
        return word
    try:
        return msgspec.json.decode(text, type=dict[str, dict[str, int]])
    except msgspec.MsgspecError as error:
        raise ConfigError(
            f"option '{option}' is neither 'earliest' nor 'latest' nor JSON like "
            f'{{"topic": {{"0": 23, "1": -2}}}}: {error}'
        ) from error


def resolve(
    options: ReadOptions, partitions: Mapping[str, int], bounds: Bounds
) -> list[OffsetRange]:
    """One range per partition that holds a record asked for; empty ones are left out.

    Raises:
        ConfigError: a topic or partition does not exist, or an offset lies outside the log.
    """
    for topic in options.topics:
        if topic not in partitions:
            there = ", ".join(sorted(partitions)) or "none"
            raise ConfigError(f"the log has no topic '{topic}' (it has: {there})")
    for option, offsets in (
        ("startingOffsets", options.starting),
        ("endingOffsets", options.ending),
    ):
        _check_named(option, offsets, {topic: partitions[topic] for topic in options.topics})
    ranges = []
    for topic in options.topics:
        for partition in range(partitions[topic]):
            first, end = bounds(topic, partition)
            start = _resolve_one(options.starting, topic, partition, (first, end), first)
            stop = _resolve_one(options.ending, topic, partition, (first, end), end)
            if start < stop:
                ranges.append(OffsetRange(topic, partition, start, stop))
    return ranges


def _check_named(option: str, offsets: Offsets, partitions: Mapping[str, int]) -> None:
    if isinstance(offsets, str):
        return
    named = {(topic, number) for topic, numbers in offsets.items() for number in numbers}
    wanted = {(topic, str(n)) for topic, count in partitions.items() for n in range(count)}
    if wrong := sorted(named - wanted):
        topic, number = wrong[0]
        raise ConfigError(f"option '{option}' names {topic}-{number}, which is not being read")
    if missing := sorted(wanted - named):
        topic, number = missing[0]
        raise ConfigError(
            f"option '{option}' leaves out {topic}-{number}; use -2 for earliest, -1 for latest"
        )


def _resolve_one(
    offsets: Offsets, topic: str, partition: int, bounds: tuple[int, int], default: int
) -> int:
    if isinstance(offsets, str):
        return default
    offset = offsets[topic][str(partition)]
    first, end = bounds
    if offset == EARLIEST:
        return first
    if offset == LATEST:
        return end
    if not first <= offset <= end:
        raise ConfigError(
            f"offset {offset} of {topic}-{partition} is outside the log, which holds "
            f"{first} up to {end}"
        )
    return offset
