"""TelemetryMachine: when a client asks which metrics to push, and when it pushes them (KIP-714).

A state machine without I/O: `next` returns the action that is due, and the shell
(`telemetry_reporter`) reports the answers.

1. The client asks for its subscription. Brokers that don't serve the API end the machine.
2. With metrics requested, the first push comes after half to one and a half intervals, so clients
   that start together spread; then one comes in each interval. Without, the client asks again.
3. A push for a subscription that has changed is refused, and the client asks again.
4. A client that closes pushes once more, if it has a subscription.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, TypeAlias

import msgspec

from streamlog.client.metrics.client_metrics import ClientMetrics
from streamlog.client.metrics.metric_names import MetricName
from streamlog.metrics.otlp import Point
from streamlog.protocol.error_codes import ErrorCode
from streamlog.protocol.messages.telemetry import (
    GetTelemetrySubscriptionsRequest,
    GetTelemetrySubscriptionsResponse,
)
from streamlog.protocol.schema import ZERO_UUID
from streamlog.random_source import Random
from streamlog.records.compression import Compression

PREFIX: Final = "org.apache.kafka."
"""The first words of all names of Kafka's clients in telemetry."""
EVERY: Final = "*"
FIRST_ASK_MS: Final = 1_000
"""How long after its start a client asks: one that lives for a moment asks nothing."""
RETRY_MS: Final = 5 * 60 * 1_000
"""Kafka's interval after an error for which no other is known."""
INTERVAL_MS_MIN: Final = 100
PREFERRED: Final = (Compression.ZSTD, Compression.LZ4, Compression.GZIP, Compression.SNAPPY)
_FATAL: Final = frozenset(
    {ErrorCode.INVALID_REQUEST, ErrorCode.INVALID_RECORD, ErrorCode.UNSUPPORTED_VERSION}
)
"""Errors after which Kafka's clients push no more."""
_ASK_AT_ONCE: Final = frozenset(
    {ErrorCode.UNKNOWN_SUBSCRIPTION_ID, ErrorCode.UNSUPPORTED_COMPRESSION_TYPE}
)


class AskSubscription(msgspec.Struct, frozen=True):
    """Send the request; pass the answer to `on_subscription`."""

    request: GetTelemetrySubscriptionsRequest


class PushMetrics(msgspec.Struct, frozen=True):
    """Push the metrics that the subscription selects; pass the error code to `on_pushed`."""

    subscription: TelemetrySubscription


class WaitToReport(msgspec.Struct, frozen=True):
    """Wait until this monotonic time in ms; None: for ever."""

    until_ms: int | None


TelemetryAction: TypeAlias = AskSubscription | PushMetrics | WaitToReport


class TelemetrySubscription(msgspec.Struct, frozen=True):
    """What a broker wants of this client."""

    instance_id: bytes
    subscription_id: int
    interval_ms: int
    codec: Compression
    is_delta: bool
    prefixes: tuple[str, ...]
    size_bytes_max: int

    @classmethod
    def of(cls, answer: GetTelemetrySubscriptionsResponse) -> TelemetrySubscription:
        """Read the broker's answer."""
        accepted = answer.accepted_compression_types
        # Our order of preference decides. Brokers do not list "none"
        # (`client_instances.COMPRESSIONS`), and take it as well.
        codec = next((each for each in PREFERRED if each in accepted), Compression.NONE)
        return cls(
            instance_id=bytes(answer.client_instance_id),
            subscription_id=answer.subscription_id,
            # With an interval of 0, each push would be due as soon as the one before is answered.
            interval_ms=max(answer.push_interval_ms, INTERVAL_MS_MIN),
            codec=codec,
            is_delta=answer.delta_temporality,
            prefixes=tuple(answer.requested_metrics),
            size_bytes_max=answer.telemetry_max_bytes,
        )

    @property
    def wants_any(self) -> bool:
        """Whether the broker wants metrics at all."""
        return bool(self.prefixes)

    def selects(self, name: str) -> bool:
        """Whether the broker wants the metric with this name; `*` and an empty prefix mean all."""
        return any(each == EVERY or name.startswith(each) for each in self.prefixes)


