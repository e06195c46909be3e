"""`streamlog cluster init` and `grow`: data directories of nodes, with the settings beside them.

`init` prepares one node on its own machine, or a whole set on this one. `grow` turns a single node
into one of three or five voters: it writes the settings of the new nodes, then their directories,
then the voters in the settings of the old node. An interrupted run is repeated by the same command.

Rule: all settings are checked before anything is written, and existing files stay as they are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import SystemRandom
from shutil import copymode
from typing import TYPE_CHECKING, Annotated

import typer

from streamlog.broker.config.broker import BrokerConfig
from streamlog.broker.config.cluster import QuorumConfig
from streamlog.broker.config.connections import Listener, listeners_of
from streamlog.broker.storage.disk.files import TEMPORARY, replace_file
from streamlog.broker.storage.disk.os_files import OsFiles
from streamlog.cli.broker_command import LISTEN_DEFAULT, parse_address
from streamlog.cli.terminal import parse_name_values, say
from streamlog.errors import UsageError
from streamlog.properties import read_properties

if TYPE_CHECKING:
    from streamlog.broker.quorum.voter_growth import VoterGrowth


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
class NodeSetup:
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
    more = parse_name_values("--set", given or [])
    if nodes is not None:
        if voters or rejoin or config is not None:
            raise UsageError("--nodes makes a new set: --voters, --rejoin, --config are for --node")
        seats = local_nodes(data, nodes, listen or LISTEN_DEFAULT, more)
    else:
        seats = [
            node_setup(data, node or 0, voters=voters, listen=listen, config=config, more=more)
        ]
    if rejoin and cluster_id is None:
        raise UsageError(
            "--rejoin needs the --cluster-id of the cluster; `cluster status` tells it"
        )
    made = write_nodes(seats, cluster_id, rejoins=rejoin)
    say(f"cluster {made}")
    for each in seats:
        say(f"node {each.number}, {each.listeners}: streamlog broker --config {each.config}")
    if node is not None and cluster_id is None and voters:
        say(
            "for each other node, on its machine: streamlog cluster init --node ID --data DIR"
            f" --cluster-id {made} --voters {voters}"
        )


def local_nodes(
    directory: Path, count: int, listen: str, more: Mapping[str, str]
) -> list[NodeSetup]:
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
            node_setup(
                directory / f"broker-{number}",
                number,
                voters=own,
                listen=place,
                more={**role, **more},
            )
        )
    return seats


def node_setup(
    data: Path,
    number: int,
    *,
    voters: str = "",
    listen: str | None = None,
    config: Path | None = None,
    more: Mapping[str, str],
) -> NodeSetup:
    """One node.

    Raises:
        UsageError, ConfigError: a setting makes no sense.
    """
    quorum = {"controller.quorum.voters": voters} if voters else {}
    place = listen or voter_endpoint(number, voters) or LISTEN_DEFAULT
    host, port = parse_address(place)
    settings = {
        "node.id": str(number),
        "log.dirs": str(data.absolute()),
        "listeners": f"PLAINTEXT://{host_of(host)}:{port}",
        **quorum,
        **more,
    }
    BrokerConfig().override(settings)
    return NodeSetup(
        number=number, data=data, config=config or settings_path(data), settings=settings
    )


def settings_path(data: Path) -> Path:
    """Where the settings of a directory are, if nobody says otherwise."""
    return data.with_name(f"{data.name}.properties")


def write_nodes(
    seats: Sequence[NodeSetup], cluster_id: str | None, *, rejoins: bool = False
) -> str:
    """Write directories and settings; returns the id of the cluster.

    Raises:
        UsageError: one of the files is there already; nothing was done.
        LogDirectoryError: a directory is one of a log already, or the disk refused.
    """
    from streamlog.broker.storage.data_directory import format_directory  # noqa: PLC0415 - the others start faster

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


def voter_endpoint(number: int, voters: str) -> str | None:
    """Where a voter is reached."""
    address = QuorumConfig(voters=voters).addresses().get(number)
    return None if address is None else f"{host_of(address[0])}:{address[1]}"


def host_of(host: str) -> str:
    """As it stands before a port."""
    return f"[{host}]" if ":" in host else host


GROWN_HEAD = "# Written by `streamlog cluster grow`. All settings: docs/configuration.md\n"
VOTERS = "controller.quorum.voters"
LISTENERS = "listeners"
OF_ONE = {
    "node.id",
    "log.dirs",
    LISTENERS,
    "advertised.listeners",
    "broker.rack",
    "web.listener",
    VOTERS,
}
"""What settings say of one node; all else holds for new ones, too."""
LOOPBACK = {"127.0.0.1", "localhost", "::1"}

GrowDataOption = Annotated[
    Path,
    typer.Option("--data", metavar="DIR", help="The directory of the node that is alone."),
]
GrowVotersOption = Annotated[
    str,
    typer.Option(
        "--voters",
        metavar="ID@HOST:PORT,...",
        help="Who is to decide: this node and new ones, three or five in all.",
    ),
]
ToOption = Annotated[
    Path | None,
    typer.Option(
        "--to",
        metavar="DIR",
        help="Where directories of new nodes are made, broker-ID each. Default: beside --data.",
    ),
]


def cluster_grow(
    data: GrowDataOption,
    voters: GrowVotersOption,
    to: ToOption = None,
    *,
    given: SetOption = None,
    config: ConfigOption = None,
) -> None:
    """Make a node that is alone, and stopped, one of several that decide, with all that it has."""
    from streamlog.broker.quorum.voter_growth import VoterGrowth  # noqa: PLC0415 - the others start faster

    more = parse_name_values("--set", given or [])
    place = (to or data.absolute().parent).absolute()
    homes = {each: place / f"broker-{each}" for each in QuorumConfig(voters=voters).addresses()}
    names = {number: str(home) for number, home in homes.items()}
    with VoterGrowth.open(str(data), names, draw=SystemRandom().randrange) as growth:
        own = OwnSettings.read(data, growth.node_id, voters=voters, config=config)
        seats = []
        if not growth.is_done:
            usual = own.inherited(more)
            for number in growth.newcomers:
                shared = {**usual, **own.listener_of(number, voters, more), **more}
                seats.append(node_setup(homes[number], number, voters=voters, more=shared))
            _grow(growth, seats, own)
        elif own.is_written:
            raise UsageError(f"the voters of {data} are {voters} already: there is nothing to do")
        own.write()
    typer.echo(f"cluster {growth.identity.cluster_id}: its voters are {voters}")
    typer.echo(f"node {growth.node_id}: streamlog broker --config {own.path}")
    for each in seats:
        typer.echo(f"node {each.number}, new: streamlog broker --config {each.config}")
    typer.echo(
        "Take each new directory and its settings to where the node is to run, and let log.dirs say"
        f" where that is. Start all: nodes {_join_numbers(growth.first)} have to be there before"
        " anything is decided"
    )


class OwnSettings:
    """The settings of the node that there is: the file, and what is to be other in it."""

    def __init__(self, path: Path, text: str, changes: Mapping[str, str]) -> None:
        self.path = path
        self._text = text
        self._changes = changes

    @classmethod
    def read(cls, data: Path, number: int, *, voters: str, config: Path | None) -> OwnSettings:
        """Those in a file, or as `cluster init` makes them if the node has none.

        Raises:
            UsageError, ConfigError: with these voters they make no sense.
        """
        path = config or settings_path(data)
        if not path.exists():
            if config is not None:
                raise UsageError(f"{config} is not there: which settings has node {number}?")
            return cls(path, GROWN_HEAD, node_setup(data, number, voters=voters, more={}).settings)
        known = read_properties(str(path))
        changes = {VOTERS: voters}
        if LISTENERS not in known:
            changes[LISTENERS] = f"PLAINTEXT://{voter_endpoint(number, voters)}"
        settings = BrokerConfig().override({**known, **changes})
        if settings.node_id != number:
            raise UsageError(
                f"{path} is of node {settings.node_id}, and {data} of node {number}: say by"
                " --config where its settings are"
            )
        settings.quorum.check(number)
        _check_endpoint(path, listeners_of(settings.security), number, voters)
        return cls(path, path.read_text(encoding="utf-8"), changes)

    @property
    def is_written(self) -> bool:
        """Whether the file says so already."""
        return self.path.exists() and self._rewritten() == self._text

    def inherited(self, more: Mapping[str, str]) -> dict[str, str]:
        """What holds for other nodes as well, secrets by where they are kept."""
        lines = map(_name_and_value, self._text.splitlines())
        return {
            name: value for name, value in lines if name and name not in {*OF_ONE, *more.keys()}
        }

    def listener_of(self, number: int, voters: str, more: Mapping[str, str]) -> dict[str, str]:
        """Where another node listens: as this one does, at the place that is its own.

        Raises:
            UsageError: this one has several listeners, and `more` does not say those of others.
        """
        given = dict(map(_name_and_value, self._text.splitlines())).get(LISTENERS, "PLAINTEXT://")
        if LISTENERS in more:
            return {}
        if "," in given:
            raise UsageError(
                f"{self.path} has several listeners: say with --set listeners=... those of new"
                " nodes, the same for all, such as INNER://:9092,OUTER://:9094, and write"
                " advertised.listeners into the settings of each"
            )
        return {
            LISTENERS: f"{given.partition('://')[0].strip()}://{voter_endpoint(number, voters)}"
        }

    def write(self) -> None:
        """Have the file say what is to be.

        Raises:
            UsageError: it can't be written; says what belongs into it.
        """
        try:
            _write(self.path, self._rewritten())
        except OSError as error:
            wanted = "\n".join(f"{name}={value}" for name, value in self._changes.items())
            raise UsageError(
                f"all is done, but {self.path} can't be written ({error.strerror}); put into it:"
                f"\n{wanted}"
            ) from error

    def _rewritten(self) -> str:
        left = dict(self._changes)
        lines = []
        for line in self._text.splitlines():
            name, _ = _name_and_value(line)
            lines.append(f"{name}={left.pop(name)}" if name in left else line)
        lines += [f"{name}={value}" for name, value in left.items()]
        return "".join(f"{line}\n" for line in lines)


def _grow(growth: VoterGrowth, seats: Sequence[NodeSetup], own: OwnSettings) -> None:
    """Make new nodes, and the voters what they are to be.

    Raises:
        UsageError: other settings are where those of a new node are to be; nothing was done.
        LogDirectoryError: the disk refused.
    """
    texts = {
        each.config: GROWN_HEAD
        + "".join(f"{name}={value}\n" for name, value in each.settings.items())
        for each in seats
    }
    for path, text in texts.items():
        if path.exists() and path.read_text(encoding="utf-8") != text:
            raise UsageError(f"{path} is there already: remove it, or choose another --to")
    for path, text in texts.items():
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            _write(path, text, like=own.path)
        except OSError as error:
            raise UsageError(f"{path} can't be written: {error.strerror}") from error
    growth.make_newcomers()
    growth.commit()


def _write(path: Path, text: str, *, like: Path | None = None) -> None:
    """Replace a file in one step, durably, readable for whom the file `like`, or itself, was."""
    path = path.resolve()
    aside = path.with_name(path.name + TEMPORARY)  # by which `replace_file` goes
    aside.touch(mode=0o600)
    pattern = like or path
    if pattern.exists():
        copymode(pattern, aside)
    replace_file(OsFiles(), str(path), text.encode())


def _check_endpoint(path: Path, listeners: Sequence[Listener], number: int, voters: str) -> None:
    """Raise UsageError if other nodes could not come to this one where the voters say."""
    host, port = QuorumConfig(voters=voters).addresses()[number]
    places = [(each.host, each.port) for each in listeners]
    places += [each.advertised for each in listeners if each.advertised is not None]
    hosts = {at for at, each in places if each == port}
    if not hosts or (hosts <= LOOPBACK and host not in LOOPBACK):
        raise UsageError(
            f"--voters says that node {number} is reached at {host}:{port}, and by {path} it does"
            f" not listen there: {LISTENERS}="
            f"{','.join(f'{each.name}://{each.host}:{each.port}' for each in listeners)}"
        )


def _name_and_value(line: str) -> tuple[str, str]:
    """Of a line of settings; both empty for a remark."""
    if line.lstrip().startswith(("#", "!")):
        return "", ""
    name, _, value = line.partition("=")
    return name.strip(), value.strip()


def _join_numbers(numbers: Sequence[int]) -> str:
    *others, last = map(str, numbers)
    return f"{', '.join(others)} and {last}"
