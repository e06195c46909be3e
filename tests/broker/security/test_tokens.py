"""JSON Web Tokens: signed, unsigned, expired, and for another audience or issuer."""

from __future__ import annotations

import base64
import hmac
import json
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa

from streamlog.broker.config.security import SecurityConfig
from streamlog.broker.security.authentication import Bearer, TokenRefusal
from streamlog.broker.security.tokens import ALGORITHMS, Key, SignedTokens, UnsecuredTokens
from tests.broker.security.test_authentication import NOW_MS, token

RSA_KEY = rsa.generate_private_key(public_exponent=65537, key_size=2048)
EC_KEY = ec.generate_private_key(ec.SECP256R1())
KEYS = {
    "r": Key("r", ALGORITHMS["RSA"], RSA_KEY.public_key()),
    "e": Key("e", ALGORITHMS["EC"], EC_KEY.public_key()),
}
CONFIG = SecurityConfig(
    sasl_mechanisms="OAUTHBEARER",
    jwks_url="file:///keys",
    token_audience="streamlog,other",
    token_issuer="https://issuer",
    token_clock_skew_s=10,
)
CLAIMS: dict[str, Any] = {
    "sub": "alice",
    "exp": NOW_MS // 1000 + 60,
    "iat": NOW_MS // 1000,
    "aud": "streamlog",
    "iss": "https://issuer",
}


def keys(name: str | None) -> list[Key]:
    return [key for key in KEYS.values() if name in (None, key.name)]


def read(text: str, config: SecurityConfig = CONFIG) -> Bearer:
    return SignedTokens(config, keys)(text, NOW_MS)


def signed(
    claims: dict[str, Any] | None = None, *, algorithm: str = "RS256", kid: str | None = "r"
) -> str:
    headers = {} if kid is None else {"kid": kid}
    key = EC_KEY if algorithm.startswith("ES") else RSA_KEY
    return jwt.encode(claims or CLAIMS, key, algorithm=algorithm, headers=headers)


@pytest.mark.parametrize(
    ("algorithm", "kid"), [("RS256", "r"), ("PS512", "r"), ("ES256", "e"), ("RS384", None)]
)
def test_a_signed_token_is_accepted(algorithm: str, kid: str | None) -> None:
    assert read(signed(algorithm=algorithm, kid=kid)) == Bearer("alice", CLAIMS["exp"] * 1000)


@pytest.mark.parametrize(
    ("claims", "reason"),
    [
        ({"exp": NOW_MS // 1000 - 10}, "expired"),
        ({"exp": None}, "no expiration time"),
        ({"exp": "soon"}, "not a time"),
        ({"exp": True}, "not a time"),
        ({"exp": 1e300}, "not a time"),
        ({"nbf": NOW_MS // 1000 + 11}, "future"),
        ({"iat": NOW_MS // 1000 + 11}, "future"),
        ({"aud": "somebody"}, "audience"),
        ({"aud": ["somebody", 1]}, "audience"),
        ({"aud": None}, "audience"),
        ({"iss": "https://else"}, "issuer"),
        ({"iss": None}, "issuer"),
        ({"sub": ""}, "has no user name"),
        ({"sub": None}, "has no user name"),
    ],
)
def test_a_token_with_a_wrong_claim_is_refused(claims: dict[str, Any], reason: str) -> None:
    changed = {name: value for name, value in {**CLAIMS, **claims}.items() if value is not None}
    with pytest.raises(TokenRefusal, match=reason):
        read(signed(changed))


def test_times_within_the_clock_skew_are_accepted() -> None:
    assert read(signed({**CLAIMS, "exp": NOW_MS // 1000 - 9})).user == "alice"
    assert read(signed({**CLAIMS, "nbf": NOW_MS // 1000 + 10})).user == "alice"
    assert read(signed({**CLAIMS, "aud": ["x", "other"]})).user == "alice"


def test_a_token_without_a_signature_is_refused() -> None:
    for name in ("none", "None", "RS256"):
        with pytest.raises(TokenRefusal):
            read(token(CLAIMS, alg=name))


def test_an_hmac_with_the_public_key_is_refused() -> None:
    """The classic attack: the public key as the secret of an HMAC."""
    public = RSA_KEY.public_key().public_bytes(
        serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    )

    def part(content: bytes) -> bytes:
        return base64.urlsafe_b64encode(content).rstrip(b"=")

    head = part(json.dumps({"alg": "HS256", "kid": "r"}).encode())
    body = head + b"." + part(json.dumps(CLAIMS).encode())
    forged = (body + b"." + part(hmac.digest(public, body, "sha256"))).decode()
    with pytest.raises(TokenRefusal):
        read(forged)


def test_a_token_with_a_foreign_signature_is_refused() -> None:
    other = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    forged = jwt.encode(CLAIMS, other, algorithm="RS256", headers={"kid": "r"})
    with pytest.raises(TokenRefusal, match="signature"):
        read(forged)
    with pytest.raises(TokenRefusal, match="not in the key set"):
        read(signed(kid="unknown"))
    head, body, signature = signed().split(".")
    changed = base64.urlsafe_b64encode(json.dumps({**CLAIMS, "sub": "root"}).encode()).decode()
    with pytest.raises(TokenRefusal, match="signature"):
        read(f"{head}.{changed.rstrip('=')}.{signature}")
    assert body != changed


@pytest.mark.parametrize("text", ["", "a", "a.b.c", "..", "ä.ö.ü", "x" * 100_000])
def test_malformed_text_is_refused(text: str) -> None:
    with pytest.raises(TokenRefusal):
        read(text)
    with pytest.raises(TokenRefusal):
        UnsecuredTokens(CONFIG)(text, NOW_MS)


def test_unsecured_tokens_are_checked_by_their_claims() -> None:
    tokens = UnsecuredTokens(CONFIG)
    assert tokens(token(CLAIMS), NOW_MS).user == "alice"
    with pytest.raises(TokenRefusal, match="expired"):
        tokens(token({**CLAIMS, "exp": 1}), NOW_MS)
    with pytest.raises(TokenRefusal, match="not an unsecured token"):
        tokens(token(CLAIMS) + "c2ln", NOW_MS)
    with pytest.raises(TokenRefusal, match="not an unsecured token"):
        tokens(token(CLAIMS, alg="RS256"), NOW_MS)
    with pytest.raises(TokenRefusal, match="can't be read"):
        tokens("W10.W10.", NOW_MS)


def test_a_configured_claim_names_the_user() -> None:
    config = SecurityConfig(
        sasl_mechanisms="OAUTHBEARER", unsecured_tokens=True, token_user_claim="client_id"
    )
    claims = {"client_id": "shop", "exp": NOW_MS // 1000 + 60}
    assert UnsecuredTokens(config)(token(claims), NOW_MS).user == "shop"
