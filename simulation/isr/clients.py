"""Producers and consumers of the partition: they retry for ever, as real ones are set up to."""

from __future__ import annotations

from typing import TYPE_CHECKING

from simulation.isr.messages import Message, Produce, Produced, Read, ReadAnswer
from streamlog.protocol.error_codes import ErrorCode

if TYPE_CHECKING:
    from simulation.isr.world import World

REQUEST_TIMEOUT_MS = 300
BACKOFF_MS = 30
POLL_MS = 150


class SimulatedProducer:
    """An idempotent producer with one record in flight."""

    def __init__(self, world: World, client: int) -> None:
        self.sequence = 0
        self.done = False
        self._world = world
        self._client = client
        self._request = 0
        self._target = 0

    def go(self) -> None:
        """Send the record that is due."""
        if self._world.healed and self.sequence >= self._world.goal:
            self.done = True
            return
        self._request += 1
        request = self._request
        produce = Produce(self._client, request, self._client, self.sequence)
        self._world.send_from_client(self._client, self._target, produce)
        self._world.at(REQUEST_TIMEOUT_MS, lambda: self._on_timeout(request))

    def on(self, message: Message) -> None:
        """An answer."""
        if not isinstance(message, Produced) or message.request != self._request:
            return
        self._request += 1
        if message.code == ErrorCode.DUPLICATE_SEQUENCE_NUMBER:
            self._world.checker.violate("P10", "a producer's record was acknowledged and forgotten")
        if message.code == ErrorCode.NONE:
            self.sequence += 1
            self._world.count("acknowledged")
            self._world.at(self._world.chance.randint(0, 20), self.go)
            return
        self._target = self._world.any_broker()
        self._world.at(BACKOFF_MS, self.go)

    def _on_timeout(self, request: int) -> None:
        if request == self._request:
            self._target = self._world.any_broker()
            self.go()


class SimulatedConsumer:
    """Reads everything that is committed, from whoever says it leads."""

    def __init__(self, world: World, client: int) -> None:
        self._world = world
        self._client = client
        self._position = 0
        self._epoch = -1
        self._request = 0

    def go(self) -> None:
        """Ask anybody."""
        self._request += 1
        read = Read(self._client, self._request, self._position, self._epoch)
        self._world.send_from_client(self._client, self._world.any_broker(), read)
        self._world.at(POLL_MS, self.go)

    def on(self, message: Message) -> None:
        """Records."""
        if not isinstance(message, ReadAnswer) or message.request != self._request:
            return
        checker = self._world.checker
        self._request += 1  # An answer that comes twice counts once.
        self._epoch = message.leader_epoch
        if message.out_of_range:
            if self._position >= message.log_start:
                checker.violate("P12", f"position {self._position} is out of range")
            self._position = message.log_start
            return
        checker.on_read(message.start, message.entries, message.log_start)
        self._position += len(message.entries)
