"""ProduceChecks: which records of a Produce request are checked by a thread, and what it does.

Records that are compressed, or have to be, and very large batches are not looked at in the loop:
decompressing a few kilobytes may take as long as a hundred megabytes. All others are scanned where
they are appended. Rule of the file: what a thread is given is a copy, for the bytes of a request
lie where those of the next one will.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias, cast

from streamlog.broker.config import AS_PRODUCED, UNCOMPRESSED, TopicConfig
from streamlog.broker.storage.admission import Prepared, is_checked, prepare
from streamlog.broker.storage.appends import Origin
from streamlog.broker.storage.runs import wait_for_thread
from streamlog.errors import StreamlogError
from streamlog.protocol.schema import one_buffer

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from streamlog.broker.data import Checked, DataRequests
    from streamlog.protocol.messages.data import ProduceRequest
    from streamlog.protocol.produce_runs import ProduceRun

Outcome: TypeAlias = Prepared | StreamlogError


def check_of(
    data: DataRequests, request: ProduceRequest, wall_ms: int
) -> Callable[[], Checked] | None:
    """What a thread has to do before the request is answered; None if there is nothing."""
    configs = {}
    for topic in request.topic_data:
        for each in topic.partition_data:
            config = data.config_of(topic.name, each.index)
            records = memoryview(one_buffer(each.records))
            if config is not None and needs_thread([records], config):
                configs[topic.name, each.index] = config
    if not configs:
        return None
    keep(request)
    works = {
        (topic.name, each.index): cast("bytearray", each.records)
        for topic in request.topic_data
        for each in topic.partition_data
        if (topic.name, each.index) in configs
    }
    return lambda: {
        place: checked(records, configs[place], wall_ms) for place, records in works.items()
    }


def check_of_run(
    data: DataRequests, run: ProduceRun, wall_ms: int
) -> Callable[[], dict[int, Outcome]] | None:
    """The same for requests that came together, by their numbers."""
    configs: dict[int, TopicConfig] = {}
    for pattern, numbers in run.by_pattern().items():
        config = data.config_of(pattern.topic, pattern.index)
        pieces = [run.requests[number].records for number in numbers]
        if config is not None and needs_thread(pieces, config):
            configs.update(dict.fromkeys(numbers, config))
    if not configs:
        return None
    run.keep()
    works = [(number, run.requests[number].records, configs[number]) for number in configs]
    return lambda: {number: checked(records, config, wall_ms) for number, records, config in works}


def keep(request: ProduceRequest) -> None:
    """Give the request records of its own."""
    for topic in request.topic_data:
        for data in topic.partition_data:
            data.records = bytearray(one_buffer(data.records))


def needs_thread(pieces: Sequence[memoryview], config: TopicConfig) -> bool:
    """Whether these batches are checked, or compressed, by a thread."""
    if config.compression_type not in (AS_PRODUCED, UNCOMPRESSED):
        return True
    return is_checked(config) and wait_for_thread(pieces)


def checked(
    data: bytearray | memoryview,
    config: TopicConfig,
    wall_ms: int,
    *,
    origin: Origin = Origin.TRANSACTION,
) -> Outcome:
    """The batches of one partition, checked; or why they are refused."""
    try:
        return prepare(data, config, wall_ms=wall_ms, origin=origin)
    except StreamlogError as error:
        return error
