"""Names of client metrics: groups, names and tags are those of Kafka's Java client.

Dashboards and alerts that were made for Kafka's clients then work for ours. `DEFINITIONS` lists
every metric that this release measures; what it leaves out has no meaning in one event loop (the
times of a selector), or costs work for every record (`record-size-max`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple, Self, TypeAlias

PRODUCER: Final = "producer-metrics"
PRODUCER_TOPIC: Final = "producer-topic-metrics"
CONSUMER: Final = "consumer-metrics"
FETCH: Final = "consumer-fetch-manager-metrics"
COORDINATOR: Final = "consumer-coordinator-metrics"
ADMIN: Final = "admin-client-metrics"
NODE: Final = {
    PRODUCER: "producer-node-metrics",
    CONSUMER: "consumer-node-metrics",
    ADMIN: "admin-client-node-metrics",
}
"""The group of a client's metrics to the group of its metrics by broker."""
DOMAINS: Final = {
    "producer": "kafka.producer",
    "consumer": "kafka.consumer",
    "admin": "kafka.admin.client",
}
"""The first word of a group to the domain of its MBeans."""

CLIENT_ID: Final = "client-id"
NODE_ID: Final = "node-id"
TOPIC: Final = "topic"
PARTITION: Final = "partition"


class MetricName(NamedTuple):
    """The name of a metric of one client."""

    group: str
    name: str
    tags: tuple[tuple[str, str], ...]
    """The tags with their values, in the order of `Definition.tags`."""

    @property
    def tag_names(self) -> tuple[str, ...]:
        """The names of the tags."""
        return tuple(tag for tag, _ in self.tags)

    @property
    def is_total(self) -> bool:
        """Whether the value only grows, from the start of the client."""
        return self.name.endswith("-total")


class Definition(NamedTuple):
    """A metric that clients measure."""

    group: str
    name: str
    tags: tuple[str, ...]
    help: str

    @classmethod
    def of(cls, group: str, tags: tuple[str, ...], texts: Mapping[str, str]) -> list[Self]:
        """Make the definitions of some metrics with the same group and tags."""
        return [cls(group, name, (CLIENT_ID, *tags), text) for name, text in texts.items()]


def _meter(name: str, what: str) -> dict[str, str]:
    """Return the texts of a rate and its total."""
    return {f"{name}-rate": f"{what}, per second.", f"{name}-total": f"{what}."}


def _spread(name: str, what: str) -> dict[str, str]:
    """Return the texts of an average and a maximum."""
    return {f"{name}-avg": f"{what}: average.", f"{name}-max": f"{what}: maximum."}


_TRAFFIC: Final = {
    **_meter("request", "Requests sent"),
    **_spread("request-size", "Size of a request in bytes"),
    **_meter("response", "Answers received"),
    **_meter("outgoing-byte", "Bytes sent"),
    **_meter("incoming-byte", "Bytes received"),
}
_CONNECTIONS: Final = {
    "connection-count": "Open connections.",
    **_meter("connection-creation", "Connections opened"),
    **_meter("connection-close", "Connections closed"),
    **_meter("failed-authentication", "Connections on which one side refused the other"),
    **_meter("network-io", "Requests sent and answers received"),
}
_LATENCY: Final = _spread("request-latency", "Time from a request to its answer in ms")


def _network(group: str) -> list[Definition]:
    """Return the definitions of a client's connections."""
    return [
        *Definition.of(group, (), {**_CONNECTIONS, **_TRAFFIC}),
        *Definition.of(NODE[group], (NODE_ID,), {**_TRAFFIC, **_LATENCY}),
    ]


_OUTCOMES: Final = {
    **_meter("record-send", "Records sent, retries included"),
    **_meter("record-retry", "Records that were sent again, or will be"),
    **_meter("record-error", "Records that were given up with an error"),
}

