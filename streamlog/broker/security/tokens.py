"""Tokens: validates JSON Web Tokens (RFC 7519), signed ones and, for tests, unsigned ones.

PyJWT, of the extra `oauth`, checks signatures with the keys of a set that is fetched when the
broker starts, at an interval, and when a token names an unknown key. The claims are checked here,
at a time that is passed in. Only asymmetric algorithms are accepted: with a shared key, everyone
who can check tokens could make them.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from streamlog.broker.security.authentication import Bearer, TokenRefusal

if TYPE_CHECKING:
    from streamlog.broker.config.security import SecurityConfig

ALGORITHMS: Mapping[str, tuple[str, ...]] = {
    "RSA": ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"),
    "EC": ("ES256", "ES384", "ES512"),
    "OKP": ("EdDSA",),
}
"""The accepted algorithms by type of key."""
TOKEN_CHARACTERS_MAX = 64 * 1024


class Key(NamedTuple):
    """A key of a key set."""

    name: str | None
    algorithms: tuple[str, ...]
    value: Any
    """The key in PyJWT's form."""


Keys = Callable[[str | None], list[Key]]
"""Returns the keys that may have signed a token that names this key."""


class UnsecuredTokens:
    """Accepts tokens without a signature."""

    def __init__(self, config: SecurityConfig) -> None:
        self._config = config

    def __call__(self, token: str, wall_ms: int) -> Bearer:
        """See `Tokens`."""
        parts = token.split(".")
        # Exactly an empty signature: a token with one was meant to be checked.
        if len(parts) != 3 or parts[2]:  # noqa: PLR2004 - RFC 7519
            raise TokenRefusal("it is not an unsecured token")
        header, claims = _json(parts[0]), _json(parts[1])
        if header.get("alg") != "none":
            raise TokenRefusal("it is not an unsecured token")
        return bearer_of(claims, self._config, wall_ms)


class SignedTokens:
    """Accepts tokens that one of the keys has signed."""

    def __init__(self, config: SecurityConfig, keys: Keys) -> None:
        self._config = config
        self._keys = keys

    def __call__(self, token: str, wall_ms: int) -> Bearer:
        """See `Tokens`."""
        import jwt  # noqa: PLC0415 - an extra

        if len(token) > TOKEN_CHARACTERS_MAX:
            raise TokenRefusal(f"it has more than {TOKEN_CHARACTERS_MAX} characters")
        try:
            header = jwt.get_unverified_header(token)
        except jwt.PyJWTError as error:
            raise TokenRefusal(f"it can't be read ({type(error).__name__})") from None
        candidates = self._keys(header.get("kid"))
        if not candidates:
            raise TokenRefusal("its signing key is not in the key set yet")
        # Several for a token without a key id, or for keys of one id; the first that fits decides.
        for key in candidates:
            try:
                claims = jwt.decode(
                    token,
                    key.value,
                    # From the key, and never from the token's header: otherwise a forger could
                    # choose HMAC with the public key as the secret.
                    algorithms=list(key.algorithms),
                    options=_SIGNATURE_ALONE,
                )
            except jwt.PyJWTError:
                continue
            return bearer_of(claims, self._config, wall_ms)
        raise TokenRefusal("the signature does not match the named key")


_SIGNATURE_ALONE: Any = {
    "verify_signature": True,
    "verify_exp": False,
    "verify_nbf": False,
    "verify_iat": False,
    "verify_aud": False,
    "verify_iss": False,
    "verify_sub": False,
    "verify_jti": False,
}


def bearer_of(claims: Mapping[str, Any], config: SecurityConfig, wall_ms: int) -> Bearer:
    """Check the claims of a token; return its user.

    Raises:
        TokenRefusal: the token is not for this broker, or not valid now.
    """
    skew_ms = config.token_clock_skew_s * 1000
    expires_ms = _time_ms(claims, "exp")
    if expires_ms is None:
        raise TokenRefusal("it has no expiration time (exp)")
    # The clocks of broker and issuer may differ, in both directions, by the skew.
    if expires_ms + skew_ms <= wall_ms:
        raise TokenRefusal("it has expired")
    for name in ("nbf", "iat"):
        begins_ms = _time_ms(claims, name)
        if begins_ms is not None and begins_ms - skew_ms > wall_ms:
            raise TokenRefusal(f"its {name} is in the future")
    if config.token_issuer and claims.get("iss") != config.token_issuer:
        raise TokenRefusal("it has the wrong issuer")
    expected = {each.strip() for each in config.token_audience.split(",") if each.strip()}
    given = claims.get("aud", [])
    audience = {given} if isinstance(given, str) else set(map(str, given or ()))
    if expected and not expected & audience:
        raise TokenRefusal("it has the wrong audience")
    user = claims.get(config.token_user_claim)
    if not isinstance(user, str) or not user:
        raise TokenRefusal(f"it has no user name ({config.token_user_claim})")
    return Bearer(user, expires_ms)


def _time_ms(claims: Mapping[str, Any], name: str) -> int | None:
    value = claims.get(name)
    if value is None:
        return None
    # A bool is an int for Python. Beyond 2^53 a float has no exact milliseconds.
    if isinstance(value, bool) or not isinstance(value, int | float) or abs(value) > 2**53:
        raise TokenRefusal(f"its {name} is not a time")
    return int(value * 1000)


def _json(part: str) -> dict[str, Any]:
    try:
        content = json.loads(base64.urlsafe_b64decode(part + "=" * (-len(part) % 4)))
    except (ValueError, RecursionError):
        raise TokenRefusal("it can't be read") from None
    if not isinstance(content, dict):
        raise TokenRefusal("it can't be read")
    return content
