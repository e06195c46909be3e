"""Properties: settings in Kafka's form, a name and a value a line, and secrets kept elsewhere.

`name=value`; lines that begin with `#` or `!` are remarks. A value may be, or have in it,
`${env:NAME}` or `${file:PATH}`, so that a password stands neither in the file nor on a command
line. Rule of the file: an error names the setting and the place, never the value.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

from streamlog.errors import ConfigError

_REFERENCE = re.compile(r"\$\{(env|file):([^}]*)\}")


def read_properties(path: str, *, environment: Mapping[str, str] | None = None) -> dict[str, str]:
    """The settings in a file.

    Raises:
        ConfigError: it can't be read, or a line of it, or what a value refers to.
    """
    try:
        content = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is no UTF-8 text"
        raise ConfigError(f"{path} can't be read as settings: {reason}") from None
    known = os.environ if environment is None else environment
    settings: dict[str, str] = {}
    for number, line in enumerate(content.splitlines(), 1):
        if not line.strip() or line.lstrip().startswith(("#", "!")):
            continue
        name, equals, value = (part.strip() for part in line.partition("="))
        if not equals or not name:
            raise ConfigError(f"{path}, line {number} is not NAME=VALUE")
        if name in settings:
            raise ConfigError(f"{path}, line {number}: {name} is in it twice")
        settings[name] = resolve(name, value, known)
    return settings


def resolve(name: str, value: str, environment: Mapping[str, str]) -> str:
    """A value with what it refers to in its place.

    Raises:
        ConfigError: what it refers to is not there.
    """

    def found(reference: re.Match[str]) -> str:
        kind, place = reference[1], reference[2]
        if kind == "env":
            if place not in environment:
                raise ConfigError(f"{name} refers to the environment variable {place}: not set")
            return environment[place]
        try:
            return Path(place).read_text(encoding="utf-8").rstrip("\r\n")
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or "it is no UTF-8 text"
            raise ConfigError(f"{name} refers to the file {place}: {reason}") from None

    return _REFERENCE.sub(found, value)
