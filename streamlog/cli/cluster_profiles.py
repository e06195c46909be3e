"""Cluster profiles: clusters by name, and where each setting of the command line comes from.

`~/.config/streamlog/clusters.toml` has a table for each cluster, and `pyproject.toml` may have more
below `[tool.streamlog.clusters]`:

    [prod]
    log = "kafka+ssl://log1.example.org:9093"
    registry = "https://registry.example.org:8081"

    [prod.security]
    "security.protocol" = "SASL_SSL"
    "sasl.password" = "${file:/run/secrets/log}"

An option counts before a variable of the environment, which counts before the profile, which counts
before `[tool.streamlog]`. Rules of the module: a secret stands in a file or a variable, never in a
profile, and others can't read that file; no message shows a value of a secret.
"""

from __future__ import annotations

import os
import re
import stat
import tomllib
from collections.abc import Iterator, Mapping, MutableMapping
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, Final, NamedTuple, TypeVar

import msgspec
import typer

from streamlog.errors import ConfigError, UsageError
from streamlog.properties import REFERENCE, resolve

CLUSTER_VARIABLE: Final = "STREAMLOG_CLUSTER"
LOG_VARIABLE: Final = "STREAMLOG_LOG"
CONSOLE_VARIABLE: Final = "STREAMLOG_CONSOLE"
VARIABLES: Final[Mapping[str, str]] = {
    "log": LOG_VARIABLE,
    "registry": "STREAMLOG_REGISTRY",
    "connect": "STREAMLOG_CONNECT",
    "console": CONSOLE_VARIABLE,
}
"""Setting to the variable that the commands read, as an option's default."""
SECRETS: Final = re.compile(r"password|secret|token|key\.pem", re.IGNORECASE)
HIDDEN: Final = "(hidden)"
OTHERS_READ: Final = stat.S_IRWXG | stat.S_IRWXO
OTHERS_WRITE: Final = stat.S_IWGRP | stat.S_IWOTH
PROFILE_BYTES_MAX: Final = 1024 * 1024
_UNKNOWN: Final = re.compile(r"unknown field `([^`]*)`")
"""How `msgspec` names a field that a Struct does not have."""
P = TypeVar("P", bound=msgspec.Struct)


class ClusterProfile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One cluster."""

    log: str | None = None
    """The URL of its log."""
    registry: str | None = None
    connect: str | None = None
    console: str | None = None
    security: dict[str, str] | str = {}
    """Settings of a client, by Kafka's names, or the file that has them."""


