"""Key places: by which partitioner a written row's key chooses its partition.

Tables, joins and lookups find a key only where the topic's partitioner puts it, and which one that
is stands in the app's declaration, not in the log. So a write says it (the options `partitioner`
and `app`); one that does not goes by murmur2, and is refused if the keys that the topic holds say
that its producers go by another one.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator

from spark_bridge.declared import declared_topic
from spark_bridge.offsets import OffsetRange
from spark_bridge.options import KAFKA, ReadOptions, parse_options
from spark_bridge.places import place_of
from spark_bridge.write_options import WriteOptions
from streamlog.errors import ConfigError
from streamlog.records.partitioners import DEFAULT, Partitioner, fitting

_log = logging.getLogger(__name__)

SAMPLED = 200
"""Offsets at the end of each partition whose keys are looked at."""
KEYS_ENOUGH = 64
"""Another partitioner does not place this number of keys in the same partitions by chance."""
MISPLACED_MIN = 2
"""One key may have been sent to a partition by hand."""


def partitioner_of(options: WriteOptions, topic: str, count: int) -> Partitioner:
    """The partitioner for rows written to a topic with this number of partitions.

    Raises:
        ConfigError: the options do not say, and the topic's keys are not where murmur2 puts them;
            or the app of the options does not declare the topic.
    """
    if options.partitioner is not None:
        return options.partitioner
    if options.app is not None:
        declared: Partitioner = declared_topic(options.app, topic).partitioner
        return declared
    if count > 1:
        _check(options, topic, count)
    return DEFAULT


def _check(options: WriteOptions, topic: str, count: int) -> None:
    keys: set[tuple[bytes, int]] = set()
    for sampled in _samples(options, topic, count):
        keys |= sampled
        fits = fitting(keys, count)
        if len(keys) >= KEYS_ENOUGH:
            break
    else:
        fits = fitting(keys, count)
    misplaced = len(keys) - fits[DEFAULT]
    if misplaced < MISPLACED_MIN:
        return
    told = f"{misplaced} of {len(keys)} keys in topic '{topic}' are not where {DEFAULT} puts them"
    others = [name for name, number in fits.items() if number == len(keys)]
    if others:
        raise ConfigError(
            f"{told}, but all are where {others[0]} does: rows that are written by {DEFAULT} would"
            f" not be found beside them. Give the option partitioner='{others[0]}', or app='MODULE'"
            " for what the app declares"
        )
    _log.warning(
        "%s, nor do others: rows go by %s; give the option 'partitioner' or 'app', or rows a column"
        " 'partition', if they have to lie beside these keys",
        told,
        DEFAULT,
    )


def _samples(options: WriteOptions, topic: str, count: int) -> Iterator[set[tuple[bytes, int]]]:
    """Different keys of the newest records, partition by partition."""
    reading = _reading(options, topic, count)
    place = place_of(reading)
    for at, (first, end) in sorted(place.bounds().items()):
        start = max(first, end - SAMPLED)
        if start >= end:
            continue
        found: set[tuple[bytes, int]] = set()
        for rows in place.read(OffsetRange(topic, at.partition, start, end), None):
            found |= {(key, at.partition) for key in rows.column("key").to_pylist() if key}
        yield found


def _reading(options: WriteOptions, topic: str, count: int) -> ReadOptions:
    where = (
        {"path": options.path}
        if options.path is not None
        else {"kafka.bootstrap.servers": options.bootstrap_servers or ""}
    )
    return parse_options(
        {
            **{f"{KAFKA}{name}": value for name, value in options.client.items()},
            **where,
            "assign": json.dumps({topic: [*range(count)]}),
            "columns": "key",
            "isolationLevel": "read_uncommitted",
            "failOnDataLoss": "false",
            "ignoreCorruptBatches": "true",
        }
    )
