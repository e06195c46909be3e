"""Client instances: the clients that ask for subscriptions or push metrics, and when they may.

The rules are Kafka's (KIP-714):

- A client asks, waits for a part of the interval, and pushes; then it pushes once in an interval.
  What comes earlier is throttled, except the first push after an answer, the last push of a client
  that closes, and a question after an error that only a new answer can mend.
- After changed subscriptions a client may ask at once, and its next push is refused until it did.
- A client that is silent for `SILENT_INTERVALS` intervals is forgotten, and so is the one that is
  silent for longest when there are `INSTANCES_MAX`.

Rule of this module: time is passed in.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final

import msgspec

from streamlog.broker.telemetry.subscriptions import Subscribed, Subscriptions, TelemetryClient
from streamlog.protocol.error_codes import ErrorCode
from streamlog.protocol.schema import ZERO_UUID
from streamlog.records.compression import Compression

INSTANCES_MAX: Final = 16_384
"""The most clients that are remembered."""
SILENT_INTERVALS: Final = 3
LOOK_INTERVAL_MS: Final = 1_000
"""The interval between two searches for silent clients; a search looks at all clients."""
SILENT_MIN_MS: Final = 60_000
"""The shortest time after which a silent client is forgotten."""
COMPRESSIONS: Final = (Compression.ZSTD, Compression.LZ4, Compression.GZIP, Compression.SNAPPY)
"""The codecs of pushes, the preferred one first; none is accepted as well."""
ONE_UUID: Final = ZERO_UUID[:-1] + b"\x01"
RESERVED_IDS: Final = (ZERO_UUID, ONE_UUID)
"""Ids that no client has: they have a meaning of their own in Kafka."""
_MENDED_BY_ANSWER: Final = (
    ErrorCode.UNKNOWN_SUBSCRIPTION_ID,
    ErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
)


@dataclass(slots=True)
class ClientInstance:
    """One client, and its last requests."""

    client: TelemetryClient
    subscriptions: Subscriptions
    """Those that `subscribed` comes from."""
    subscribed: Subscribed
    asked_ms: int | None = None
    """When it was last given its subscriptions."""
    pushed_ms: int | None = None
    """When its last push was taken or refused for another reason than its time."""
    may_push_soon: bool = False
    """Whether it has been given its subscriptions since its last push."""
    forgotten_at_ms: int = 0
    last_error: ErrorCode = ErrorCode.NONE
    is_terminating: bool = False
    """Whether it has sent its last push."""

    def ask(self, now_ms: int) -> ErrorCode:
        """Note that the client asks for its subscriptions; return NONE if it gets them now."""
        known_ms = [each for each in (self.asked_ms, self.pushed_ms) if each is not None]
        is_early = bool(known_ms) and now_ms - max(known_ms) < self.subscribed.interval_ms
        # 1. The subscriptions change. 2. A push for the old ones is refused, and yet counts as the
        # push of this interval. 3. The client asks at once, and is early by that push. So the error
        # lets the question pass, once: the answer clears it.
        if is_early and self.last_error not in _MENDED_BY_ANSWER:
            return ErrorCode.THROTTLING_QUOTA_EXCEEDED
        self.asked_ms = now_ms
        self.may_push_soon = True
        self.last_error = ErrorCode.NONE
        return ErrorCode.NONE

    def push(self, push: Push, now_ms: int) -> ErrorCode:
        """Note a push; return NONE if its metrics may be read."""
        code = self._refusal(push, now_ms)
        self.last_error = code
        self.is_terminating = self.is_terminating or push.is_terminating
        return code

    def _refusal(self, push: Push, now_ms: int) -> ErrorCode:
        if self.is_terminating:
            return ErrorCode.INVALID_REQUEST
        # A client closes when it likes, so its last push is never early; a second one was refused
        # above.
        if self._is_early(now_ms) and not push.is_terminating:
            return ErrorCode.THROTTLING_QUOTA_EXCEEDED
        # Before the checks: what they refuse has cost its bytes on the network, and a client that
        # only sends such pushes must be throttled as well.
        self.pushed_ms = now_ms
        self.may_push_soon = False
        if push.subscription_id != self.subscribed.subscription_id:
            return ErrorCode.UNKNOWN_SUBSCRIPTION_ID
        if push.compression not in (Compression.NONE, *COMPRESSIONS):
            return ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
        if push.size_bytes > push.size_bytes_max:
            return ErrorCode.TELEMETRY_TOO_LARGE
        return ErrorCode.NONE

    def _is_early(self, now_ms: int) -> bool:
        # Clients spread their first push after an answer over half to one and a half intervals.
        if self.pushed_ms is None or self.may_push_soon:
            return False
        return now_ms - self.pushed_ms < self.subscribed.interval_ms


class Push(msgspec.Struct, frozen=True):
    """What decides on a push, apart from its metrics."""

    subscription_id: int
    compression: int
    size_bytes: int
    size_bytes_max: int
    is_terminating: bool = False


@dataclass(slots=True)
class ClientInstances:
    """The clients of one broker, the one that was silent for longest first."""

    on_forgotten: Callable[[ClientInstance], None]
    """Called for each client that is forgotten."""
    instances_max: int = INSTANCES_MAX
    _known: dict[bytes, ClientInstance] = field(default_factory=dict)
    _looked_ms: int | None = None
    """When silent clients were last looked for."""

    def __len__(self) -> int:
        return len(self._known)

    def __contains__(self, instance_id: bytes) -> bool:
        return instance_id in self._known

    def find(
        self, client: TelemetryClient, subscriptions: Subscriptions, now_ms: int
    ) -> ClientInstance:
        """Return the instance of a client that sends a request now."""
        self.expire(now_ms)
        # Taken out and put back: a dict keeps the order of insertion, so the first key is that of
        # the client that was silent for longest.
        found = self._known.pop(client.instance_id, None)
        if found is None:
            subscribed = subscriptions.of(client)
            found = ClientInstance(client, subscriptions, subscribed)
        elif found.subscriptions is not subscriptions:
            # Another client may not take the id, and with it the name, of this one.
            subscribed = subscriptions.of(found.client)
            found = ClientInstance(found.client, subscriptions, subscribed)
        # Counted without this client, so one that is known already drives out no other.
        if len(self._known) >= self.instances_max:
            self._forget(next(iter(self._known)))
        silence_ms = max(SILENT_INTERVALS * found.subscribed.interval_ms, SILENT_MIN_MS)
        found.forgotten_at_ms = now_ms + silence_ms
        self._known[client.instance_id] = found
        return found

    def expire(self, now_ms: int) -> None:
        """Forget the clients that have been silent for too long."""
        if self._looked_ms is not None and now_ms - self._looked_ms < LOOK_INTERVAL_MS:
            return
        self._looked_ms = now_ms
        gone = [key for key, each in self._known.items() if now_ms >= each.forgotten_at_ms]
        for key in gone:
            self._forget(key)

    def __iter__(self) -> Iterator[ClientInstance]:
        return iter([*self._known.values()])

    def _forget(self, instance_id: bytes) -> None:
        self.on_forgotten(self._known.pop(instance_id))