class _Project(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`[tool.streamlog]` of pyproject.toml."""

    cluster: str | None = None
    """The profile without `--cluster`."""
    log: str | None = None
    registry: str | None = None
    connect: str | None = None
    console: str | None = None
    clusters: dict[str, Any] = {}


class ProfileSource(NamedTuple):
    """A profile and its file."""

    profile: ClusterProfile
    file: Path


class Profiles(msgspec.Struct, frozen=True):
    """What the files of this user and of this project say."""

    clusters: dict[str, ProfileSource]
    project: _Project = _Project()
    project_file: Path | None = None

    def find(self, name: str) -> ProfileSource:
        """Return a profile.

        Raises:
            UsageError: there is none of this name; names the nearest.
        """
        found = self.clusters.get(name)
        if found is None:
            raise UsageError(
                f"there is no cluster {name!r}{nearest(name, self.clusters)}; known:"
                f" {', '.join(sorted(self.clusters)) or 'none'} (in {profile_file()})"
            )
        return found


def nearest(name: str, names: Iterator[str] | Mapping[str, Any] | list[str]) -> str:
    """Return a question that names the most similar names; empty without any."""
    close = get_close_matches(name, list(names), n=2)
    return f": did you mean {' or '.join(map(repr, close))}?" if close else ""


def profile_file(environment: Mapping[str, str] | None = None) -> Path:
    """Return the file of this user's profiles."""
    variables = os.environ if environment is None else environment
    base = variables.get("XDG_CONFIG_HOME") or f"{variables.get('HOME', '~')}/.config"
    return Path(base).expanduser() / "streamlog" / "clusters.toml"


def read_profiles() -> Profiles:
    """Read the profiles of this user, and those of the project around the current directory.

    Raises:
        ConfigError: a file can't be read, others may write it, or a profile has a secret in it.
    """
    clusters: dict[str, ProfileSource] = {}
    project, project_file = _Project(), _project_file()
    if project_file is not None:
        tool = _read(project_file).get("tool", {})
        where = f"[tool.streamlog] in {project_file}"
        project = _convert(tool.get("streamlog", {}), _Project, where)
        clusters |= _profiles_of(project.clusters, project_file)
    own = profile_file()
    if own.exists():
        _check_mode(own, OTHERS_WRITE, "written", "go-w")
        # Those of the user come last, and count: a project is shared.
        clusters |= _profiles_of(_read(own), own)
    for name, source in clusters.items():
        _refuse_secrets(name, source)
    return Profiles(clusters, project, project_file)


def _project_file() -> Path | None:
    here = Path.cwd()
    # The nearest one decides, as for other tools.
    return next(
        (each for at in (here, *here.parents) if (each := at / "pyproject.toml").exists()), None
    )


def _read(file: Path) -> dict[str, Any]:
    try:
        if file.stat().st_size > PROFILE_BYTES_MAX:
            raise ConfigError(f"{file} has more than {PROFILE_BYTES_MAX} bytes")
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{file} can't be read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file} is not TOML: {error}") from error


def _profiles_of(tables: Mapping[str, object], file: Path) -> dict[str, ProfileSource]:
    found = {}
    for name, table in tables.items():
        # One by one: of a map, a validator says what is wrong, and not in which of its entries.
        profile = _convert(table, ClusterProfile, f"cluster {name!r} in {file}")
        found[name] = ProfileSource(profile, file)
    return found


def _convert(table: object, kind: type[P], where: str) -> P:
    try:
        return msgspec.convert(table, kind)
    except msgspec.ValidationError as error:
        names = [each.encode_name for each in msgspec.structs.fields(kind)]
        unknown = _UNKNOWN.search(str(error))
        if unknown is not None:
            hint = nearest(unknown[1], names) or f": use {', '.join(names)}"
            raise ConfigError(f"{where} has no setting {unknown[1]!r}{hint}") from error
        raise ConfigError(f"{where}: {error}") from error


def _check_mode(file: Path, refused: int, verb: str, remedy: str) -> None:
    """Check that no one else has access to a file.

    Raises:
        ConfigError: they have, or the file can't be looked at.
    """
    try:
        mode = file.stat().st_mode
    except OSError as error:
        raise ConfigError(f"{file} can't be read: {error.strerror}") from error
    if mode & refused:
        raise ConfigError(f"{file} can be {verb} by other users: chmod {remedy} {file}")


def _refuse_secrets(name: str, source: ProfileSource) -> None:
    given = source.profile.security
    for setting, value in {} if isinstance(given, str) else given.items():
        if (
            SECRETS.search(setting)
            and not setting.endswith(".location")
            and not REFERENCE.search(value)
        ):
            raise ConfigError(
                f"{source.file}: {setting} of cluster {name!r} is a secret: write"
                " ${file:PATH} or ${env:NAME} instead of its value"
            )


def security_of(name: str, source: ProfileSource) -> dict[str, str]:
    """Return the security settings of a profile, with references resolved.

    Raises:
        ConfigError: a file with a secret can be read by other users, or does not exist.
    """
    given = source.profile.security
    if isinstance(given, str):
        from streamlog.properties import read_properties  # noqa: PLC0415 - few profiles need it

        file = source.file.parent / Path(given).expanduser()
        _check_mode(file, OTHERS_READ, "read", "go-rwx")
        return read_properties(str(file))
    found = {}
    for setting, value in given.items():
        for kind, path in REFERENCE.findall(value):
            if kind == "file":
                _check_mode(Path(path), OTHERS_READ, "read", "go-rwx")
        found[setting] = resolve(f"{setting} of cluster {name!r}", value, None)
    return found


class AppliedProfile(msgspec.Struct, frozen=True):
    """What a profile and the project have set, in this process."""

    cluster: str | None = None
    security: dict[str, str] = {}
    origins: dict[str, str] = {}
    """Setting to where its value comes from, for those that were set here."""
    project_log: str | None = None
    """The log of `[tool.streamlog]`, which an app's own log precedes."""


def apply_profiles(
    name: str | None, environment: MutableMapping[str, str], *, has_app: bool
) -> AppliedProfile:
    """Make the settings of a profile, and those of the project, the defaults of all options.

    Options read their defaults from the environment, so a variable that is set there counts first.

    Raises:
        UsageError: there is no such profile.
        ConfigError: a file is not valid.
    """
    profiles = read_profiles()
    origins: dict[str, str] = {}
    project, file = profiles.project, profiles.project_file
    chosen = name or project.cluster
    security: dict[str, str] = {}
    sources: list[tuple[object, str]] = []
    if chosen is not None:
        source = profiles.find(chosen)
        security = security_of(chosen, source)
        sources.append((source.profile, f"cluster {chosen} in {source.file}"))
        is_variable = environment.get(CLUSTER_VARIABLE) == chosen
        given = f"environment {CLUSTER_VARIABLE}" if is_variable else "option --cluster"
        origins["cluster"] = f"{file}" if name is None else given
    # An app has its own registry and its own log, which count before those of the project.
    if not has_app:
        sources.append((project, f"{file}"))
    for found, origin in sources:
        for setting, variable in VARIABLES.items():
            value = getattr(found, setting)
            if value is not None and variable not in environment:
                environment[variable] = value
                origins[setting] = origin
    if security:
        origins |= dict.fromkeys(security, sources[0][1])
    return AppliedProfile(chosen, security, origins, project.log)


def complete_clusters(incomplete: str) -> list[str]:
    """Return the names of profiles that begin so, for the shell."""
    try:
        names = read_profiles().clusters
    except ConfigError:
        return []  # A shell has no use for an error: the command reports it.
    return sorted(name for name in names if name.startswith(incomplete))


ClusterOption = Annotated[
    str | None,
    typer.Option(
        "--cluster",
        metavar="NAME",
        envvar=CLUSTER_VARIABLE,
        autocompletion=complete_clusters,
        help="A cluster by its name in clusters.toml: its log, registry and security.",
    ),
]


def hidden(setting: str, value: str) -> str:
    """Return a value that may be shown."""
    if SECRETS.search(setting) and not setting.endswith(".location"):
        return HIDDEN
    # A URL may have a password in it.
    return re.sub(r"://([^/@:]*):[^/@]*@", rf"://\1:{HIDDEN}@", value)
