"""TelemetryReporter: asks a broker which metrics it wants, and pushes them (KIP-714).

The shell of `telemetry_machine`. `run` is a task of a client. What goes wrong here never disturbs
the client: errors are logged at debug level, and the machine decides when the next request is due.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from streamlog import repeated
from streamlog.client.cluster import Cluster
from streamlog.client.metrics.client_metrics import ClientMetrics
from streamlog.client.telemetry.telemetry_machine import (
    AskSubscription,
    PushMetrics,
    TelemetryMachine,
    TelemetryPoints,
    TelemetrySubscription,
    WaitToReport,
)
from streamlog.errors import StreamlogError, UnsupportedVersion
from streamlog.metrics.otlp import Attributes
from streamlog.metrics.otlp_encoder import ReportTimes, encode_metrics
from streamlog.protocol.messages.telemetry import (
    GetTelemetrySubscriptionsResponse,
    PushTelemetryRequest,
    PushTelemetryResponse,
)
from streamlog.random_source import Random
from streamlog.records.compression import compress

LAST_PUSH_TIMEOUT_MS: Final = 500
"""How long a client that closes waits for its last push."""
NS_PER_MS: Final = 1_000_000

log = repeated.logger(__name__)


class TelemetryReporter:
    """Reports the metrics of one client."""

    def __init__(
        self,
        cluster: Cluster,
        read: Callable[[], ClientMetrics],
        resource: Callable[[], Attributes],
    ) -> None:
        """Report what `read` returns; `resource` returns what describes the client (KIP-714)."""
        self._cluster = cluster
        self._read = read
        self._resource = resource
        self._machine = TelemetryMachine(cluster.clock.now_ms(), Random(None))
        self._points = TelemetryPoints()
        self._since_ms = cluster.clock.wall_ms()

    async def run(self) -> None:
        """Ask and push until cancelled, or until a broker says that it wants nothing ever."""
        clock, machine = self._cluster.clock, self._machine
        while not machine.is_over:
            now_ms = clock.now_ms()
            action = machine.next(now_ms)
            if isinstance(action, WaitToReport):
                if action.until_ms is None:
                    return
                await asyncio.sleep((action.until_ms - now_ms) / 1000)
                continue
            try:
                await self._carry_out(action)
            except UnsupportedVersion as error:
                log.debug("no metrics are pushed: %s", error)
                machine.end()
            except StreamlogError as error:
                log.debug("metrics can't be pushed now: %s", error)
                machine.on_unreachable(clock.now_ms())

    async def close(self) -> None:
        """Push for the last time, if a broker has asked for metrics."""
        # Ended first: a broker answers INVALID_REQUEST to any push after one that says
        # `terminating`.
        subscription = self._machine.end()
        if subscription is None:
            return
        try:
            async with asyncio.timeout(LAST_PUSH_TIMEOUT_MS / 1000):
                await self._push(subscription, is_last=True)
        except (StreamlogError, TimeoutError) as error:
            log.debug("the last metrics were not pushed: %s", error)

    async def _carry_out(self, action: AskSubscription | PushMetrics) -> None:
        clock = self._cluster.clock
        match action:
            case AskSubscription(request):
                answer = await self._cluster.call_any(request, GetTelemetrySubscriptionsResponse)
                self._machine.on_subscription(answer, clock.now_ms())
            case PushMetrics(subscription):
                code = await self._push(subscription, is_last=False)
                self._machine.on_pushed(code, clock.now_ms())

    async def _push(self, subscription: TelemetrySubscription, *, is_last: bool) -> int:
        """Push the metrics; return the broker's error code."""
        # OTLP counts from 1970, so this is wall time; `run` waits by the monotonic clock.
        now_ms = self._cluster.clock.wall_ms()
        points = self._points.of(self._read(), subscription)
        times = ReportTimes(self._since_ms * NS_PER_MS, now_ms * NS_PER_MS)
        data = encode_metrics(points, self._resource(), times)
        # A delta covers the time from push to push. A cumulative sum begins with the client for
        # ever.
        if subscription.is_delta:
            self._since_ms = now_ms
        request = PushTelemetryRequest(
            client_instance_id=subscription.instance_id,
            subscription_id=subscription.subscription_id,
            terminating=is_last,
            compression_type=int(subscription.codec),
            metrics=bytes(compress(subscription.codec, data)),
        )
        answer = await self._cluster.call_any(request, PushTelemetryResponse)
        return answer.error_code
