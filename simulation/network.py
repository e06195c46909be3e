"""Network: connections between simulated machines, ordered and whole as TCP's are, or broken.

What a connection carries comes in order and once, cut into pieces at random, as late as a link is
slow; a link that is cut keeps it back until it is healed (TCP sends again), so neither side hears
of it. Links have a direction. A machine that is down, or behind a cut, answers no SYN; one that is
up refuses where nobody listens, and resets what belongs to a process that is gone.
A receiver that does not read fills its window, then the sender's buffer, and `pause_writing` is
heard: so back-pressure is real.
"""

from __future__ import annotations

import asyncio
import contextvars
import errno
import os
import zlib
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

from simulation.connection import End, Listening
from simulation.process import CURRENT, Machine, Process

if TYPE_CHECKING:
    from simulation.loop import SimulatedLoop

WHOLE_SHARE = 0.8
"""Of all writes arrive in one piece."""
SYN_RETRIES_S = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0)
"""How long a SYN that nobody has answered is waited for before the next one, as Linux does it."""
FIRST_PORT = 40_000
Link: TypeAlias = tuple[str, str]
"""From a machine to another, by name."""
ProtocolFactory: TypeAlias = Callable[[], asyncio.BaseProtocol]


class Network:
    """All machines and what is between them."""

    def __init__(self, loop: SimulatedLoop, *, latencies_s: tuple[float, ...]) -> None:
        """`latencies_s` are what a piece may take; one of them is chosen for each, and varied."""
        loop.network = self
        self.machines: dict[str, Machine] = {}
        self.cut: set[Link] = set()
        self.slow_s: dict[Link, float] = {}
        """What is added to each piece on a link."""
        self.pieces = 0
        """So many have arrived."""
        self.loop = loop
        self._latencies_s = latencies_s
        self._listening: dict[tuple[str, int], Listening] = {}
        self._ends: list[End] = []
        self._held: list[tuple[End, bytes | None]] = []
        self._ports = FIRST_PORT

    def machine(self, name: str) -> Machine:
        """One more machine."""
        made = self.machines[name] = Machine(self.loop, name)
        return made

    # ---- what goes wrong ----

    def block(self, *links: Link) -> None:
        """Nothing passes these any more."""
        self.cut.update(links)
        self.loop.tell("cut", *sorted(links))

    def heal(self, *links: Link) -> None:
        """They carry again, what was held back included; without any, all do."""
        self.cut.difference_update(links or tuple(self.cut))
        self.loop.tell("heal", *sorted(links))
        held, self._held = self._held, []
        for end, piece in held:
            self._carry(end, piece)

    def reset(self, one: str, other: str) -> int:
        """Break the connections between two machines, as a firewall does; so many there were."""
        broken = [
            end for end in self._ends if end.is_open and (end.here, end.there) == (one, other)
        ]
        for end in broken:
            self.loop.tell("reset", one, other)
            end.break_off()
            end.peer.break_off()
        return len(broken)

    def process_gone(self, process: Process, *, silent: bool) -> None:
        """Its sockets close: the kernel tells the peers, unless it is gone too (`silent`)."""
        for key, listening in list(self._listening.items()):
            if listening.process is process:
                del self._listening[key]
        for end in self._ends:
            if end.process is process and end.is_open:
                end.vanish()
                if not silent:
                    self._say_goodbye(end)
        self._ends = [end for end in self._ends if not end.is_over]

    # ---- asyncio's two ways in ----

    def listen(self, factory: ProtocolFactory, port: int) -> Listening:
        """As `create_server`: at a port of the machine whose turn it is."""
        process = _current()
        if not port:
            self._ports += 1
            port = self._ports
        key = (process.machine.name, port)
        if key in self._listening:
            raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))
        made = Listening(self, key, factory, process, contextvars.copy_context())
        self._listening[key] = made
        return made

    def forget(self, key: tuple[str, int]) -> None:
        """Nobody listens there any more."""
        self._listening.pop(key, None)

    async def connect(
        self, factory: ProtocolFactory, host: str, port: int
    ) -> tuple[End, asyncio.BaseProtocol]:
        """As `create_connection`."""
        here = _current().machine.name
        for patience_s in SYN_RETRIES_S:
            if not self._is_reachable(here, host):
                await asyncio.sleep(patience_s)
                continue
            await asyncio.sleep(self._latency_s(here, host) + self._latency_s(host, here))
            if not self._is_reachable(here, host):
                continue
            listening = self._listening.get((host, port))
            if listening is None:
                raise ConnectionRefusedError(errno.ECONNREFUSED, os.strerror(errno.ECONNREFUSED))
            return self._joined(factory, listening, here)
        raise TimeoutError(errno.ETIMEDOUT, os.strerror(errno.ETIMEDOUT))

    def _joined(
        self, factory: ProtocolFactory, listening: Listening, here: str
    ) -> tuple[End, asyncio.BaseProtocol]:
        self._ports += 1
        there, port = listening.key
        mine = End(self, (here, self._ports), (there, port), _current())
        other = End(self, (there, port), (here, self._ports), listening.process)
        mine.peer, other.peer = other, mine
        self._ends += [mine, other]
        self.loop.tell("connect", here, there, port)
        protocol = factory()
        mine.open(protocol, contextvars.copy_context())
        self.loop.call_soon(_accept, other, listening, context=listening.context.copy())
        return mine, protocol

    # ---- pieces on their way ----

    def ship(self, end: End, piece: bytes | None) -> None:
        """Send a piece on its way, after all that were sent before; None is the end (FIN)."""
        now_s = self.loop.time()
        end.last_s = max(end.last_s + 1e-6, now_s + self._latency_s(end.here, end.there))
        # The kernels carry it, whatever becomes of the process: no turn of anybody's.
        context = contextvars.Context()
        self.loop.call_at(end.last_s, self._carry, end, piece, context=context)

    def forget_held(self, end: End) -> None:
        """What an end has sent does not come any more."""
        self._held = [each for each in self._held if each[0] is not end]

    def split(self, size_bytes: int) -> int:
        """Of so many bytes these come with one piece."""
        chance = self.loop.chance
        return size_bytes if chance.random() < WHOLE_SHARE else chance.randint(1, size_bytes)

    def _carry(self, end: End, piece: bytes | None) -> None:
        there = self.machines[end.there]
        if (end.here, end.there) in self.cut or not there.up:
            self._held.append((end, piece))
            return
        peer = end.peer
        if end.is_broken or (piece is None and not peer.is_open):
            return
        if not peer.is_open:
            # Closed, or the process is gone, perhaps with all its machine knew: RST.
            self.loop.call_later(
                self._latency_s(end.there, end.here), end.break_off, context=contextvars.Context()
            )
            return
        self.pieces += 1
        digest = "end" if piece is None else f"{len(piece)} {zlib.crc32(piece):08x}"
        self.loop.tell(f"{end.here}>{end.there}", digest)
        peer.receive(piece)

    def _say_goodbye(self, end: End) -> None:
        if self.loop.chance.random() < 0.5:
            self.ship(end, None)
            return
        # With unread bytes, or linger 0: what is under way is lost as well.
        self.forget_held(end)
        delay_s = self._latency_s(end.here, end.there)
        self.loop.call_later(delay_s, end.peer.break_off, context=contextvars.Context())

    def _is_reachable(self, here: str, there: str) -> bool:
        machine = self.machines.get(there)
        if machine is None:
            raise OSError(errno.EHOSTUNREACH, os.strerror(errno.EHOSTUNREACH))
        return machine.up and (here, there) not in self.cut and (there, here) not in self.cut

    def _latency_s(self, here: str, there: str) -> float:
        chance = self.loop.chance
        base_s = chance.choice(self._latencies_s) * (0.5 + chance.random())
        return base_s + self.slow_s.get((here, there), 0.0)


def _accept(end: End, listening: Listening) -> None:
    end.open(listening.factory(), contextvars.copy_context())


def _current() -> Process:
    process = CURRENT.get()
    if process is None:
        raise RuntimeError("the network is for programs on machines: use Machine.start")
    return process
