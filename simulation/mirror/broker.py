"""SiteBroker: a broker of one of the two clusters: its registration, its disks, its replicas."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from simulation.isr.disk import Disk
from simulation.mirror.site_replica import SiteReplica
from streamlog.protocol.messages.broker_registration import (
    BrokerHeartbeatRequest,
    BrokerHeartbeatResponse,
    BrokerRegistrationRequest,
    BrokerRegistrationResponse,
    Feature,
    RegisteredListener,
)

if TYPE_CHECKING:
    from simulation.mirror.site import News, Place, Site
    from simulation.mirror.world import TwoClusters
    from streamlog.protocol.schema import Message

HEARTBEAT_MS = 120
TICK_MS = (15, 45)


class SiteBroker:
    """One broker, over all its lives."""

    def __init__(self, world: TwoClusters, site: Site, broker_id: int) -> None:
        self.world = world
        self.site = site
        self.id = broker_id
        self.address = f"{site.name}{broker_id}"
        self.disks: dict[Place, Disk] = {}
        self.replicas: dict[Place, SiteReplica] = {}
        self.is_up = False
        self.incarnation = 0
        self.epoch = -1
        self.copied: frozenset[bytes] = frozenset()
        self.alive: dict[int, int] = {}
        self._applied = -1
        self._clean_epoch = -1

    def start(self) -> None:
        """Begin a life with what the disks have."""
        self.is_up = True
        self.incarnation += 1
        self.epoch, self._applied = -1, -1
        self.alive, self.replicas = {}, {}
        self.copied = frozenset()
        self.after(1, self._beat)
        self.after(5, self._tick)

    def stop(self, *, power_cut: bool, is_clean: bool) -> None:
        """End this life; without its clean end, what was not synced may be gone."""
        self.is_up = False
        self._clean_epoch = self.epoch if is_clean else -1
        for disk in self.disks.values():
            if is_clean:
                disk.sync(disk.end)
            disk.crash(self.world.chance, power_cut=power_cut and not is_clean)

    def after(self, delay_ms: int, happens: Callable[[], None]) -> None:
        """Let something happen later in this life."""
        incarnation = self.incarnation

        def fire() -> None:
            if self.is_up and self.incarnation == incarnation:
                happens()

        self.world.at(delay_ms, fire)

    def delivery_of(self, news: News) -> Callable[[], None]:
        """Return what happens when metadata arrives."""
        return lambda: self._on_news(news) if self.is_up else None

    def _beat(self) -> None:
        request: Message
        if self.epoch < 0:
            request = self._registration()
        else:
            request = BrokerHeartbeatRequest(
                broker_id=self.id, broker_epoch=self.epoch, current_metadata_offset=self._applied
            )
        self.ask(request, self._on_heard)
        self.after(HEARTBEAT_MS, self._beat)

    def ask(self, request: Message, heard: Callable[[Message | None], None]) -> None:
        """Ask the controller; an answer that comes in another life is not heard."""
        world, site, incarnation = self.world, self.site, self.incarnation

        def answer(response: Message | None) -> None:
            if self.is_up and self.incarnation == incarnation:
                heard(response)

        def arrive() -> None:
            response = site.ask(request)
            world.carry(site.controller, self.address, lambda: answer(response))

        world.carry(self.address, site.controller, arrive)

    def _registration(self) -> BrokerRegistrationRequest:
        return BrokerRegistrationRequest(
            broker_id=self.id,
            cluster_id=self.site.name,
            incarnation_id=bytes([self.id + 1, *self.incarnation.to_bytes(4, "big"), *bytes(11)]),
            listeners=[RegisteredListener(name="PLAINTEXT", host=self.address, port=9092)],
            features=[Feature(name="transaction.version", max_supported_version=2)],
            log_dirs=[bytes([self.id + 1] * 16)],
            previous_broker_epoch=self._clean_epoch,
        )

    def _on_heard(self, response: Message | None) -> None:
        if isinstance(response, BrokerRegistrationResponse):
            if not response.error_code and response.broker_epoch != self.epoch:
                self.epoch = response.broker_epoch
                for replica in self.replicas.values():
                    replica.on_registered(self.epoch)
                # What is known by now may be older than the registration.
                self._applied = -1
                self._on_news(self.site.news())
        elif isinstance(response, BrokerHeartbeatResponse):
            if response.error_code:
                self.epoch = -1
            elif self._applied < self.site.metadata.offset:
                self._on_news(self.site.news())

    def _on_news(self, news: News) -> None:
        if news.offset <= self._applied or self.epoch < 0:
            return
        self._applied = news.offset
        self.alive.clear()
        self.alive.update(news.alive)
        self.copied = news.copied
        for place in [*self.disks]:
            if place not in news.states:
                self.replicas.pop(place, None)
                del self.disks[place]
        for place, state in news.states.items():
            if self.id in state.replicas:
                replica = self.replicas.get(place)
                if replica is None:
                    disk = self.disks.setdefault(place, Disk())
                    replica = self.replicas[place] = SiteReplica(self, place, disk)
                    replica.on_registered(self.epoch)
                replica.on_state(state, news.offset)

    def _tick(self) -> None:
        for replica in [*self.replicas.values()]:
            replica.tick()
        self.after(self.world.chance.randint(*TICK_MS), self._tick)
