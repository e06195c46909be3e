"""Properties: settings in Kafka's file format, with references to secrets that are kept elsewhere.

A line is `name=value`; lines that begin with `#` or `!` are comments. A value may contain
`${env:NAME}` or `${file:PATH}` (KIP-297), so that a password is neither in the file nor on a
command line. Rule of the file: an error names the setting and the file or variable, never the
value.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path

from streamlog.errors import ConfigError

REFERENCE = re.compile(r"\$\{(env|file):([^}]*)\}")


def read_properties(path: str, *, environment: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the settings in a file, by name, with all references resolved.

    Args:
        path: the file, UTF-8.
        environment: the variables for `${env:NAME}`; None for those of the process.

    Raises:
        ConfigError: the file, a line in it, or what a value refers to can't be read.
    """
    try:
        content = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8 text"
        # `from None`: the cause of a decoding error shows bytes of the file.
        raise ConfigError(f"the settings in {path} can't be read: {reason}") from None
    written = parse_properties(content, path)
    return {name: resolve(name, value, environment) for name, value in written.items()}


def parse_properties(content: str, path: str) -> dict[str, str]:
    """Return the settings in a file's content as they stand, references included.

    Args:
        content: the text of the file.
        path: its name, for messages.

    Raises:
        ConfigError: a line is malformed, or a setting is there twice.
    """
    settings: dict[str, str] = {}
    for number, line in enumerate(content.splitlines(), 1):
        if not line.strip() or line.lstrip().startswith(("#", "!")):
            continue
        name, equals, value = (part.strip() for part in line.partition("="))
        if not equals or not name:
            raise ConfigError(f"{path}, line {number} is not NAME=VALUE")
        if name in settings:
            raise ConfigError(f"{path}, line {number}: {name} is set twice in this file")
        settings[name] = value
    return settings


def read_file(path: str) -> str:
    """Return the content of a file.

    Raises:
        OSError: it can't be read.
        UnicodeDecodeError: it is not UTF-8 text.
    """
    return Path(path).read_text(encoding="utf-8")


def resolve(
    name: str,
    value: str,
    environment: Mapping[str, str] | None = None,
    *,
    read: Callable[[str], str] = read_file,
) -> str:
    """Return a value with its references replaced.

    Args:
        name: the setting's name, for messages.
        value: the value as written.
        environment: the variables for `${env:NAME}`; None for those of the process.
        read: reads the files.

    Raises:
        ConfigError: a variable is not set, or a file can't be read.
    """
    known = os.environ if environment is None else environment

    def content_of(reference: re.Match[str]) -> str:
        kind, target = reference[1], reference[2]
        if kind == "env":
            if target not in known:
                raise ConfigError(
                    f"{name} refers to the environment variable {target}, which is not set"
                )
            return known[target]
        try:
            return read(target).rstrip("\r\n")
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or "it is not UTF-8 text"
            raise ConfigError(
                f"{name} refers to the file {target}, which can't be read: {reason}"
            ) from None

    return REFERENCE.sub(content_of, value)
