"""Stored SCRAM credentials, and the made-up credentials of unknown users."""

from __future__ import annotations

import pytest

from streamlog.broker.security.users import Users
from streamlog.errors import LogError
from streamlog.protocol.error_codes import ErrorCode
from streamlog.protocol.messages.sasl_acls_quotas import (
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
)
from streamlog.protocol.scram import ScramMechanism

SHA_256, SHA_512 = ScramMechanism


def upsertion(
    name: str = "alice",
    mechanism: int = 1,
    *,
    password: str = "wonderland",
    iterations: int = 4096,
    salt: bytes = b"salt of sixteen.",
) -> ScramCredentialUpsertion:
    scram = ScramMechanism(mechanism) if mechanism in (1, 2) else SHA_256
    return ScramCredentialUpsertion(
        name=name,
        mechanism=mechanism,
        iterations=iterations,
        salt=salt,
        salted_password=scram.salted_password(password, salt, 4096),
    )


def deletion(name: str = "alice", mechanism: int = 1) -> ScramCredentialDeletion:
    return ScramCredentialDeletion(name=name, mechanism=mechanism)


def no_users() -> Users:
    return Users(b"secret of the broker", {})


def test_a_user_exists_until_its_last_credential_is_deleted() -> None:
    users, results = no_users().alter([], [upsertion(), upsertion(mechanism=2)])
    assert results == {"alice": None}
    assert users.names == ["alice"]
    credential, is_real = users.credential("alice", SHA_256)
    assert is_real
    assert credential.fits("wonderland")
    assert users.password_credential("alice")[0].mechanism is SHA_512
    users, _ = users.alter([deletion(mechanism=2)], [])
    assert set(users.of("alice")) == {SHA_256}
    assert users.password_credential("alice")[0].mechanism is SHA_256
    users, _ = users.alter([deletion()], [])
    assert users.names == []


@pytest.mark.parametrize("size_bytes", [1, 10, 32, 64, 300])
def test_a_salted_password_of_any_length_but_zero_is_accepted(size_bytes: int) -> None:
    change = upsertion()
    change.salted_password = b"p" * size_bytes
    users, results = no_users().alter([], [change])
    assert (results, users.names) == ({"alice": None}, ["alice"])
    change.salted_password = b""
    _, results = users.alter([], [change])
    refusal = results["alice"]
    assert refusal is not None
    assert refusal.code == ErrorCode.UNACCEPTABLE_CREDENTIAL


@pytest.mark.parametrize(
    ("deletions", "upsertions", "code"),
    [
        ([deletion()], [], ErrorCode.RESOURCE_NOT_FOUND),
        ([], [upsertion(""), upsertion()], ErrorCode.UNACCEPTABLE_CREDENTIAL),
        ([], [upsertion("x" * 256)], ErrorCode.UNACCEPTABLE_CREDENTIAL),
        ([], [upsertion(iterations=4095)], ErrorCode.UNACCEPTABLE_CREDENTIAL),
        ([], [upsertion(mechanism=3)], ErrorCode.UNSUPPORTED_SASL_MECHANISM),
        ([], [upsertion(), upsertion()], ErrorCode.DUPLICATE_RESOURCE),
        ([deletion()], [upsertion()], ErrorCode.DUPLICATE_RESOURCE),
    ],
)
def test_a_refused_change_leaves_the_users_unchanged(
    deletions: list[ScramCredentialDeletion],
    upsertions: list[ScramCredentialUpsertion],
    code: ErrorCode,
) -> None:
    users, _ = no_users().alter([], [upsertion("carol")])
    after, results = users.alter(deletions, upsertions)
    errors = [error for error in results.values() if error is not None]
    assert [error.code for error in errors] == [code]
    assert isinstance(errors[0], LogError)
    assert "wonderland" not in str(errors[0])
    assert after.of("carol") == users.of("carol")
    refused = next(name for name, error in results.items() if error is not None)
    assert refused not in after.names


def test_an_unknown_user_gets_a_stable_made_up_credential() -> None:
    users, _ = no_users().alter([], [upsertion(iterations=5000)])
    made_up, is_real = users.credential("mallory", SHA_256)
    assert not is_real
    assert made_up == users.credential("mallory", SHA_256)[0]
    assert made_up.iterations == 5000
    assert len(made_up.salt) == len(b"salt of sixteen.")
    assert made_up.salt != users.credential("trudy", SHA_256)[0].salt
    assert made_up.salt != Users(b"another broker", {}).credential("mallory", SHA_256)[0].salt
    # A user without this mechanism is treated as unknown.
    assert users.credential("alice", SHA_512)[1] is False
    assert len(users.credential("alice", SHA_512)[0].stored_key) == 64
