"""LinkLogin: the login of a link, made of files and variables of this broker.

A user who may alter the cluster writes the settings of a link, its addresses included. Without a
bound, this user could have any file that the broker can read sent to any server as a password.
Rules of this module: a path counts as what it leads to, links of the file system resolved; only
regular files are read, up to a size; a message never shows what a file contains.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from streamlog.allowed_paths import PathNotAllowed, read_below
from streamlog.broker.config.link import (
    LINK_FILES,
    LINK_SECURITY,
    check_references,
    refused_path,
)
from streamlog.errors import ConfigError
from streamlog.properties import resolve
from streamlog.transport.security import Security

if TYPE_CHECKING:
    from streamlog.broker.config.security import SecurityConfig

FILE_BYTES_MAX: Final = 1024 * 1024
"""The most bytes of a secret or of a PEM file; a bundle of all public authorities has 250 kB."""


def login_of(settings: Mapping[str, str], security: SecurityConfig) -> Security | None:
    """Return how to log in at a link's source, all files read; None if the link has no login.

    Args:
        settings: those of the link.
        security: which files and variables they may refer to on this machine.

    Raises:
        ConfigError: a setting is malformed, refers to something that is not allowed here, or that
            can't be read.
    """
    given = {name: value for name, value in settings.items() if name.startswith(LINK_SECURITY)}
    if not given:
        return None
    # The controller has checked them with its own settings. This broker may allow less, and a link
    # may be older than the setting.
    check_references(given, security)
    found = {name: _resolved(name, value, security) for name, value in given.items()}
    for name in LINK_FILES:
        if path := found.get(name):
            _read(name, path, security)
    return Security.of(found).loaded()


def _resolved(name: str, value: str, security: SecurityConfig) -> str:
    return resolve(name, value, read=lambda path: _read(name, path, security).decode())


def _read(name: str, path: str, security: SecurityConfig) -> bytes:
    """Return the content of a file that links may refer to."""
    directories = [each for each in security.mirror_paths.split(",") if each]
    try:
        return read_below(directories, path, FILE_BYTES_MAX)
    except PathNotAllowed:
        raise ConfigError(refused_path(name, path, security)) from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise ConfigError(
            f"{name} refers to the file {path!r}, which can't be read: {reason}"
        ) from None
