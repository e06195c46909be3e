"""Service files: the worker's settings and connectors in files, and secrets beside them.

A worker's file and a connector's are Kafka Connect's: properties, or for a connector also JSON, as
`POST /connectors` takes it. Rule: a file of a connector is read as it is; references to secrets in
it are resolved by the process that runs a task, from the environment and from directories that the
operator has allowed, and nowhere else.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Final

import msgspec

from streamlog.connect_service.herder_shell import ServiceSettings
from streamlog.connect_service.service_group import GroupTimes
from streamlog.errors import ConfigError
from streamlog.http_access.access_settings import HttpAccess
from streamlog.listening import is_local, parse_address
from streamlog.properties import parse_properties, resolve

REST_SETTING: Final = "rest"
REST_DEFAULT: Final = "127.0.0.1:8083"
"""Kafka Connect's port, on this machine alone."""
BOOTSTRAP: Final = "bootstrap.servers"
LISTENERS: Final = "listeners"
EXTENSIONS: Final = "rest.extension.classes"
FILE_BYTES_MAX: Final = 1024 * 1024
_REFERENCE: Final = re.compile(r"\$\{(env|file|dir):([^}:]*)(?::([^}]*))?\}")
_NAMES: Final = {
    "group.id": "group_id",
    "config.storage.topic": "configs_topic",
    "offset.storage.topic": "offsets_topic",
    "status.storage.topic": "status_topic",
}
_NUMBERS: Final = {
    "offset.storage.partitions": "offsets_partitions",
    "status.storage.partitions": "status_partitions",
    "offset.flush.interval.ms": "commit_ms",
    "inter.worker.key.ttl.ms": "key_ttl_ms",
}
_TIMES: Final = {
    "session.timeout.ms": "session_timeout_ms",
    "heartbeat.interval.ms": "heartbeat_interval_ms",
    "rebalance.timeout.ms": "rebalance_timeout_ms",
}
MISSPELT: Final = 0.9
"""Names at least this similar count as a misspelling, from 0 to 1."""
_MS_MAX: Final = {"inter.worker.key.ttl.ms": 2**31 - 1, "session.timeout.ms": 1_800_000}
_PARTITIONS_MAX: Final = 10_000
_PORT_MAX: Final = 65_535

logger = logging.getLogger(__name__)


class _Connector(msgspec.Struct):
    name: str
    config: dict[str, str]


def read_worker_file(path: Path | None) -> dict[str, str]:
    """Return the settings of a worker's file; none without a file.

    Raises:
        ConfigError: the file can't be read, or is no properties file.
    """
    return {} if path is None else parse_properties(_read(path), str(path))


def service_settings(given: Mapping[str, str]) -> ServiceSettings:
    """Return a worker's settings by Kafka Connect's names; others are accepted, and kept.

    Raises:
        ConfigError: a number is none, or out of range.
    """
    _warn_of_misspelt(given)
    texts = {ours: given[name] for name, ours in _NAMES.items() if given.get(name)}
    times = GroupTimes(**_numbers(given, _TIMES))
    if times.heartbeat_interval_ms >= times.session_timeout_ms:
        raise ConfigError(
            f"heartbeat.interval.ms={times.heartbeat_interval_ms} has to be less than"
            f" session.timeout.ms={times.session_timeout_ms}"
        )
    numbers = _numbers(given, _NUMBERS)
    return ServiceSettings(**texts, **numbers, times=times, others=dict(given))  # type: ignore[arg-type]


def _warn_of_misspelt(given: Mapping[str, str]) -> None:
    """Log names that resemble a setting of the service, and are none.

    A worker's file may hold any names, as those of Kafka Connect do; but without `group.id`, which
    was misspelt, a worker would join another service.
    """
    known = (*_NAMES, *_NUMBERS, *_TIMES)
    for name in given:
        near = get_close_matches(name, known, n=1, cutoff=MISSPELT)
        if name not in known and near:
            logger.warning(
                "%s is no setting of a worker, and is ignored: did you mean %s?", name, near[0]
            )


