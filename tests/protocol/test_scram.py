"""SCRAM, compared with the examples of its RFCs; client and server agree."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamlog.errors import AuthenticationFailed
from streamlog.protocol.scram import (
    ITERATIONS_MAX,
    ScramClient,
    ScramCredential,
    ScramMechanism,
    decode_base64,
    escape,
    unescape,
)

SHA_256 = ScramMechanism.SCRAM_SHA_256
CLIENT_FIRST = b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO"
SERVER_FIRST = (
    b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
)
CLIENT_FINAL = (
    b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,"
    b"p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
)
SERVER_FINAL = b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="


def client(password: str = "pencil") -> ScramClient:
    return ScramClient(SHA_256, "user", password, nonce="rOprNGfwEbeRWgbNEkqO")


def test_the_client_follows_the_example_of_rfc_7677() -> None:
    one = client()
    assert one.first() == CLIENT_FIRST
    assert one.final(SERVER_FIRST) == CLIENT_FINAL
    one.check(SERVER_FINAL)


def test_a_broker_without_the_password_is_refused() -> None:
    one = client("another")
    one.final(SERVER_FIRST)
    with pytest.raises(AuthenticationFailed, match="is not the broker that it claims to be"):
        one.check(SERVER_FINAL)
    other = client()
    other.final(SERVER_FIRST)
    with pytest.raises(AuthenticationFailed):
        other.check(b"e=unknown-user")


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"\xff",
        SERVER_FIRST.replace(b"r=rOpr", b"r=xOpr"),
        b"r=rOprNGfwEbeRWgbNEkqO,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096",
        SERVER_FIRST.replace(b"i=4096", b"i=4095"),
        SERVER_FIRST.replace(b"i=4096", b"i=%d" % (ITERATIONS_MAX + 1)),
        SERVER_FIRST.replace(b"i=4096", b"i=many"),
        SERVER_FIRST.replace(b"s=W22ZaJ0SNY7soEsUEjb6gQ==", b"s=!"),
    ],
)
def test_an_invalid_server_message_is_refused(answer: bytes) -> None:
    with pytest.raises(AuthenticationFailed):
        client().final(answer)


@pytest.mark.parametrize("mechanism", ScramMechanism)
def test_a_credential_checks_the_password_without_showing_it(mechanism: ScramMechanism) -> None:
    kept = ScramCredential.of(mechanism, "pencil", b"salt", 4096)
    assert kept.fits("pencil")
    assert not kept.fits("Pencil")
    for secret in (kept.salt, kept.stored_key, kept.server_key):
        assert repr(secret) not in repr(kept)
    assert "pencil" not in repr(kept)
    assert not kept.is_proven(b"", b"whatever")
    assert not kept.is_proven(bytes(len(kept.stored_key)), b"whatever")


def test_scram_mechanisms_are_found_by_their_sasl_names() -> None:
    assert [each.sasl_name for each in ScramMechanism] == ["SCRAM-SHA-256", "SCRAM-SHA-512"]
    assert ScramMechanism.of("SCRAM-SHA-512") is ScramMechanism.SCRAM_SHA_512
    assert ScramMechanism.of("SCRAM-SHA-1") is None


@given(st.text())
def test_an_escaped_name_round_trips(name: str) -> None:
    shown = escape(name)
    assert "," not in shown
    assert unescape(shown) == name


@pytest.mark.parametrize("name", ["=", "a=2c", "=3", "=2C=4D"])
def test_a_malformed_escaped_name_is_none(name: str) -> None:
    assert unescape(name) is None


@given(st.text())
def test_decoding_any_text_as_base64_gives_bytes(text: str) -> None:
    assert isinstance(decode_base64(text), bytes)
