"""URLs of JDBC and SQLAlchemy, and none with a password."""

from __future__ import annotations

import pytest

from streamlog.connectors.sql.database_url import check_names, dialect_of, plain_url, user_of
from streamlog.errors import ConfigError


@pytest.mark.parametrize(
    ("url", "plain"),
    [
        ("postgresql://host/db", "postgresql://host/db"),
        ("jdbc:postgresql://host:5432/db?user=u", "postgresql://host:5432/db"),
        ("jdbc:mysql://host/db?useSSL=false&charset=utf8", "mysql://host/db?charset=utf8"),
        ("jdbc:sqlite:/var/shop.db", "sqlite:////var/shop.db"),
        ("jdbc:sqlite:shop.db", "sqlite:///shop.db"),
        ("postgresql+psycopg://u@host/db", "postgresql+psycopg://u@host/db"),
    ],
)
def test_urls_become_those_of_sqlalchemy(url: str, plain: str) -> None:
    assert plain_url(url) == plain


def test_the_user_of_a_jdbc_url() -> None:
    assert user_of("jdbc:postgresql://host/db?user=u") == "u"
    assert user_of("postgresql://host/db?user=u") is None
    assert dialect_of("jdbc:mariadb://host/db") == "mariadb"
    assert dialect_of("postgresql+psycopg://host/db") == "postgresql"


@pytest.mark.parametrize(
    "url", ["postgresql://u:geheim@host/db", "jdbc:mysql://host/db?password=geheim&user=u"]
)
def test_a_password_is_refused_and_not_shown(url: str) -> None:
    with pytest.raises(ConfigError, match=r"\*\*\*") as caught:
        plain_url(url)
    assert "geheim" not in str(caught.value)


def test_names_that_no_database_takes() -> None:
    for name in ("", "a\0b", "x" * 129):
        with pytest.raises(ConfigError, match="is no name"):
            check_names("pk_fields", [name])