def log_of(given: Mapping[str, str]) -> str | None:
    """Return the URL of the log that a worker's file names; None: it names none."""
    return f"kafka://{given[BOOTSTRAP]}" if BOOTSTRAP in given else None


def listener_of(given: Mapping[str, str]) -> str:
    """Return HOST:PORT of the first listener of a worker's file; empty: it has none."""
    return _first_listener(given)[1]


def rest_access(given: Mapping[str, str], *, users_file: str, is_insecure: bool) -> HttpAccess:
    """Return who may use the REST API of a worker, and its certificates.

    Args:
        given: the worker's settings, `ssl.*` with or without `listeners.https.` before them.
        users_file: the file of users; empty: the API has no passwords.
        is_insecure: whether others may reach it without a password or without TLS.

    Raises:
        ConfigError: a setting of TLS is missing or can't be used here, or an extension would have
            asked for passwords.
    """
    if given.get(EXTENSIONS) and not users_file:
        # Without it, an API that had a password would be open.
        raise ConfigError(
            f"{EXTENSIONS}={given[EXTENSIONS]}: classes of Java don't run here; instead of basic"
            " authentication by JAAS, give users by --rest-users FILE, or remove the setting"
        )
    scheme, _ = _first_listener(given)
    own = {
        name.removeprefix("listeners.https."): value
        for name, value in given.items()
        if name.startswith("listeners.https.ssl.")
    }
    if scheme == "http" or (not scheme and "ssl.keystore.location" not in own):
        return HttpAccess(users_file=users_file, is_insecure=is_insecure)
    tls = {**{name: value for name, value in given.items() if name.startswith("ssl.")}, **own}
    for name in ("ssl.keystore.type", "ssl.truststore.type"):
        if tls.get(name, "PEM").upper() != "PEM":
            raise ConfigError(f"{name}={tls[name]}: certificates are read from PEM files: say PEM")
    certificate = tls.get("ssl.keystore.location", "")
    if not certificate:
        raise ConfigError(
            f"{LISTENERS}=https://... needs listeners.https.ssl.keystore.location, a PEM file with"
            " the worker's private key and certificates"
        )
    auth = tls.get("ssl.client.auth", "none")
    if auth not in {"none", "required"}:
        raise ConfigError(f"ssl.client.auth={auth!r} is neither none nor required")
    password = tls.get("ssl.key.password") or tls.get("ssl.keystore.password") or ""
    return HttpAccess(
        users_file=users_file,
        certificate=certificate,
        key_password=resolve("ssl.key.password", password, os.environ),
        ca=tls.get("ssl.truststore.location", ""),
        needs_client_certificate=auth == "required",
        is_insecure=is_insecure,
    )


def usable_paths(given: Sequence[Path] | None, address: str) -> Sequence[Path] | None:
    """Return the directories below which connectors may use files; None: they may use all.

    Args:
        given: what the operator allows; None or empty: nothing was said.
        address: HOST:PORT of the REST API. Who reaches it names the files, so without `given`
            those who use this machine may use its files, and others none.
    """
    host, _ = parse_address(address, setting="rest")
    return given or (None if is_local(host) else ())


def _first_listener(given: Mapping[str, str]) -> tuple[str, str]:
    """Return scheme and HOST:PORT of the first listener; two empty texts if there is none."""
    first = given.get(LISTENERS, "").partition(",")[0].strip()
    if not first:
        return "", ""
    scheme, colon, address = first.partition("://")
    if not colon or scheme.lower() not in {"http", "https"}:
        raise ConfigError(
            f"{LISTENERS}={first!r} is neither http://HOST:PORT nor https://HOST:PORT"
        )
    return scheme.lower(), address


