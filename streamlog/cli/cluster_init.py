"""`streamlog cluster init`: data directories of a cluster's nodes, with the settings beside them.

For one node, on the machine where it is to run; or for a whole set on this machine, to try a
cluster out. Rule of the file: settings are looked at before anything is written, and what is there
already is left alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from streamlog.broker.config import BrokerConfig
from streamlog.broker.quorum_config import QuorumConfig
from streamlog.cli.broker import LISTEN_DEFAULT, parse_address
from streamlog.cli.terminal import named_values, say
from streamlog.errors import UsageError

VOTERS_USUAL = 3
"""One of them may be lost; with more, each decision waits for more disks."""
NODES_MAX = 100
HEAD = "# Written by `streamlog cluster init`. All settings: docs/configuration.md\n"

DataOption = Annotated[
    Path,
    typer.Option(
        "--data", metavar="DIR", help="The node's directory; with --nodes, that of all nodes'."
    ),
]
NodeOption = Annotated[
    int | None, typer.Option("--node", metavar="ID", help="One node: its node.id.")
]
NodesOption = Annotated[
    int | None, typer.Option("--nodes", metavar="N", help="So many nodes, all on this machine.")
]
ClusterIdOption = Annotated[
    str | None,
    typer.Option(
        "--cluster-id", metavar="ID", help="The same for all nodes; without it a new one."
    ),
]
VotersOption = Annotated[
    str,
    typer.Option(
        "--voters",
        metavar="ID@HOST:PORT,...",
        help="The controllers, the same for all nodes. Without it the node is alone.",
    ),
]
ListenOption = Annotated[
    str | None,
    typer.Option(
        "--listen",
        metavar="HOST:PORT",
        help="Default: what --voters says of the node. With --nodes, of the first one, the others"
        f" count up from its port. Else {LISTEN_DEFAULT}",
    ),
]
SetOption = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="NAME=VALUE", help="More settings; repeatable."),
]
ConfigOption = Annotated[
    Path | None,
    typer.Option("--config", metavar="FILE", help="The settings. Default: DIR.properties"),
]
RejoinOption = Annotated[
    bool,
    typer.Option(
        "--rejoin", help="The node was there before, and its directory is lost: it starts anew."
    ),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Seat:
    """A node that is to be made."""

    number: int
    data: Path
    config: Path
    settings: Mapping[str, str]

    @property
    def listeners(self) -> str:
        """Where it will listen."""
        return self.settings["listeners"].partition("://")[2]


def cluster_init(
    data: DataOption,
    node: NodeOption = None,
    nodes: NodesOption = None,
    *,
    cluster_id: ClusterIdOption = None,
    voters: VotersOption = "",
    listen: ListenOption = None,
    given: SetOption = None,
    config: ConfigOption = None,
    rejoin: RejoinOption = False,
) -> None:
    """Make the data directory and the settings of a cluster's node, or of a whole set of nodes."""
    if (node is None) == (nodes is None):
        raise UsageError("give --node ID for one node, or --nodes N for a set on this machine")
    more = named_values("--set", given or [])
    if nodes is not None:
        if voters or rejoin or config is not None:
            raise UsageError("--nodes makes a new set: --voters, --rejoin, --config are for --node")
        seats = seats_here(data, nodes, listen or LISTEN_DEFAULT, more)
    else:
        seats = [seat(data, node or 0, voters=voters, listen=listen, config=config, more=more)]
    if rejoin and cluster_id is None:
        raise UsageError(
            "--rejoin needs the --cluster-id of the cluster; `cluster status` tells it"
        )
    made = make(seats, cluster_id, rejoins=rejoin)
    say(f"cluster {made}")
    for each in seats:
        say(f"node {each.number}, {each.listeners}: streamlog broker --config {each.config}")
    if node is not None and cluster_id is None and voters:
        say(
            "for each other node, on its machine: streamlog cluster init --node ID --data DIR"
            f" --cluster-id {made} --voters {voters}"
        )


def seats_here(directory: Path, count: int, listen: str, more: Mapping[str, str]) -> list[Seat]:
    """Nodes 1 to `count` on one machine; the first three of them vote, if there are so many.

    Raises:
        UsageError: there can't be so many, or `listen` is no address.
    """
    host, port = parse_address(listen)
    if not 1 <= count <= NODES_MAX or not 0 < port <= 65_535 - count:
        raise UsageError(
            f"--nodes {count} from port {port} on: 1 to {NODES_MAX} nodes, each with a port"
        )
    voting = VOTERS_USUAL if count >= VOTERS_USUAL else 1
    places = {number: f"{host_of(host)}:{port + number - 1}" for number in range(1, count + 1)}
    voters = ",".join(f"{number}@{places[number]}" for number in list(places)[:voting])
    seats = []
    for number, place in places.items():
        role = {} if number <= voting else {"process.roles": "broker"}
        own = voters if count > 1 else ""
        seats.append(
            seat(
                directory / f"broker-{number}",
                number,
                voters=own,
                listen=place,
                more={**role, **more},
            )
        )
    return seats


def seat(
    data: Path,
    number: int,
    *,
    voters: str = "",
    listen: str | None = None,
    config: Path | None = None,
    more: Mapping[str, str],
) -> Seat:
    """One node.

    Raises:
        UsageError, ConfigError: a setting makes no sense.
    """
    quorum = {"controller.quorum.voters": voters} if voters else {}
    place = listen or place_of(number, voters) or LISTEN_DEFAULT
    host, port = parse_address(place)
    settings = {
        "node.id": str(number),
        "log.dirs": str(data.absolute()),
        "listeners": f"PLAINTEXT://{host_of(host)}:{port}",
        **quorum,
        **more,
    }
    BrokerConfig().overridden(settings)
    return Seat(number=number, data=data, config=config or beside(data), settings=settings)


def beside(data: Path) -> Path:
    """Where the settings of a directory are, if nobody says otherwise."""
    return data.with_name(f"{data.name}.properties")


def make(seats: Sequence[Seat], cluster_id: str | None, *, rejoins: bool = False) -> str:
    """Write directories and settings; returns the id of the cluster.

    Raises:
        UsageError: one of the files is there already; nothing was done.
        LogDirectoryError: a directory is one of a log already, or the disk refused.
    """
    from streamlog.broker.storage.formatting import (  # noqa: PLC0415 - the others start faster
        format_directory,
    )

    for each in seats:
        if each.config.exists():
            raise UsageError(f"{each.config} is there already: remove it, or choose another name")
    for each in seats:
        identity = format_directory(
            str(each.data), node_id=each.number, cluster_id=cluster_id, rejoins=rejoins
        )
        cluster_id = identity.cluster_id
        lines = [f"{name}={value}\n" for name, value in each.settings.items()]
        try:
            each.config.parent.mkdir(parents=True, exist_ok=True)
            each.config.write_text(HEAD + "".join(lines))
        except OSError as error:
            raise UsageError(f"{each.config} can't be written: {error.strerror}") from error
    return cluster_id or ""


def place_of(number: int, voters: str) -> str | None:
    """Where a voter is reached."""
    address = QuorumConfig(voters=voters).addresses().get(number)
    return None if address is None else f"{host_of(address[0])}:{address[1]}"


def host_of(host: str) -> str:
    """As it stands before a port."""
    return f"[{host}]" if ":" in host else host
