"""The authentication of one connection, message by message."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamlog.broker.config.security import SecurityConfig
from streamlog.broker.security.authentication import (
    OAUTHBEARER,
    PLAIN,
    Accepted,
    Authentication,
    AuthenticationRefused,
    AuthenticationStage,
    Challenge,
    Checking,
    OAuthBearer,
    Plain,
    Scram,
    Step,
)
from streamlog.broker.security.tokens import UnsecuredTokens
from streamlog.broker.security.users import Users
from streamlog.protocol.error_codes import ErrorCode
from streamlog.protocol.messages.sasl_acls_quotas import SaslAuthenticateResponse
from streamlog.protocol.scram import ScramMechanism, encode_base64, xor
from streamlog.transport.security import BearerExchange, Exchange, exchange_of
from tests.broker.security.test_users import upsertion

NOW_MS = 1_700_000_000_000
USERS = Users(b"secret", {}).alter(
    [], [upsertion(mechanism=1), upsertion(mechanism=2), upsertion("b,o=b")]
)[0]
TOKENS = UnsecuredTokens(
    SecurityConfig(sasl_mechanisms=OAUTHBEARER, unsecured_tokens=True, token_clock_skew_s=0)
)
MECHANISMS: dict[str, Any] = {
    PLAIN: lambda: Plain(USERS),
    "SCRAM-SHA-256": lambda: Scram(ScramMechanism.SCRAM_SHA_256, USERS, nonce="server"),
    "SCRAM-SHA-512": lambda: Scram(ScramMechanism.SCRAM_SHA_512, USERS, nonce="server"),
    OAUTHBEARER: lambda: OAuthBearer(TOKENS),
}


def token(claims: Mapping[str, object], alg: str = "none") -> str:
    def part(content: object) -> str:
        return base64.urlsafe_b64encode(json.dumps(content).encode()).decode().rstrip("=")

    return f"{part({'alg': alg})}.{part(claims)}."


def fresh(session_ms_max: int = 0) -> Authentication:
    return Authentication(MECHANISMS, session_ms_max=session_ms_max)


def say(one: Authentication, data: bytes, now_ms: int = NOW_MS) -> SaslAuthenticateResponse:
    step = one.authenticate(data, now_ms)
    return one.settle(step.check(), now_ms) if isinstance(step, Checking) else step


def converse(
    one: Authentication, exchange: Exchange, now_ms: int = NOW_MS
) -> SaslAuthenticateResponse:
    message: bytes | None = exchange.first()
    while message is not None:
        response = say(one, message, now_ms)
        if response.error_code:
            return response
        message = exchange.answer(response.auth_bytes)
    return response


def proof(mechanism: str, user: str = "alice", secret: str = "wonderland") -> Exchange:
    if mechanism == OAUTHBEARER and secret == "wonderland":
        secret = token({"sub": user, "exp": NOW_MS / 1000 + 60})
    return exchange_of(mechanism, user, secret, nonce="client")


@pytest.mark.parametrize("version", [0, 1])
@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_a_valid_proof_opens_the_connection(mechanism: str, version: int) -> None:
    one = fresh()
    assert not one.is_served(NOW_MS)
    chosen = one.handshake(mechanism, version)
    assert (chosen.error_code, chosen.mechanisms) == (0, list(MECHANISMS))
    assert one.stage is (AuthenticationStage.EXCHANGE if version else AuthenticationStage.BARE)
    assert not one.is_served(NOW_MS)
    assert converse(one, proof(mechanism)).error_code == 0
    assert one.is_served(NOW_MS)
    assert one.principal == "User:alice"


def test_user_names_may_contain_special_characters() -> None:
    one = fresh()
    one.handshake("SCRAM-SHA-256", 1)
    converse(one, proof("SCRAM-SHA-256", "b,o=b"))
    assert one.principal == "User:b,o=b"


@pytest.mark.parametrize(("user", "secret"), [("alice", "queen"), ("mallory", "wonderland!")])
@pytest.mark.parametrize("mechanism", [PLAIN, "SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_a_wrong_password_and_an_unknown_user_get_equal_answers(
    mechanism: str, user: str, secret: str
) -> None:
    one, other = fresh(), fresh()
    one.handshake(mechanism, 1)
    other.handshake(mechanism, 1)
    refusal = converse(one, proof(mechanism, user, secret))
    assert refusal == converse(other, proof(mechanism, "alice", "no"))
    assert refusal.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
    assert one.stage is AuthenticationStage.OVER
    assert not one.is_served(NOW_MS)
    assert secret not in one.reason + str(refusal.error_message)
    # The connection is done: a second handshake is refused.
    assert one.handshake(mechanism, 1).error_code == ErrorCode.ILLEGAL_SASL_STATE


def test_an_unknown_user_gets_a_challenge_of_the_usual_shape() -> None:
    shapes = []
    for user in ("alice", "mallory"):
        mechanism = MECHANISMS["SCRAM-SHA-256"]()
        step = mechanism.step(f"n,,n={user},r=abc".encode(), NOW_MS)
        assert isinstance(step, Challenge)
        shapes.append([len(part) for part in step.data.split(b",")])
    assert shapes[0] == shapes[1]


def test_an_unsupported_mechanism_is_answered_with_the_supported_ones() -> None:
    one = fresh()
    refusal = one.handshake("GSSAPI", 1)
    assert refusal.error_code == ErrorCode.UNSUPPORTED_SASL_MECHANISM
    assert refusal.mechanisms == list(MECHANISMS)
    assert one.stage is AuthenticationStage.OVER


def test_a_message_out_of_order_ends_the_authentication() -> None:
    one = fresh()
    assert say(one, b"\0alice\0wonderland").error_code == ErrorCode.ILLEGAL_SASL_STATE
    assert one.stage is AuthenticationStage.OVER
    other = fresh()
    other.handshake(PLAIN, 1)
    assert other.handshake(PLAIN, 1).error_code == ErrorCode.ILLEGAL_SASL_STATE
    assert other.stage is AuthenticationStage.OVER
    assert say(other, b"\0alice\0wonderland").error_code == ErrorCode.ILLEGAL_SASL_STATE


def test_without_a_session_limit_reauthentication_is_refused() -> None:
    one = fresh()
    one.handshake(PLAIN, 1)
    assert converse(one, proof(PLAIN)).session_lifetime_ms == 0
    assert one.handshake(PLAIN, 1).error_code == ErrorCode.ILLEGAL_SASL_STATE
    assert one.stage is AuthenticationStage.OPEN, "the connection stays open"
    assert one.is_served(NOW_MS + 10**12)


def test_a_session_ends_unless_it_is_renewed() -> None:
    one = fresh(session_ms_max=1_000)
    one.handshake(PLAIN, 1)
    assert converse(one, proof(PLAIN)).session_lifetime_ms == 1_000
    assert one.is_served(NOW_MS + 999)
    assert not one.is_served(NOW_MS + 1_000)
    assert one.handshake(PLAIN, 1).error_code == 0, "a handshake is allowed after the end"
    assert not one.is_served(NOW_MS), "not during the exchange"
    assert converse(one, proof(PLAIN), NOW_MS + 2_000).error_code == 0
    assert one.is_served(NOW_MS + 2_999)


def test_reauthentication_must_keep_the_principal() -> None:
    one = fresh(session_ms_max=1_000)
    one.handshake("SCRAM-SHA-256", 1)
    converse(one, proof("SCRAM-SHA-256"))
    one.handshake("SCRAM-SHA-256", 1)
    refusal = converse(one, proof("SCRAM-SHA-256", "b,o=b"))
    assert refusal.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
    assert "Cannot change principals" in str(refusal.error_message)
    assert not one.is_served(NOW_MS)


def test_reauthentication_must_keep_the_mechanism() -> None:
    one = fresh(session_ms_max=1_000)
    one.handshake(PLAIN, 1)
    converse(one, proof(PLAIN))
    assert one.handshake("SCRAM-SHA-256", 1).error_code == ErrorCode.ILLEGAL_SASL_STATE
    assert one.stage is AuthenticationStage.OVER


def test_a_session_ends_with_its_token() -> None:
    one = fresh(session_ms_max=3_600_000)
    one.handshake(OAUTHBEARER, 1)
    given = token({"sub": "alice", "exp": NOW_MS / 1000 + 5})
    assert converse(one, BearerExchange(given)).session_lifetime_ms == 5_000
    assert not one.is_served(NOW_MS + 5_000)


def test_a_refused_token_gets_its_reason_before_the_error() -> None:
    one = fresh()
    one.handshake(OAUTHBEARER, 1)
    first = say(one, BearerExchange(token({"sub": "alice", "exp": 1})).first())
    assert first.error_code == 0
    assert json.loads(first.auth_bytes) == {"status": "invalid_token"}
    second = say(one, b"\x01")
    assert second.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
    assert "expired" in one.reason


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"alice\0wonderland",
        b"\0\0wonderland",
        b"\0alice\0",
        b"\xff\0alice\0wonderland",
        b"bob\0alice\0wonderland",
        b"\0alice\0" + b"x" * 2_000,
    ],
)
def test_a_malformed_plain_message_is_refused(data: bytes) -> None:
    assert isinstance(Plain(USERS).step(data, NOW_MS), AuthenticationRefused)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"n,,",
        b"n,,n=alice",
        b"p=tls-unique,,n=alice,r=abc",
        b"n,a=bob,n=alice,r=abc",
        b"n,,m=ext,n=alice,r=abc",
        b"n,,n=,r=abc",
        b"n,,n=a=b,r=abc",
        b"\xff",
    ],
)
def test_a_malformed_first_scram_message_is_refused(data: bytes) -> None:
    assert isinstance(MECHANISMS["SCRAM-SHA-256"]().step(data, NOW_MS), AuthenticationRefused)


@pytest.mark.parametrize(
    "change",
    [
        (b"c=biws", b"c=eSws"),  # "y,,"
        (b"r=client", b"r=tneilc"),
        (b",p=", b",x="),
        (b",p=", b",p=A"),
    ],
)
def test_a_changed_scram_proof_is_refused(change: tuple[bytes, bytes]) -> None:
    mechanism = MECHANISMS["SCRAM-SHA-256"]()
    exchange = proof("SCRAM-SHA-256")
    challenge = mechanism.step(exchange.first(), NOW_MS)
    assert isinstance(challenge, Challenge)
    final = exchange.answer(challenge.data)
    assert final is not None
    assert isinstance(mechanism.step(final.replace(*change), NOW_MS), AuthenticationRefused)


def test_a_scram_nonce_that_repeats_the_clients_is_accepted() -> None:
    mechanism = MECHANISMS["SCRAM-SHA-256"]()
    mechanism.step(b"n,,n=alice,r=client", NOW_MS)
    kept = USERS.of("alice")[ScramMechanism.SCRAM_SHA_256]
    final = "c=biws,r=clientclientserver"
    so_far = (
        f"n=alice,r=client,r=clientserver,s={encode_base64(kept.salt)},i={kept.iterations},{final}"
    ).encode()
    scram = kept.mechanism
    salted = scram.salted_password("wonderland", kept.salt, kept.iterations)
    client_key = scram.signed(salted, b"Client Key")
    proof_bytes = xor(client_key, scram.signed(kept.stored_key, so_far))
    step = mechanism.step(f"{final},p={encode_base64(proof_bytes)}".encode(), NOW_MS)
    assert isinstance(step, Accepted)


@given(st.sampled_from(list(MECHANISMS)), st.lists(st.binary(max_size=60), max_size=3))
def test_random_bytes_do_not_authenticate(mechanism: str, messages: list[bytes]) -> None:
    one = MECHANISMS[mechanism]()
    for message in messages:
        step: Step = one.step(message, NOW_MS)
        if isinstance(step, Checking):
            step = step.check()
        assert isinstance(step, Challenge | AuthenticationRefused)
