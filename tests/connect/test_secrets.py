"""Secrets are shown nowhere, and references are resolved in one place."""

from __future__ import annotations

import msgspec
import pytest

from streamlog.connect import Secret
from streamlog.connect.secrets import resolve_secrets
from streamlog.errors import ConfigError


class Inner(msgspec.Struct, frozen=True):
    token: Secret | None = None


class Settings(msgspec.Struct, frozen=True):
    user: str
    password: Secret
    inner: Inner = Inner()


def test_a_secret_is_hidden_wherever_it_is_shown() -> None:
    secret = Secret("hunter2")
    assert secret.reveal() == "hunter2"
    for shown in (repr(secret), str(secret), f"{secret}", repr(Settings("me", secret))):
        assert "hunter2" not in shown


def test_a_reference_is_shown_but_text_around_it_is_not() -> None:
    assert str(Secret("${env:PASSWORD}")) == "${env:PASSWORD}"
    assert str(Secret("postgres://me:hunter2@${env:HOST}")) == "***"


def test_a_reference_that_is_not_resolved_is_not_revealed() -> None:
    with pytest.raises(ConfigError, match="still a reference"):
        Secret("${file:/secrets:key}").reveal()


def test_references_are_resolved_in_structs_inside_structs() -> None:
    given = Settings("me", Secret("${env:A}"), Inner(Secret("x-${env:B}")))
    found = resolve_secrets(
        given, lambda text: text.replace("${env:A}", "1").replace("${env:B}", "2")
    )
    assert found.password.reveal() == "1"
    assert found.inner.token is not None
    assert found.inner.token.reveal() == "x-2"
    assert given.password.is_reference


def test_secrets_are_equal_by_their_text() -> None:
    assert Secret("a") == Secret("a") != Secret("b")
    assert len({Secret("a"), Secret("a")}) == 1
