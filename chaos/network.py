"""Network: where brokers are, and what comes between them.

With namespaces (`world`) each broker has one of its own on a bridge, and its clients are on the
bridge itself. Packets are lost in silence, as in a real network: what is to be lost is routed to an
address that nobody has. On plain loopback nothing can be broken.
"""

from __future__ import annotations

import socket
import subprocess
from collections.abc import Sequence
from typing import Final, Protocol

PORT: Final = 9092
BRIDGE: Final = "br0"
SUBNET: Final = "10.77.0."
CLIENTS: Final = 254
NOBODY: Final = 250
NOBODY_LINK: Final = "02:00:00:00:00:fa"
LOST_TABLE: Final = "99"
"""Routes to nobody."""
LOST_RULE: Final = "100"
"""The place of our rules among a namespace's."""


class Network(Protocol):
    """Where the brokers 1 to n are."""

    breakable: bool
    """Whether what follows can be done to it."""

    def address(self, node_id: int) -> tuple[str, int]:
        """Where this broker is to listen."""
        ...

    def command(self, node_id: int) -> Sequence[str]:
        """What has to stand before a command that is to run where this broker is."""
        ...

    def isolate(self, node_id: int) -> None:
        """Nobody reaches it and it reaches nobody, clients included."""
        ...

    def part_brokers(self) -> None:
        """No broker reaches another one; clients reach them all."""
        ...

    def lose(self, source: int, target: int, *, requests_only: bool = False) -> None:
        """What one broker sends to another one is lost.

        With `requests_only` the answers to what the other one asks get through: one can't connect,
        the other one can (half open).
        """
        ...

    def heal(self) -> None:
        """All is well again."""
        ...

    def close(self) -> None:
        """Take it down; who is in there is dead."""
        ...


class Loopback:
    """This machine, with free ports."""

    breakable = False

    def __init__(self, brokers: int) -> None:
        taken = [socket.create_server(("127.0.0.1", 0)) for _ in range(brokers)]
        self._ports = [each.getsockname()[1] for each in taken]
        for each in taken:
            each.close()

    def address(self, node_id: int) -> tuple[str, int]:
        """A port that was free a moment ago."""
        return "127.0.0.1", self._ports[node_id - 1]

    def command(self, node_id: int) -> Sequence[str]:
        """Nothing."""
        return ()

    def isolate(self, node_id: int) -> None:
        """It can't be done."""
        raise _unbreakable()

    def part_brokers(self) -> None:
        """It can't be done."""
        raise _unbreakable()

    def lose(self, source: int, target: int, *, requests_only: bool = False) -> None:
        """It can't be done."""
        raise _unbreakable()

    def heal(self) -> None:
        """There is nothing to heal."""

    def close(self) -> None:
        """There is nothing to take down."""


class Bridge:
    """A bridge and a namespace for each broker; inside a world of their own."""

    breakable = True

    def __init__(self, brokers: int) -> None:
        self._nodes = range(1, brokers + 1)
        self._losing: set[int] = set()
        _run("mkdir", "-p", "/run/netns")
        _ip("link", "set", "lo", "up")
        _ip("link", "add", BRIDGE, "type", "bridge")
        _ip("link", "set", BRIDGE, "up")
        _ip("addr", "add", f"{SUBNET}{CLIENTS}/24", "dev", BRIDGE)
        for node_id in self._nodes:
            self._join(node_id)

    def address(self, node_id: int) -> tuple[str, int]:
        """An address of its own."""
        return f"{SUBNET}{node_id}", PORT

    def command(self, node_id: int) -> Sequence[str]:
        """In its namespace."""
        return ("ip", "netns", "exec", f"broker{node_id}")

    def isolate(self, node_id: int) -> None:
        """Its link is down."""
        _ip("link", "set", f"veth{node_id}", "down")

    def part_brokers(self) -> None:
        """Their ports are isolated from each other, and not from the bridge."""
        for node_id in self._nodes:
            _run("bridge", "link", "set", "dev", f"veth{node_id}", "isolated", "on")

    def lose(self, source: int, target: int, *, requests_only: bool = False) -> None:
        """It goes to nobody, and nobody says so."""
        ports = ("ipproto", "tcp", "dport", str(PORT)) if requests_only else ()
        where = ("to", f"{SUBNET}{target}", *ports, "lookup", LOST_TABLE)
        _ip("-n", f"broker{source}", "rule", "add", "pref", LOST_RULE, *where)
        self._losing.add(source)

    def heal(self) -> None:
        """Links up, ports together, rules gone."""
        for node_id in self._nodes:
            _ip("link", "set", f"veth{node_id}", "up")
            _run("bridge", "link", "set", "dev", f"veth{node_id}", "isolated", "off")
        for source in self._losing:
            _ip("-n", f"broker{source}", "rule", "flush", "pref", LOST_RULE)
        self._losing.clear()

    def close(self) -> None:
        """Take it down; who is in there is dead."""
        for node_id in self._nodes:
            # Before its namespace, whose links go some time after it: the name may be taken next.
            _ip("link", "del", f"veth{node_id}")
            _ip("netns", "del", f"broker{node_id}")
        _ip("link", "del", BRIDGE)

    def _join(self, node_id: int) -> None:
        name, inside = f"broker{node_id}", ("-n", f"broker{node_id}")
        _ip("netns", "add", name)
        peer = ("peer", "name", "eth0", "netns", name)
        _ip("link", "add", f"veth{node_id}", "type", "veth", *peer)
        _ip("link", "set", f"veth{node_id}", "master", BRIDGE, "up")
        _ip(*inside, "addr", "add", f"{SUBNET}{node_id}/24", "dev", "eth0")
        _ip(*inside, "link", "set", "eth0", "up")
        _ip(*inside, "link", "set", "lo", "up")
        nobody = f"{SUBNET}{NOBODY}"
        _ip(*inside, "neigh", "add", nobody, "lladdr", NOBODY_LINK, "dev", "eth0")
        _ip(*inside, "route", "add", "default", "via", nobody, "dev", "eth0", "table", LOST_TABLE)


def _unbreakable() -> RuntimeError:
    return RuntimeError("the network of this machine is not ours to break: it takes namespaces")


def _ip(*arguments: str) -> None:
    _run("ip", *arguments)


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip()}")