class TelemetryMachine:
    """The telemetry of one client."""

    def __init__(self, now_ms: int, chance: Random) -> None:
        """Begin at this monotonic time in ms; `chance` spreads the first push."""
        self.subscription: TelemetrySubscription | None = None
        self.is_over = False
        """Whether no request is sent any more."""
        self._instance_id = ZERO_UUID
        self._chance = chance
        self._asks = True
        self._due_ms = now_ms + FIRST_ASK_MS

    def next(self, now_ms: int) -> TelemetryAction:
        """Return the action that is due now."""
        if self.is_over:
            return WaitToReport(None)
        if now_ms < self._due_ms:
            return WaitToReport(self._due_ms)
        if self._asks or self.subscription is None:
            return AskSubscription(
                GetTelemetrySubscriptionsRequest(client_instance_id=self._instance_id)
            )
        return PushMetrics(self.subscription)

    def on_subscription(self, answer: GetTelemetrySubscriptionsResponse, now_ms: int) -> None:
        """Take over the broker's answer."""
        if answer.error_code:
            self._on_error(answer.error_code, now_ms)
            return
        found = self.subscription = TelemetrySubscription.of(answer)
        # The first question has an id of zeros, and the broker makes one up. Later questions repeat
        # it, at whichever broker, so the client stays one client in dashboards.
        self._instance_id = found.instance_id
        self._asks = not found.wants_any
        # A first push may come within the interval (`ClientInstance.may_push_soon`). A question may
        # not: after half an interval the broker would throttle it.
        spread = 1.0 if self._asks else self._chance.uniform(0.5, 1.5)
        self._due_ms = now_ms + round(found.interval_ms * spread)

    def on_pushed(self, error_code: int, now_ms: int) -> None:
        """Take over the answer to a push."""
        if error_code:
            self._on_error(error_code, now_ms)
        elif self.subscription is not None:
            self._due_ms = now_ms + self.subscription.interval_ms

    def on_unreachable(self, now_ms: int) -> None:
        """Note that a request got no answer; it is repeated after an interval."""
        self._asks = True
        self._due_ms = now_ms + self._interval_ms

    def end(self) -> TelemetrySubscription | None:
        """End the telemetry; return the subscription of a last push, None if there is none."""
        was_over, self.is_over = self.is_over, True
        found = self.subscription
        # While the machine asks, its subscription wants nothing, was refused, or may be out of
        # date.
        return None if was_over or self._asks or found is None else found

    @property
    def _interval_ms(self) -> int:
        return RETRY_MS if self.subscription is None else self.subscription.interval_ms

    def _on_error(self, error_code: int, now_ms: int) -> None:
        self._asks = True
        # 1. The client pushes. 2. It is closed, and ends the telemetry. 3. The error of the push
        # arrives: it must not bring the telemetry back.
        self.is_over = self.is_over or error_code in _FATAL
        self._due_ms = now_ms + (0 if error_code in _ASK_AT_ONCE else self._interval_ms)


def telemetry_name(name: MetricName) -> str:
    """Return a metric's name in telemetry, such as `org.apache.kafka.producer.record.send.rate`.

    The rule is Kafka's: the group without `-metrics`, and dots for hyphens.
    """
    group = name.group.replace("-", ".").replace(".metrics", "")
    return f"{PREFIX}{group}.{name.name.replace('-', '.')}"


class TelemetryPoints:
    """The points of a client's pushes; sums may count from push to push."""

    def __init__(self) -> None:
        self._last: dict[MetricName, float] = {}

    def of(self, metrics: ClientMetrics, subscription: TelemetrySubscription) -> list[Point]:
        """Return the points that the subscription selects; unknown values (NaN) are left out."""
        return [*self._points(metrics.items(), subscription)]

    def _points(
        self, values: Iterable[tuple[MetricName, float]], subscription: TelemetrySubscription
    ) -> Iterator[Point]:
        for metric, value in values:
            name = telemetry_name(metric)
            if value != value or not subscription.selects(name):  # noqa: PLR0124 - tests for NaN
                continue
            # The broker knows the client's id; it is the first tag.
            tags = tuple((tag.replace("-", "_"), text) for tag, text in metric.tags[1:])
            shown = value
            # Noted as pushed before the broker has answered: 1. A push says that 10 records were
            # sent. 2. The broker counts them, and its answer is lost. 3. If the next push said 10
            # again, they would count twice. So the part of a push that fails is lost.
            if metric.is_total and subscription.is_delta:
                shown, self._last[metric] = value - self._last.get(metric, 0), value
            yield Point(
                name,
                tags,
                shown,
                is_sum=metric.is_total,
                is_monotonic=metric.is_total,
                is_delta=metric.is_total and subscription.is_delta,
            )
