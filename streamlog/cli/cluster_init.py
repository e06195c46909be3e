"""`streamlog cluster init` and `grow`: data directories of nodes, and their settings files.

`init` prepares one node on its own machine, or a whole cluster on this one. `grow` turns a single
node into one of three or five voters: it writes the settings of the new nodes, then their
directories, then the voters in the settings of the old node. After an interruption, run it again.

Rule: all settings are checked before anything is written, and existing files stay as they are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from random import SystemRandom
from shutil import copymode
from typing import TYPE_CHECKING, Annotated

import msgspec
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
"""Three voters survive the loss of one; with more, each decision waits for more disks."""
NODES_MAX = 100
HEAD = "# Written by `streamlog cluster init`. All settings: docs/configuration.md\n"

DataOption = Annotated[
    Path,
    typer.Option(
        "--data", metavar="DIR", help="The node's data directory; with --nodes, the parent of all."
    ),
]
NodeOption = Annotated[
    int | None, typer.Option("--node", metavar="ID", help="Prepare one node: its node.id.")
]
NodesOption = Annotated[
    int | None, typer.Option("--nodes", metavar="N", help="Prepare N nodes on this machine.")
]
ClusterIdOption = Annotated[
    str | None,
    typer.Option(
        "--cluster-id",
        metavar="ID",
        help="The cluster's ID, the same for all nodes. Default: a new one.",
    ),
]
VotersOption = Annotated[
    str,
    typer.Option(
        "--voters",
        metavar="ID@HOST:PORT,...",
        help="The voters, the same for all nodes. Default: this node alone.",
    ),
]
ListenOption = Annotated[
    str | None,
    typer.Option(
        "--listen",
        metavar="HOST:PORT",
        help="The node's address. With --nodes, the first node's; the others take the next ports."
        f" Default: the address in --voters, else {LISTEN_DEFAULT}.",
    ),
]
SetOption = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="NAME=VALUE", help="Another setting; repeatable."),
]
ConfigOption = Annotated[
    Path | None,
    typer.Option("--config", metavar="FILE", help="The settings file. Default: DIR.properties."),
]
RejoinOption = Annotated[
    bool,
    typer.Option(
        "--rejoin", help="Replace a node of the cluster that has lost its data directory."
    ),
]


class NodeSetup(msgspec.Struct, frozen=True, kw_only=True):
    """A node to prepare: its directory and settings."""

    number: int
    data: Path
    config: Path
    settings: Mapping[str, str]

    @property
    def listeners(self) -> str:
        """The address of its listener, as HOST:PORT."""
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
    """Prepare the data directory and settings of a cluster's node, or of several nodes."""
    if (node is None) == (nodes is None):
        raise UsageError(
            "cluster init needs --node ID for one node, or --nodes N for several on this machine"
        )
    more = parse_name_values("--set", given or [])
    if nodes is not None:
        if voters or rejoin or config is not None:
            raise UsageError(
                "--nodes prepares a new cluster: --voters, --rejoin and --config need --node"
            )
        setups = local_nodes(data, nodes, listen or LISTEN_DEFAULT, more)
    else:
        setups = [
            node_setup(data, node or 0, voters=voters, listen=listen, config=config, more=more)
        ]
    if rejoin and cluster_id is None:
        raise UsageError(
            "--rejoin needs --cluster-id; `streamlog cluster status` prints the cluster's ID"
        )
    made = write_nodes(setups, cluster_id, rejoins=rejoin)
    say(f"cluster {made}")
    for each in setups:
        say(f"node {each.number}, {each.listeners}: streamlog broker --config {each.config}")
    if node is not None and cluster_id is None and voters:
        say(
            "for each other node, on its machine: streamlog cluster init --node ID --data DIR"
            f" --cluster-id {made} --voters {voters}"
        )