def advertised(given: Mapping[str, str], endpoint: str) -> str:
    """Return HOST:PORT under which other workers reach the REST API of this one.

    Args:
        given: the worker's settings.
        endpoint: HOST:PORT where it listens.

    Raises:
        ConfigError: the port is none.
    """
    host, _, port = endpoint.rpartition(":")
    host = given.get("rest.advertised.host.name") or host
    port = given.get("rest.advertised.port") or port
    if not port.isdecimal() or not 1 <= int(port[:6]) <= _PORT_MAX:
        raise ConfigError(f"rest.advertised.port={port[:20]!r} is no number from 1 to {_PORT_MAX}")
    return f"{host}:{port}"


def _numbers(given: Mapping[str, str], names: Mapping[str, str]) -> dict[str, int]:
    found: dict[str, int] = {}
    for name, ours in names.items():
        text = given.get(name, "").strip()
        if not text:
            continue
        if not text.isdecimal() or len(text) > 10 or not 1 <= int(text) <= _limit_of(name):  # noqa: PLR2004 - the digits of an int32
            raise ConfigError(f"{name}={text[:20]!r} is no number from 1 to {_limit_of(name)}")
        found[ours] = int(text)
    return found


def read_connector_file(path: Path) -> tuple[str, dict[str, str]]:
    """Return the name and configuration in a connector's file, references as they stand.

    Raises:
        ConfigError: the file can't be read, or lacks the name.
    """
    text = _read(path)
    if path.suffix != ".json":
        settings = parse_properties(text, str(path))
        if not settings.get("name"):
            raise ConfigError(f"{path}: name= is missing: it names the connector")
        return settings["name"], settings
    try:
        whole = msgspec.json.decode(text, type=_Connector)
    except msgspec.MsgspecError:
        try:
            settings = msgspec.json.decode(text, type=dict[str, str])
        except msgspec.MsgspecError as error:
            raise ConfigError(
                f'{path} is neither {{"name": ..., "config": {{...}}}} nor settings: {error}'
            ) from None
        if not settings.get("name"):
            raise ConfigError(f'{path}: "name" is missing: it names the connector') from None
        return settings["name"], settings
    return whole.name, {"name": whole.name, **whole.config}


def secrets_of(
    directories: Sequence[Path], environment: Mapping[str, str] | None = None
) -> Callable[[str], str]:
    """Return a function that replaces references to secrets in a text.

    `${env:NAME}` is a variable, `${file:PATH:KEY}` a setting in a properties file, and
    `${dir:PATH:KEY}` the content of the file KEY in a directory: Kafka's three providers.

    Args:
        directories: where files may lie.
        environment: the variables; None for those of the process.
    """
    allowed = [each.resolve() for each in directories]
    known = os.environ if environment is None else environment

    def value_of(found: re.Match[str]) -> str:
        provider, at, key = found.groups()
        if provider == "env":
            if at not in known:
                raise ConfigError(f"the environment variable {at} is not set")
            return known[at]
        if key is None:
            raise ConfigError(f"${{{provider}:{at}}} lacks its key: ${{{provider}:PATH:KEY}}")
        path = Path(at) if provider == "file" else Path(at) / key
        # Resolved first: a link or `..` must not lead out of what is allowed.
        whole = path.resolve()
        if not any(whole.is_relative_to(each) for each in allowed):
            raise ConfigError(
                f"${{{provider}:{at}:{key}}} is below none of the directories of --secrets-dir"
            )
        text = _read(whole)
        if provider == "dir":
            return text.rstrip("\r\n")
        settings = parse_properties(text, str(path))
        if key not in settings:
            raise ConfigError(f"{path} has no {key}")
        return settings[key]

    return lambda text: _REFERENCE.sub(value_of, text)


def _limit_of(name: str) -> int:
    return _PARTITIONS_MAX if name.endswith("partitions") else _MS_MAX.get(name, 600_000)


def _read(path: Path) -> str:
    try:
        if path.stat().st_size > FILE_BYTES_MAX:
            raise ConfigError(f"{path} is larger than {FILE_BYTES_MAX} bytes")
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8 text"
        # `from None`: the cause of a decoding error shows bytes of the file.
        raise ConfigError(f"{path} can't be read: {reason}") from None
