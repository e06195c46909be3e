"""Users: their SCRAM credentials, and credentials that stand in for those of unknown users.

For each password the broker stores a salt and two keys per SCRAM mechanism (`protocol/scram`);
PLAIN passwords are checked against them too.

Rule of the file: no response shows whether a user exists. An unknown user gets a credential that
looks like any other and that no password matches. It is derived from the user's name and a secret
of this broker, so that a client that asks twice sees the same salt.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from streamlog.errors import LogError
from streamlog.protocol.error_codes import ErrorCode, error_for
from streamlog.protocol.messages.sasl_acls_quotas import (
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
)
from streamlog.protocol.scram import (
    ITERATIONS_DEFAULT,
    ITERATIONS_MAX,
    ITERATIONS_MIN,
    SALT_BYTES,
    ScramCredential,
    ScramMechanism,
)

NAME_CHARACTERS_MAX = 255
SECRET_BYTES = 32
_KEYS = ("salt", "stored_key", "server_key")

Credentials = Mapping[str, Mapping[ScramMechanism, ScramCredential]]


class Users:
    """Users and their credentials. Immutable: see `alter`."""

    def __init__(self, secret: bytes, credentials: Credentials) -> None:
        self._secret = secret
        self._credentials = credentials

    @property
    def secret(self) -> bytes:
        """The secret from which the credentials of unknown users are derived."""
        return self._secret

    @property
    def names(self) -> list[str]:
        """The names of all users, sorted."""
        return sorted(self._credentials)

    def of(self, user: str) -> Mapping[ScramMechanism, ScramCredential]:
        """Return the credentials of a user; none if it does not exist."""
        return self._credentials.get(user, {})

    def credential(self, user: str, mechanism: ScramMechanism) -> tuple[ScramCredential, bool]:
        """Return the credential to check a proof against, and whether the user exists."""
        found = self.of(user).get(mechanism)
        return (self._derive(user, mechanism), False) if found is None else (found, True)

    def password_credential(self, user: str) -> tuple[ScramCredential, bool]:
        """Return the credential to check a password against: the user's strongest."""
        # For an unknown user, a mechanism that takes as long to check as for most users.
        strongest = max(self.of(user), default=self._usual_mechanism())
        return self.credential(user, strongest)

    def join(self, others: Credentials) -> Users:
        """Return these users and `others`; a user in both has the credentials of `others`."""
        return Users(self._secret, {**self._credentials, **others}) if others else self

    def alter(
        self,
        deletions: Iterable[ScramCredentialDeletion],
        upsertions: Iterable[ScramCredentialUpsertion],
    ) -> tuple[Users, dict[str, LogError | None]]:
        """Apply changes; return the users after them, and the result for each user.

        The changes of one user are applied all or not at all.
        """
        deletions, upsertions = list(deletions), list(upsertions)
        changes = [(each.name, each.mechanism) for each in deletions]
        changes += [(each.name, each.mechanism) for each in upsertions]
        counts = Counter(changes)
        after = dict(self._credentials)
        results: dict[str, LogError | None] = {}
        for name in dict.fromkeys(name for name, _ in changes):
            try:
                _check_name(name, [count for (user, _), count in counts.items() if user == name])
                own = _change_credentials(
                    self.of(name),
                    [each for each in deletions if each.name == name],
                    [each for each in upsertions if each.name == name],
                )
            except LogError as error:
                results[name] = error
                continue
            results[name] = None
            after.pop(name, None)
            if own:
                after[name] = own
        return Users(self._secret, after), results

    # Derived credentials.

    def _usual_mechanism(self) -> ScramMechanism:
        """Return the mechanism that most users' passwords are checked with."""
        counts = Counter(max(own) for own in self._credentials.values())
        return counts.most_common(1)[0][0] if counts else ScramMechanism.SCRAM_SHA_512

    def _derive(self, user: str, mechanism: ScramMechanism) -> ScramCredential:
        # Salt length and iterations are those of most users with this mechanism: a client sees them
        # in the first response (RFC 5802), and must not recognize an unknown user by them.
        shapes = Counter(
            (len(each.salt), each.iterations)
            for own in self._credentials.values()
            for each in own.values()
            if each.mechanism is mechanism
        )
        usual = shapes.most_common(1)
        salt_bytes, iterations = usual[0][0] if usual else (SALT_BYTES, ITERATIONS_DEFAULT)

        def derive(what: str) -> bytes:
            about = f"{what}\0{mechanism.sasl_name}\0{user}".encode()
            # Keyed with the broker's secret: always the same for a name, and not computable from
            # outside.
            first = ScramMechanism.SCRAM_SHA_512.signed(self._secret, about)
            parts = [first]
            while sum(map(len, parts)) < salt_bytes:
                parts.append(ScramMechanism.SCRAM_SHA_512.signed(self._secret, parts[-1]))
            return b"".join(parts)

        size_bytes = len(mechanism.hashed(b""))
        return ScramCredential(
            mechanism=mechanism,
            salt=derive("salt")[:salt_bytes],
            iterations=iterations,
            stored_key=derive("stored key")[:size_bytes],
            server_key=derive("server key")[:size_bytes],
        )


