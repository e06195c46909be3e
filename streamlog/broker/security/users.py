"""Users: what the broker keeps of passwords, and what it says of users that there are not.

Of a password there are a salt and two keys for each SCRAM mechanism (`protocol/scram`); PLAIN is
checked against the same. Rule of the file: nobody can find out by asking whether there is a user.
Who asks for one that is not there meets a credential made up from a secret of this broker, the
same every time, that looks like those of the others and that no password fits.
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
    """Users and their credentials. Replaced as a whole: see `altered`."""

    def __init__(self, secret: bytes, credentials: Credentials) -> None:
        self._secret = secret
        self._credentials = credentials

    @property
    def secret(self) -> bytes:
        """What the credentials of users that there are not are made up from."""
        return self._secret

    @property
    def names(self) -> list[str]:
        """All users."""
        return sorted(self._credentials)

    def of(self, user: str) -> Mapping[ScramMechanism, ScramCredential]:
        """The credentials of a user; none if there is no such user."""
        return self._credentials.get(user, {})

    def credential(self, user: str, mechanism: ScramMechanism) -> tuple[ScramCredential, bool]:
        """What to check a proof against, and whether there is such a user."""
        found = self.of(user).get(mechanism)
        return (self._made_up(user, mechanism), False) if found is None else (found, True)

    def password_credential(self, user: str) -> tuple[ScramCredential, bool]:
        """What to check a password against: the stronger of what the user has."""
        strongest = max(self.of(user), default=self._usual())
        return self.credential(user, strongest)

    def joined(self, others: Credentials) -> Users:
        """These, and others, which come before those of the same name."""
        return Users(self._secret, {**self._credentials, **others}) if others else self

    def altered(
        self,
        deletions: Iterable[ScramCredentialDeletion],
        upsertions: Iterable[ScramCredentialUpsertion],
    ) -> tuple[Users, dict[str, LogError | None]]:
        """The users after changes, and what became of each user in them: all or nothing.

        A user whose changes are refused stays as it was.
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

    # ---- made up ----

    def _usual(self) -> ScramMechanism:
        """The mechanism that most passwords are checked against."""
        counts = Counter(max(own) for own in self._credentials.values())
        return counts.most_common(1)[0][0] if counts else ScramMechanism.SCRAM_SHA_512

    def _made_up(self, user: str, mechanism: ScramMechanism) -> ScramCredential:
        shapes = Counter(
            (len(each.salt), each.iterations)
            for own in self._credentials.values()
            for each in own.values()
            if each.mechanism is mechanism
        )
        usual = shapes.most_common(1)
        salt_bytes, iterations = usual[0][0] if usual else (SALT_BYTES, ITERATIONS_DEFAULT)

        def drawn(what: str) -> bytes:
            about = f"{what}\0{mechanism.sasl_name}\0{user}".encode()
            first = ScramMechanism.SCRAM_SHA_512.signed(self._secret, about)
            parts = [first]
            while sum(map(len, parts)) < salt_bytes:
                parts.append(ScramMechanism.SCRAM_SHA_512.signed(self._secret, parts[-1]))
            return b"".join(parts)

        size_bytes = len(mechanism.hashed(b""))
        return ScramCredential(
            mechanism=mechanism,
            salt=drawn("salt")[:salt_bytes],
            iterations=iterations,
            stored_key=drawn("stored key")[:size_bytes],
            server_key=drawn("server key")[:size_bytes],
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
    """The mechanism of Kafka's number.

    Raises:
        LogError: there is none.
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
    # Of any length, as on Kafka: what is kept are digests of it.
    if not asked.salted_password:
        raise error_for(
            ErrorCode.UNACCEPTABLE_CREDENTIAL, f"{asked.name!r}: the salted password is empty"
        )
    return ScramCredential.of_salted(
        mechanism, bytes(asked.salt), asked.iterations, bytes(asked.salted_password)
    )