DEFINITIONS: Final[list[Definition]] = [
    *Definition.of(
        PRODUCER,
        (),
        {
            **_OUTCOMES,
            **_LATENCY,
            **_spread("batch-size", "Size of a batch of one partition in bytes, compressed"),
            "compression-rate-avg": "Compressed by uncompressed size of batches: average.",
            **_meter("batch-split", "Batches that were divided, too large for the broker"),
            **_spread("record-queue-time", "Time of a batch in the buffer before it is sent in ms"),
            "record-size-avg": "Size of a record in bytes, before compression: average.",
            "records-per-request-avg": "Records in a Produce request: average.",
            "requests-in-flight": "Produce requests that wait for their answer.",
            **_spread("produce-throttle-time", "Time by which a broker throttled a request in ms"),
            "metadata-age": "Time since brokers and leaders were last looked up in seconds.",
            "metadata-wait-time-ns-total": "Time that callers waited for a topic's metadata in ns.",
            "buffer-total-bytes": "Size of the buffer in bytes: the setting buffer_bytes.",
            "buffer-available-bytes": "Free bytes of the buffer.",
            "bufferpool-wait-ratio": "Share of time in which a caller waited for the buffer.",
            "bufferpool-wait-time-ns-total": "Time that callers waited for the buffer in ns.",
            "waiting-threads": "Callers that wait for the buffer.",
            "flush-time-ns-total": "Time of flushes in ns.",
            "txn-init-time-ns-total": "Time until the transactional id was opened in ns.",
            "txn-begin-time-ns-total": "Time until transactions began in ns.",
            "txn-send-offsets-time-ns-total": "Time to send offsets in transactions in ns.",
            "txn-commit-time-ns-total": "Time of commits of transactions in ns.",
            "txn-abort-time-ns-total": "Time of aborts of transactions in ns.",
        },
    ),
    *Definition.of(
        PRODUCER_TOPIC,
        (TOPIC,),
        {
            **_OUTCOMES,
            **_meter("byte", "Bytes of batches sent, compressed"),
            "compression-rate": "Compressed by uncompressed size of batches: average.",
        },
    ),
    *_network(PRODUCER),
    *Definition.of(
        CONSUMER,
        (),
        {
            **_spread("time-between-poll", "Time from one poll to the next in ms"),
            "poll-idle-ratio-avg": "Share of time within poll, not in the caller: average.",
            "last-poll-seconds-ago": "Time since the last poll in seconds.",
            "commit-sync-time-ns-total": "Time of commits that were awaited in ns.",
            "committed-time-ns-total": "Time of look-ups of committed offsets in ns.",
        },
    ),
    *Definition.of(
        FETCH,
        (),
        {
            **_meter("records-consumed", "Records that polls returned"),
            **_meter("bytes-consumed", "Bytes of fetched batches, compressed"),
            **_spread("fetch-size", "Bytes of records in an answer"),
            **_meter("fetch", "Fetches answered"),
            **_spread("fetch-latency", "Time from a fetch to its answer in ms"),
            **_spread("fetch-throttle-time", "Time by which a broker throttled a fetch in ms"),
            "records-per-request-avg": "Records by answer that had some: average.",
            "records-lag-max": "Largest lag of any partition in records.",
            "records-lead-min": "Smallest lead of any partition in records.",
        },
    ),
    *Definition.of(
        FETCH,
        (TOPIC,),
        {
            **_meter("records-consumed", "Records of a topic that polls returned"),
            **_meter("bytes-consumed", "Bytes of a topic's fetched batches, compressed"),
            **_spread("fetch-size", "Bytes of a topic's partition in an answer"),
            "records-per-request-avg": "Records of a topic by answer that had some: average.",
        },
    ),
    *Definition.of(
        FETCH,
        (TOPIC, PARTITION),
        {
            "records-lag": "Records from the position to the end of the partition.",
            **_spread("records-lag", "Records from the position to the end of the partition"),
            "records-lead": "Records from the start of the partition to the position.",
            "records-lead-avg": "Records from the start to the position: average.",
            "records-lead-min": "Records from the start to the position: minimum.",
            "preferred-read-replica": "Replica that is read; -1 for the leader.",
        },
    ),
    *Definition.of(
        COORDINATOR,
        (),
        {
            "assigned-partitions": "Partitions that the consumer reads.",
            **_spread("commit-latency", "Time from an OffsetCommit request to its answer in ms"),
            **_meter("commit", "Commits"),
            "rebalance-total": "Rebalances that gave this member an assignment.",
            "rebalance-rate-per-hour": "Such rebalances, per hour.",
            **_spread("rebalance-latency", "Time of such a rebalance in ms"),
            "rebalance-latency-total": "Time of all such rebalances in ms.",
            "last-rebalance-seconds-ago": "Time since the last one in seconds; -1: there was none.",
            "failed-rebalance-total": "Attempts to join or sync that failed.",
            "failed-rebalance-rate-per-hour": "Attempts to join or sync that failed, per hour.",
            **_meter("join", "Joins of the group"),
            **_spread("join-time", "Time of a join in ms"),
            **_meter("sync", "Syncs, by which members get their assignment"),
            **_spread("sync-time", "Time of a sync in ms"),
            **_meter("heartbeat", "Heartbeats"),
            "heartbeat-response-time-max": "Time from a heartbeat to its answer in ms: maximum.",
            "last-heartbeat-seconds-ago": "Time since the last one in seconds; -1: there was none.",
            **_spread("partition-assigned-latency", "Time of the callback on_assigned in ms"),
            **_spread("partition-revoked-latency", "Time of the callback on_revoked in ms"),
            **_spread("partition-lost-latency", "Time of the callback on_lost in ms"),
        },
    ),
    *_network(CONSUMER),
    *_network(ADMIN),
]

Found: TypeAlias = Iterator[tuple[MetricName, float]]
HELP: Final[Mapping[tuple[str, str, tuple[str, ...]], str]] = {
    (each.group, each.name, each.tags): each.help for each in DEFINITIONS
}
"""(group, name, tags) of a metric to its description."""
