"""`streamlog cluster grow`: a node that is alone becomes one of three voters, or of five.

A shell around `broker.quorum.growth`. Rule of the file: settings are looked at before anything is
written; those of new nodes are written first, then their directories, then who the voters are,
and that in the settings of the node there is. What was cut off is done again by the same command.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from random import SystemRandom
from shutil import copymode
from typing import TYPE_CHECKING, Annotated

import typer

from streamlog.broker.config import BrokerConfig
from streamlog.broker.listeners import Listener, listeners_of
from streamlog.broker.quorum_config import QuorumConfig
from streamlog.broker.storage.files import TEMPORARY, replace_file
from streamlog.broker.storage.os_files import OsFiles
from streamlog.cli.cluster_init import ConfigOption, Seat, SetOption, beside, place_of, seat
from streamlog.cli.terminal import named_values
from streamlog.errors import UsageError
from streamlog.properties import read_properties

if TYPE_CHECKING:
    from streamlog.broker.quorum.growth import Growth

HEAD = "# Written by `streamlog cluster grow`. All settings: docs/configuration.md\n"
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

DataOption = Annotated[
    Path,
    typer.Option("--data", metavar="DIR", help="The directory of the node that is alone."),
]
VotersOption = Annotated[
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
    data: DataOption,
    voters: VotersOption,
    to: ToOption = None,
    *,
    given: SetOption = None,
    config: ConfigOption = None,
) -> None:
    """Make a node that is alone, and stopped, one of several that decide, with all that it has."""
    from streamlog.broker.quorum.growth import Growth  # noqa: PLC0415 - the others start faster

    more = named_values("--set", given or [])
    place = (to or data.absolute().parent).absolute()
    homes = {each: place / f"broker-{each}" for each in QuorumConfig(voters=voters).addresses()}
    names = {number: str(home) for number, home in homes.items()}
    with Growth.open(str(data), names, draw=SystemRandom().randrange) as growth:
        own = OwnSettings.read(data, growth.node_id, voters=voters, config=config)
        seats = []
        if not growth.is_done:
            usual = own.inherited(more)
            for number in growth.newcomers:
                shared = {**usual, **own.listener_of(number, voters, more), **more}
                seats.append(seat(homes[number], number, voters=voters, more=shared))
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
        f" where that is. Start all: nodes {_listed(growth.first)} have to be there before anything"
        " is decided"
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
        path = config or beside(data)
        if not path.exists():
            if config is not None:
                raise UsageError(f"{config} is not there: which settings has node {number}?")
            return cls(path, HEAD, seat(data, number, voters=voters, more={}).settings)
        known = read_properties(str(path))
        changes = {VOTERS: voters}
        if LISTENERS not in known:
            changes[LISTENERS] = f"PLAINTEXT://{place_of(number, voters)}"
        settings = BrokerConfig().overridden({**known, **changes})
        if settings.node_id != number:
            raise UsageError(
                f"{path} is of node {settings.node_id}, and {data} of node {number}: say by"
                " --config where its settings are"
            )
        settings.quorum.check(number)
        _check_reached(path, listeners_of(settings.security), number, voters)
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
        return {LISTENERS: f"{given.partition('://')[0].strip()}://{place_of(number, voters)}"}

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


def _grow(growth: Growth, seats: Sequence[Seat], own: OwnSettings) -> None:
    """Make new nodes, and the voters what they are to be.

    Raises:
        UsageError: other settings are where those of a new node are to be; nothing was done.
        LogDirectoryError: the disk refused.
    """
    texts = {
        each.config: HEAD + "".join(f"{name}={value}\n" for name, value in each.settings.items())
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


def _check_reached(path: Path, listeners: Sequence[Listener], number: int, voters: str) -> None:
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


def _listed(numbers: Sequence[int]) -> str:
    *others, last = map(str, numbers)
    return f"{', '.join(others)} and {last}"