def local_nodes(
    directory: Path, count: int, listen: str, more: Mapping[str, str]
) -> list[NodeSetup]:
    """Return nodes 1 to `count` for one machine; the first three vote, or only the first of two.

    Raises:
        UsageError: `count` or its ports are out of range, or `listen` is not HOST:PORT.
    """
    host, port = parse_address(listen)
    if not 1 <= count <= NODES_MAX or not 0 < port <= 65_535 - count:
        raise UsageError(
            f"--nodes {count} from port {port}: use 1 to {NODES_MAX} nodes, and ports up to 65535"
        )
    voting = VOTERS_USUAL if count >= VOTERS_USUAL else 1
    endpoints = {number: f"{host_of(host)}:{port + number - 1}" for number in range(1, count + 1)}
    voters = ",".join(f"{number}@{endpoints[number]}" for number in list(endpoints)[:voting])
    setups = []
    for number, endpoint in endpoints.items():
        role = {} if number <= voting else {"process.roles": "broker"}
        own = voters if count > 1 else ""
        setups.append(
            node_setup(
                directory / f"broker-{number}",
                number,
                voters=own,
                listen=endpoint,
                more={**role, **more},
            )
        )
    return setups


def node_setup(
    data: Path,
    number: int,
    *,
    voters: str = "",
    listen: str | None = None,
    config: Path | None = None,
    more: Mapping[str, str],
) -> NodeSetup:
    """Return a node with its settings checked.

    Raises:
        UsageError, ConfigError: a setting is unknown or out of range.
    """
    quorum = {"controller.quorum.voters": voters} if voters else {}
    endpoint = listen or voter_endpoint(number, voters) or LISTEN_DEFAULT
    host, port = parse_address(endpoint)
    settings = {
        "node.id": str(number),
        "log.dirs": str(data.absolute()),
        "listeners": f"PLAINTEXT://{host_of(host)}:{port}",
        **quorum,
        **more,
    }
    # Only to check the settings: it raises for a wrong one.
    BrokerConfig().override(settings)
    return NodeSetup(
        number=number, data=data, config=config or settings_path(data), settings=settings
    )


def settings_path(data: Path) -> Path:
    """Return the default path of a data directory's settings: DIR.properties."""
    return data.with_name(f"{data.name}.properties")


def write_nodes(
    setups: Sequence[NodeSetup], cluster_id: str | None, *, rejoins: bool = False
) -> str:
    """Write directories and settings; return the cluster's ID.

    Raises:
        UsageError: one of the settings files exists already; nothing was written.
        LogDirectoryError: a directory already has a log, or the disk refused.
    """
    from streamlog.broker.storage.data_directory import format_directory  # noqa: PLC0415 - the others start faster

    for each in setups:
        if each.config.exists():
            raise UsageError(f"{each.config} exists already: remove it, or choose another name")
    for each in setups:
        identity = format_directory(
            str(each.data), node_id=each.number, cluster_id=cluster_id, rejoins=rejoins
        )
        # The first directory draws an ID if none is given; the others get the same one.
        cluster_id = identity.cluster_id
        lines = [f"{name}={value}\n" for name, value in each.settings.items()]
        try:
            each.config.parent.mkdir(parents=True, exist_ok=True)
            each.config.write_text(HEAD + "".join(lines))
        except OSError as error:
            raise UsageError(f"{each.config} can't be written: {error.strerror}") from error
    return cluster_id or ""


def voter_endpoint(number: int, voters: str) -> str | None:
    """Return a voter's HOST:PORT; None if `voters` does not name the node."""
    address = QuorumConfig(voters=voters).addresses().get(number)
    return None if address is None else f"{host_of(address[0])}:{address[1]}"


def host_of(host: str) -> str:
    """Return a host as it precedes a port: IPv6 addresses in brackets."""
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
"""Settings of one node alone; new nodes inherit all others."""
LOOPBACK = {"127.0.0.1", "localhost", "::1"}

