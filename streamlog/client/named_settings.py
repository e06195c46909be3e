"""Named settings: the settings of an app's consumer and producer, by Kafka's names.

Rule: a name is one that Kafka has and that an app may set; every other one is refused with what to
write instead. Values may be texts, as in a properties file. What an app decides for itself (its
group, its guarantee, its connection) has one place, which the message names.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Final, NamedTuple, TypeAlias, cast

from streamlog.client.consumer.consumer_settings import ConsumerOptions, ConsumerSettings
from streamlog.client.producer import ProducerOptions, ProducerSettings
from streamlog.errors import ConfigError
from streamlog.records.compression import Compression

GivenSettings: TypeAlias = Mapping[str, object]
"""Settings by Kafka's names; values may be texts."""
_BOTH: Final = {
    "send.buffer.bytes": "send_buffer_bytes",
    "receive.buffer.bytes": "receive_buffer_bytes",
    "enable.metrics.push": "enable_metrics_push",
}
_CONSUMER: Final = {
    **_BOTH,
    "client.rack": "client_rack",
    "fetch.max.bytes": "fetch_max_bytes",
    "fetch.max.wait.ms": "fetch_max_wait_ms",
    "fetch.min.bytes": "fetch_min_bytes",
    "heartbeat.interval.ms": "heartbeat_interval_ms",
    "max.partition.fetch.bytes": "max_partition_fetch_bytes",
    "max.poll.interval.ms": "max_poll_interval_ms",
    "max.poll.records": "max_poll_records",
    "metadata.max.age.ms": "metadata_max_age_ms",
    "session.timeout.ms": "session_timeout_ms",
}
"""Options of `Log.consumer`, by Kafka's names."""
_PRODUCER: Final = {
    **_BOTH,
    "batch.size": "batch_bytes",
    "buffer.memory": "buffer_bytes",
    "compression.type": "compression",
    "delivery.timeout.ms": "delivery_timeout_ms",
    "linger.ms": "linger_ms",
    "max.in.flight.requests.per.connection": "max_in_flight",
    "request.timeout.ms": "request_timeout_ms",
}
"""Options of `Log.producer`, by Kafka's names."""
_CONNECTION: Final = {
    "bootstrap.servers": "App(log='kafka://HOST:PORT')",
    "key.serializer": "the types of app.topic",
    "value.serializer": "the types of app.topic",
    "key.deserializer": "the types of app.topic",
    "value.deserializer": "the types of app.topic",
}
_ELSEWHERE: Final[Mapping[str, Mapping[str, str]]] = {
    "consumer": {
        **_CONNECTION,
        "group.id": "App(id), which names the group",
        "group.instance.id": "the worker's state directory, which makes it a static member",
        "group.protocol": "nothing: a worker's own assignor keeps tasks beside their state",
        "partition.assignment.strategy": (
            "nothing: a worker's own assignor keeps tasks beside their state"
        ),
        "auto.offset.reset": "App(source_lost=...)",
        "isolation.level": "nothing: a worker reads committed records only",
        "enable.auto.commit": "App(commit_interval=...)",
        "auto.commit.interval.ms": "App(commit_interval=...)",
    },
    "producer": {
        **_CONNECTION,
        "acks": "App(guarantee=...): a worker's rows are acknowledged by all in-sync replicas",
        "enable.idempotence": "App(guarantee=...): a retry never writes a row twice",
        "partitioner.class": "app.topic(partitioner=...)",
        "transactional.id": "App(guarantee=...): each worker has an id of its own",
        "transaction.timeout.ms": "App(commit_interval=...)",
    },
}
"""What decides instead of a setting of Kafka's."""
_SECURITY: Final = ("security.", "sasl.", "ssl.")


class ClientOptions(NamedTuple):
    """The options of an app's clients that replace a worker's."""

    consumer: ConsumerOptions
    """Of the consumer of inputs."""
    producer: ProducerOptions
    """Of the producers of rows."""


NO_OPTIONS: Final = ClientOptions({}, {})
"""A worker's own settings hold."""


def client_options(consumer: GivenSettings | None, producer: GivenSettings | None) -> ClientOptions:
    """Return the options of both clients of an app.

    Raises:
        ConfigError: a name is unknown or decided elsewhere, or a value is out of range.
    """
    return ClientOptions(consumer_options(consumer), producer_options(producer))


def consumer_options(given: GivenSettings | None) -> ConsumerOptions:
    """Return the options of an app's consumer.

    Raises:
        ConfigError: a name is unknown or decided elsewhere, or a value is out of range.
    """
    options = cast("ConsumerOptions", _options("consumer", _CONSUMER, given or {}))
    # Here, so that the error names the line that creates the app. What depends on the worker's own
    # settings, such as a session that is shorter than its heartbeats, is found when it starts.
    ConsumerSettings(**options)
    return options


def producer_options(given: GivenSettings | None) -> ProducerOptions:
    """Return the options of an app's producers.

    Raises:
        ConfigError: a name is unknown or decided elsewhere, or a value is out of range.
    """
    options = cast("ProducerOptions", _options("producer", _PRODUCER, given or {}))
    ProducerSettings(**options)
    return options


def _options(side: str, known: Mapping[str, str], given: GivenSettings) -> dict[str, object]:
    return {_option(side, known, name): _value(side, name, value) for name, value in given.items()}


def _option(side: str, known: Mapping[str, str], name: str) -> str:
    """Return the option that a setting stands for."""
    if name in known:
        return known[name]
    # A file of settings for Kafka's clients has names of a connection, a group and serializers:
    # each of them has one place in an app, and two would contradict each other.
    instead = _ELSEWHERE[side].get(name)
    if name.startswith(_SECURITY):
        instead = "App(security={...})"
    if instead is not None:
        raise ConfigError(f"App({side}=...) has no {name!r}: it is decided by {instead}")
    # 1. A name of the other side is more likely meant for that than misspelt. 2. Else the nearest.
    other = "producer" if side == "consumer" else "consumer"
    if name in {"consumer": _CONSUMER, "producer": _PRODUCER}[other]:
        raise ConfigError(f"App({side}=...) has no {name!r}: it is one of App({other}=...)")
    (near,) = difflib.get_close_matches(name, known, n=1, cutoff=0)
    raise ConfigError(
        f"App({side}=...) has no {name!r}: did you mean {near!r}? There are: "
        f"{', '.join(sorted(known))}"
    )


def _value(side: str, name: str, value: object) -> object:
    """Return a value as its option takes it."""
    if name == "enable.metrics.push":
        if value in (True, "true"):
            return True
        if value in (False, "false"):
            return False
        raise ConfigError(f"App({side}=...): {name} is {value!r}: it can be true or false")
    # A codec is looked up now: the producer would look it up with the first batch.
    if name == "compression.type":
        try:
            return Compression.parse(str(value)).name.lower()
        except ConfigError as error:
            raise ConfigError(f"App({side}=...): {name}: {error}") from error
    if name == "client.rack":
        return str(value)
    # A bool is an int to Python, and never a number of bytes or milliseconds.
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if isinstance(value, str) and value.strip().removeprefix("-").isdecimal():
        return int(value)
    raise ConfigError(f"App({side}=...): {name} is {value!r}: it has to be a whole number")