def _check_name(name: str, counts: Iterable[int]) -> None:
    if not 0 < len(name) <= NAME_CHARACTERS_MAX:
        raise error_for(
            ErrorCode.UNACCEPTABLE_CREDENTIAL,
            f"a user name must have 1 to {NAME_CHARACTERS_MAX} characters",
        )
    if any(count > 1 for count in counts):
        raise error_for(
            ErrorCode.DUPLICATE_RESOURCE,
            f"the request changes a credential of {name!r} more than once",
        )


def mechanism_of(number: int) -> ScramMechanism:
    """Return the mechanism with Kafka's number.

    Raises:
        LogError: the number is unknown.
    """
    try:
        return ScramMechanism(number)
    except ValueError:
        raise error_for(
            ErrorCode.UNSUPPORTED_SASL_MECHANISM,
            f"mechanism {number} is neither SCRAM-SHA-256 (1) nor SCRAM-SHA-512 (2)",
        ) from None


def _change_credentials(
    before: Mapping[ScramMechanism, ScramCredential],
    deletions: Iterable[ScramCredentialDeletion],
    upsertions: Iterable[ScramCredentialUpsertion],
) -> dict[ScramMechanism, ScramCredential]:
    own = dict(before)
    for deletion in deletions:
        _delete(own, deletion)
    for upsertion in upsertions:
        credential = _credential(upsertion)
        own[credential.mechanism] = credential
    return own


def _delete(own: dict[ScramMechanism, ScramCredential], asked: ScramCredentialDeletion) -> None:
    mechanism = mechanism_of(asked.mechanism)
    if own.pop(mechanism, None) is None:
        raise error_for(
            ErrorCode.RESOURCE_NOT_FOUND, f"{asked.name!r} has no {mechanism.sasl_name} credential"
        )


def _credential(asked: ScramCredentialUpsertion) -> ScramCredential:
    mechanism = mechanism_of(asked.mechanism)
    if not ITERATIONS_MIN <= asked.iterations <= ITERATIONS_MAX:
        raise error_for(
            ErrorCode.UNACCEPTABLE_CREDENTIAL,
            f"{asked.name!r}: {asked.iterations} iterations; must be from {ITERATIONS_MIN} to"
            f" {ITERATIONS_MAX}",
        )
    # Any length is accepted, as in Kafka: only digests of it are stored.
    if not asked.salted_password:
        raise error_for(
            ErrorCode.UNACCEPTABLE_CREDENTIAL, f"{asked.name!r}: the salted password is empty"
        )
    return ScramCredential.of_salted(
        mechanism, bytes(asked.salt), asked.iterations, bytes(asked.salted_password)
    )