GrowDataOption = Annotated[
    Path,
    typer.Option("--data", metavar="DIR", help="The data directory of the single node."),
]
GrowVotersOption = Annotated[
    str,
    typer.Option(
        "--voters",
        metavar="ID@HOST:PORT,...",
        help="The voters: this node and new ones, three or five in all.",
    ),
]
ToOption = Annotated[
    Path | None,
    typer.Option(
        "--to",
        metavar="DIR",
        help="Parent of the new data directories, broker-ID each. Default: that of --data.",
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
    """Turn a single, stopped node into one of several voters; its data stays."""
    from streamlog.broker.quorum.voter_growth import VoterGrowth  # noqa: PLC0415 - the others start faster

    more = parse_name_values("--set", given or [])
    directory = (to or data.absolute().parent).absolute()
    homes = {each: directory / f"broker-{each}" for each in QuorumConfig(voters=voters).addresses()}
    names = {number: str(home) for number, home in homes.items()}
    with VoterGrowth.open(str(data), names, draw=SystemRandom().randrange) as growth:
        own = OwnSettings.read(data, growth.node_id, voters=voters, config=config)
        setups = []
        # 1. An earlier run has written the new voters, so `is_done` holds.
        # 2. It was interrupted before `own.write`.
        # 3. This run has to write the node's own settings only.
        if not growth.is_done:
            usual = own.inherited(more)
            for number in growth.newcomers:
                shared = {**usual, **own.listener_of(number, voters, more), **more}
                setups.append(node_setup(homes[number], number, voters=voters, more=shared))
            _grow(growth, setups, own)
        elif own.is_written:
            raise UsageError(f"the voters of {data} are already {voters}: nothing to do")
        own.write()
    typer.echo(f"cluster {growth.identity.cluster_id}: its voters are {voters}")
    typer.echo(f"node {growth.node_id}: streamlog broker --config {own.path}")
    for each in setups:
        typer.echo(f"node {each.number}, new: streamlog broker --config {each.config}")
    typer.echo(
        "Move each new directory and its settings to the node's machine, and set log.dirs to the"
        f" directory's path there. Start all nodes: the cluster decides nothing before nodes"
        f" {_join_numbers(growth.first)} run"
    )


class OwnSettings:
    """The settings file of the existing node, and the changes that `grow` makes in it."""

    def __init__(self, path: Path, text: str, changes: Mapping[str, str]) -> None:
        self.path = path
        self._text = text
        self._changes = changes

    @classmethod
    def read(cls, data: Path, number: int, *, voters: str, config: Path | None) -> OwnSettings:
        """Read the file, or make the settings that `cluster init` makes if there is none.

        Raises:
            UsageError, ConfigError: the settings contradict the voters or the node.
        """
        path = config or settings_path(data)
        if not path.exists():
            if config is not None:
                raise UsageError(
                    f"{config} does not exist: name the settings file of node {number} by --config"
                )
            return cls(path, GROWN_HEAD, node_setup(data, number, voters=voters, more={}).settings)
        known = read_properties(str(path))
        changes = {VOTERS: voters}
        if LISTENERS not in known:
            changes[LISTENERS] = f"PLAINTEXT://{voter_endpoint(number, voters)}"
        settings = BrokerConfig().override({**known, **changes})
        if settings.node_id != number:
            raise UsageError(
                f"{path} belongs to node {settings.node_id}, and {data} to node {number}: name the"
                " node's settings file by --config"
            )
        settings.quorum.check(number)
        _check_endpoint(path, listeners_of(settings.security), number, voters)
        return cls(path, path.read_text(encoding="utf-8"), changes)

    @property
    def is_written(self) -> bool:
        """Whether the file has the changes already."""
        return self.path.exists() and self._rewritten() == self._text

    def inherited(self, more: Mapping[str, str]) -> dict[str, str]:
        """Return the settings that new nodes inherit; secrets stay references to their files."""
        lines = map(_name_and_value, self._text.splitlines())
        return {
            name: value for name, value in lines if name and name not in {*OF_ONE, *more.keys()}
        }

    def listener_of(self, number: int, voters: str, more: Mapping[str, str]) -> dict[str, str]:
        """Return the listener of a new node: this node's listener name at the new address.

        Raises:
            UsageError: this node has several listeners, and `more` does not give the new node's.
        """
        given = dict(map(_name_and_value, self._text.splitlines())).get(LISTENERS, "PLAINTEXT://")
        if LISTENERS in more:
            return {}
        if "," in given:
            raise UsageError(
                f"{self.path} has several listeners: give those of the new nodes by --set"
                " listeners=..., the same for all, such as INNER://:9092,OUTER://:9094, and add"
                " advertised.listeners to the settings of each"
            )
        return {
            LISTENERS: f"{given.partition('://')[0].strip()}://{voter_endpoint(number, voters)}"
        }

    def write(self) -> None:
        """Write the changes to the file.

        Raises:
            UsageError: the file can't be written; names the lines to add.
        """
        try:
            _write(self.path, self._rewritten())
        except OSError as error:
            wanted = "\n".join(f"{name}={value}" for name, value in self._changes.items())
            raise UsageError(
                f"the new nodes are prepared, but {self.path} can't be written ({error.strerror}):"
                f" add to it\n{wanted}"
            ) from error

    def _rewritten(self) -> str:
        # Lines keep their order and comments; settings that are new follow at the end.
        left = dict(self._changes)
        lines = []
        for line in self._text.splitlines():
            name, _ = _name_and_value(line)
            lines.append(f"{name}={left.pop(name)}" if name in left else line)
        lines += [f"{name}={value}" for name, value in left.items()]
        return "".join(f"{line}\n" for line in lines)


def _grow(growth: VoterGrowth, setups: Sequence[NodeSetup], own: OwnSettings) -> None:
    """Write the new nodes' settings and directories, then the new voters.

    Raises:
        UsageError: a settings file of a new node exists with other content; nothing was written.
        LogDirectoryError: the disk refused.
    """
    texts = {
        each.config: GROWN_HEAD
        + "".join(f"{name}={value}\n" for name, value in each.settings.items())
        for each in setups
    }
    for path, text in texts.items():
        if path.exists() and path.read_text(encoding="utf-8") != text:
            raise UsageError(f"{path} exists already: remove it, or choose another --to")
    for path, text in texts.items():
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            _write(path, text, like=own.path)
        except OSError as error:
            raise UsageError(f"{path} can't be written: {error.strerror}") from error
    # The new voters last: after an interruption before `commit`, the node is still the only voter.
    growth.make_newcomers()
    growth.commit()


def _write(path: Path, text: str, *, like: Path | None = None) -> None:
    """Replace a file atomically and durably, with the permissions of `like`, else its own."""
    # Through a symbolic link, the file is replaced and the link stays.
    path = path.resolve()
    temporary = path.with_name(path.name + TEMPORARY)  # the file that `replace_file` writes
    # No other user can read the file before it has the permissions of `pattern`.
    temporary.touch(mode=0o600)
    pattern = like or path
    if pattern.exists():
        copymode(pattern, temporary)
    replace_file(OsFiles(), str(path), text.encode())


def _check_endpoint(path: Path, listeners: Sequence[Listener], number: int, voters: str) -> None:
    """Raise UsageError if other nodes can't reach this one at its address in the voters."""
    host, port = QuorumConfig(voters=voters).addresses()[number]
    endpoints = [(each.host, each.port) for each in listeners]
    endpoints += [each.advertised for each in listeners if each.advertised is not None]
    hosts = {at for at, each in endpoints if each == port}
    # Nodes on other machines can't reach a loopback address.
    if not hosts or (hosts <= LOOPBACK and host not in LOOPBACK):
        raise UsageError(
            f"--voters gives node {number} the address {host}:{port}, but {path} does not listen"
            f" there: {LISTENERS}="
            f"{','.join(f'{each.name}://{each.host}:{each.port}' for each in listeners)}"
        )


def _name_and_value(line: str) -> tuple[str, str]:
    """Split a line of settings; both parts are empty for a comment."""
    if line.lstrip().startswith(("#", "!")):
        return "", ""
    name, _, value = line.partition("=")
    return name.strip(), value.strip()


def _join_numbers(numbers: Sequence[int]) -> str:
    *others, last = map(str, numbers)
    return f"{', '.join(others)} and {last}"
