"""Database URLs: SQLAlchemy's and JDBC's, read without a library.

`postgresql://host/name`, `mariadb://host/name`, `sqlite:///file.db`, and as Kafka Connect's JDBC
connectors have them, `jdbc:postgresql://host:5432/name?user=u`. A URL is shown in REST answers and
logs, so it must not have a password: that is a setting of its own.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Final
from urllib.parse import parse_qsl, urlencode, urlsplit

from streamlog.errors import ConfigError

DIALECTS: Final = ("postgresql", "mysql", "mariadb", "sqlite")
_DROPPED_BY_JDBC: Final = {"user", "password", "useSSL", "reWriteBatchedInserts", "serverTimezone"}
_NAME: Final = re.compile(r"[^\x00]{1,128}")


def plain_url(url: str) -> str:
    """Return a URL as SQLAlchemy reads it.

    Raises:
        ConfigError: it has no scheme, a database that is not supported, or a password.
    """
    text = url.removeprefix("jdbc:")
    is_jdbc = text != url
    if is_jdbc and text.startswith("sqlite:") and not text.startswith("sqlite://"):
        # JDBC writes the path behind the colon: jdbc:sqlite:/var/lib/shop.db
        text = f"sqlite:///{text.removeprefix('sqlite:')}"
    parts = urlsplit(text)
    if parts.scheme.split("+")[0] not in DIALECTS:
        raise ConfigError(
            f"url {_shown(text)!r}: write one of {', '.join(f'{each}://' for each in DIALECTS)}, "
            "or a JDBC URL of one of them"
        )
    query = parse_qsl(parts.query, keep_blank_values=True)
    if parts.password is not None or any(name == "password" for name, _ in query):
        raise ConfigError(
            f"url {_shown(text)!r} has a password, which would be shown with it: set "
            "password=Secret(...) (connection.password)"
        )
    if is_jdbc:
        query = [(name, value) for name, value in query if name not in _DROPPED_BY_JDBC]
        text = "?".join(filter(None, (text.partition("?")[0], urlencode(query))))
    return text


def user_of(url: str) -> str | None:
    """Return the user that a JDBC URL names in its query, or None."""
    query = dict(parse_qsl(urlsplit(url.removeprefix("jdbc:")).query))
    return query.get("user") if url.startswith("jdbc:") else None


def dialect_of(url: str) -> str:
    """Return which database a URL names, such as "postgresql"; see `DIALECTS`."""
    return urlsplit(url.removeprefix("jdbc:")).scheme.split("+")[0]


def check_names(what: str, names: Collection[str]) -> None:
    """Refuse names of columns or tables that no database takes.

    Args:
        what: the setting, for the message.
        names: the names.

    Raises:
        ConfigError: a name is empty, too long, has a NUL, or comes twice.
    """
    for name in names:
        if not _NAME.fullmatch(name):
            raise ConfigError(f"{what}: {name!r} is no name: write 1 to 128 characters, no NUL")
    if len({*names}) != len(names):
        raise ConfigError(f"{what}: {', '.join(names)} names one of them twice")


def _shown(url: str) -> str:
    return re.sub(r"(//[^/@:]*:)[^@/]*@|(?<=password=)[^&]*", r"\1***@", url)
