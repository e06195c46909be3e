"""TelemetryRequests: GetTelemetrySubscriptions and PushTelemetry (KIP-714).

What a client may do is decided in `telemetry/client_instances`; here its pushes are decompressed
and decoded within `telemetry.max.bytes`, and shown at `/metrics` by `telemetry/client_series`.
After INVALID_RECORD, Kafka's clients push no more; after TELEMETRY_TOO_LARGE, they try again.

Rule of this module: pushes are read in short steps, one push after the other, between which the
event loop serves others: a hostile push of a mebibyte takes a tenth of a second of CPU.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Generator, Iterator
from functools import partial
from typing import TYPE_CHECKING, Final

from streamlog import repeated
from streamlog.broker.config.resources import CLIENT_METRICS_RESOURCE
from streamlog.broker.future_responses import Spawn, answer_by_task
from streamlog.broker.handlers import Handlers, entry
from streamlog.broker.telemetry.client_instances import (
    COMPRESSIONS,
    RESERVED_IDS,
    ClientInstance,
    ClientInstances,
    Push,
)
from streamlog.broker.telemetry.client_series import CLIENT_LABELS, RESOURCE_LABELS, ClientSeries
from streamlog.broker.telemetry.subscriptions import Subscriptions, TelemetryClient
from streamlog.errors import CorruptData, DecompressedTooLarge
from streamlog.metrics.otlp import TEXT_CHARS_MAX, decode_steps
from streamlog.metrics.registry import SERIES_MAX, Kind, Metric, number
from streamlog.protocol.error_codes import ErrorCode
from streamlog.protocol.messages.telemetry import (
    GetTelemetrySubscriptionsRequest,
    GetTelemetrySubscriptionsResponse,
    PushTelemetryRequest,
    PushTelemetryResponse,
)
from streamlog.protocol.schema import ZERO_UUID, id_text
from streamlog.records.compression import Compression, decompress

if TYPE_CHECKING:
    from streamlog.broker.quorum.metadata.cluster_metadata import ClusterMetadata
    from streamlog.broker.security.principals import RequestContext
    from streamlog.broker.storage.log_directory import LogDirectory
    from streamlog.clock import Clock

PREFIX: Final = "kafka_server_client_metrics_"
UNKNOWN: Final = "unknown"
"""Name and version of a library that has told neither, as in Kafka."""
ID_BYTES: Final = 16
WAITING_MAX: Final = 8
"""The pushes that are read or wait for their turn; further ones are throttled. Responses keep the
order of requests, so what a producer sends after its push waits, too: for a second at most."""

_log = repeated.logger(__name__)


class TelemetryRequests:
    """Answers the requests, and describes what clients have pushed."""

    def __init__(
        self, directory: LogDirectory, metadata: ClusterMetadata, clock: Clock, *, spawn: Spawn
    ) -> None:
        """`spawn` runs a task until the broker stops."""
        self._spawn = spawn
        self._turn = asyncio.Lock()
        """Held by the push that is read."""
        self._waiting = 0
        """The pushes that are read or wait for their turn."""
        self._directory = directory
        self._metadata = metadata
        self._clock = clock
        registry = directory.metrics
        self._series = ClientSeries(registry)
        self._instances = ClientInstances(self._on_forgotten)
        self._settings: dict[str, dict[str, str]] = {}
        self._subscriptions = Subscriptions()
        self._throttled = registry.counter(
            PREFIX + "throttle_total",
            "Requests of clients before their interval was over, or while many pushes waited.",
        )
        self._unknown = registry.counter(
            PREFIX + "unknown_subscription_request_total", "Pushes for other subscriptions."
        )
        self._taken = registry.counter(PREFIX + "plugin_export_total", "Pushes taken over.")
        self._unreadable = registry.counter(
            PREFIX + "plugin_error_total", "Pushes that were malformed or too large."
        )
        registry.collect(self._describe)

    def handlers(self) -> Handlers:
        """Return the handler of each request type."""
        return dict(
            [
                entry(GetTelemetrySubscriptionsRequest, self.subscriptions),
                entry(PushTelemetryRequest, self.push),
            ]
        )

    def subscriptions(
        self, request: GetTelemetrySubscriptionsRequest, at: RequestContext
    ) -> GetTelemetrySubscriptionsResponse:
        """Tell a client which metrics to push."""
        instance_id = request.client_instance_id
        if instance_id == ZERO_UUID:
            instance_id = secrets.token_bytes(ID_BYTES)
        instance = self._instance(instance_id, at)
        code = instance.ask(self._clock.now_ms())
        if code:
            self._throttled.add()
            return GetTelemetrySubscriptionsResponse(error_code=code)
        subscribed = instance.subscribed
        return GetTelemetrySubscriptionsResponse(
            client_instance_id=instance_id,
            subscription_id=subscribed.subscription_id,
            accepted_compression_types=[int(each) for each in COMPRESSIONS],
            push_interval_ms=subscribed.interval_ms,
            telemetry_max_bytes=self._bytes_max,
            delta_temporality=True,
            requested_metrics=[*subscribed.metrics],
        )

    def push(
        self, request: PushTelemetryRequest, at: RequestContext
    ) -> PushTelemetryResponse | asyncio.Future[PushTelemetryResponse]:
        """Take over the metrics of a client; a large push, in steps of a task."""
        if request.client_instance_id in RESERVED_IDS:
            return PushTelemetryResponse(error_code=ErrorCode.INVALID_REQUEST)
        instance = self._instance(request.client_instance_id, at)
        push = Push(
            subscription_id=request.subscription_id,
            compression=request.compression_type,
            size_bytes=len(request.metrics),
            size_bytes_max=self._bytes_max,
            is_terminating=request.terminating,
        )
        code = instance.push(push, self._clock.now_ms())
        if not code and self._waiting >= WAITING_MAX:
            code = instance.last_error = ErrorCode.THROTTLING_QUOTA_EXCEEDED
        if code is ErrorCode.THROTTLING_QUOTA_EXCEEDED:
            self._throttled.add()
        elif code is ErrorCode.UNKNOWN_SUBSCRIPTION_ID:
            self._unknown.add()
        # A client that was asked for nothing is not read either: unless an operator subscribes to
        # metrics, a hostile push costs a broker no decoding.
        elif not code and len(request.metrics) and instance.subscribed.metrics:
            return self._read_by_steps(self._read(instance, request))
        return PushTelemetryResponse(error_code=code)

    @property
    def _bytes_max(self) -> int:
        return self._directory.config.connections.telemetry_bytes_max

    def _read_by_steps(
        self, steps: Generator[None, None, ErrorCode]
    ) -> PushTelemetryResponse | asyncio.Future[PushTelemetryResponse]:
        # A small push ends with its first step, and costs no task. A push that has to wait is not
        # even decompressed before its turn: what waits is only what clients have sent.
        if not self._waiting:
            try:
                next(steps)
            except StopIteration as end:
                return PushTelemetryResponse(error_code=end.value)
        self._waiting += 1
        return answer_by_task(self._spawn, partial(self._finish, steps))

    async def _finish(
        self, steps: Generator[None, None, ErrorCode], answer: asyncio.Future[PushTelemetryResponse]
    ) -> PushTelemetryResponse:
        code = ErrorCode.NONE
        try:
            async with self._turn:
                # A client that has disconnected is not read to the end.
                while not answer.done():
                    next(steps)
                    await asyncio.sleep(0)
        except StopIteration as end:
            code = end.value
        finally:
            self._waiting -= 1
        return PushTelemetryResponse(error_code=code)

    def _read(
        self, instance: ClientInstance, request: PushTelemetryRequest
    ) -> Generator[None, None, ErrorCode]:
        """Read a push in short steps; returns its error."""
        code = instance.last_error = yield from self._decode(instance, request)
        return code

    def _decode(
        self, instance: ClientInstance, request: PushTelemetryRequest
    ) -> Generator[None, None, ErrorCode]:
        client = instance.client
        codec = Compression(request.compression_type)
        try:
            data = decompress(codec, request.metrics, size_bytes_max=self._bytes_max)
            found = yield from decode_steps(data)
        except DecompressedTooLarge as error:
            return self._refuse(client, error, ErrorCode.TELEMETRY_TOO_LARGE)
        except CorruptData as error:
            return self._refuse(client, error, ErrorCode.INVALID_RECORD)
        name = id_text(client.instance_id)
        if client.instance_id in self._instances:  # It may be forgotten by now.
            yield from self._series.take(name, client.client_id, found, instance.subscribed)
        self._taken.add()
        return ErrorCode.NONE

    def _refuse(self, client: TelemetryClient, error: CorruptData, code: ErrorCode) -> ErrorCode:
        self._unreadable.add()
        _log.warning(
            "refused metrics of client %r at %s: %s", client.client_id, client.address, error
        )
        return code

    def _instance(self, instance_id: bytes, at: RequestContext) -> ClientInstance:
        software_name, software_version = at.software
        client = TelemetryClient(
            instance_id,
            client_id=(at.client_id or "")[:TEXT_CHARS_MAX],
            software_name=software_name or UNKNOWN,
            software_version=software_version or UNKNOWN,
            address=at.client_host.removeprefix("/"),
            port=at.client_port,
        )
        return self._instances.find(client, self._now_subscribed(), self._clock.now_ms())

    def _now_subscribed(self) -> Subscriptions:
        """Return the subscriptions; another object only if they have changed."""
        metadata = self._metadata
        settings = {
            name: dict(metadata.config(CLIENT_METRICS_RESOURCE, name))
            for name in metadata.configured(CLIENT_METRICS_RESOURCE)
        }
        if settings != self._settings:
            self._settings, self._subscriptions = settings, Subscriptions.read(settings)
        return self._subscriptions

    def _on_forgotten(self, instance: ClientInstance) -> None:
        self._series.forget(id_text(instance.client.instance_id))

    def _describe(self) -> Iterator[Metric]:
        self._instances.expire(self._clock.now_ms())
        yield number(PREFIX + "instance_count", "Clients known.", len(self._instances))
        shown = [*self._instances][-SERIES_MAX:]
        yield Metric(
            "streamlog_client_info",
            "Clients that ask for subscriptions or push metrics (KIP-714), and their libraries.",
            Kind.GAUGE,
            (
                *CLIENT_LABELS,
                "client_software_name",
                "client_software_version",
                "client_source_address",
                *RESOURCE_LABELS,
            ),
            [(self._info(each.client), 1) for each in shown],
        )
        yield from self._series.describe()

    def _info(self, client: TelemetryClient) -> tuple[str, ...]:
        name = id_text(client.instance_id)
        resource = self._series.resource(name)
        return (
            client.client_id,
            name,
            client.software_name,
            client.software_version,
            client.address,
            *(resource.get(each, "") for each in RESOURCE_LABELS),
        )
