"""Basic authentication: who gets in, what is remembered, and what a guess costs."""

from __future__ import annotations

import asyncio
from base64 import b64encode
from pathlib import Path

import pytest

from streamlog.http_access.passwords import NotAuthenticated, Passwords, basic_credentials
from streamlog.http_access.user_file import ScryptKey, UserFile, remove_user, set_user
from tests.http_access.test_user_file import ManualClock


def basic(user: str, password: str) -> str:
    return "Basic " + b64encode(f"{user}:{password}".encode()).decode()


@pytest.mark.parametrize(
    "header",
    [None, "", "Basic", "Basic ", "Bearer abc", "Basic %%%", basic("ann", ""), basic("", "x"),
     "Basic " + b64encode(b"no colon").decode(), "Basic " + b64encode(b"\xff:\xff").decode(),
     basic("ann", "x" * 1_025)],
)  # fmt: skip
def test_a_header_without_credentials_has_none(header: str | None) -> None:
    assert basic_credentials(header) is None


def test_a_password_may_have_colons_and_any_characters() -> None:
    assert basic_credentials(basic("ann", "a:b: ü")) == ("ann", "a:b: ü")
    assert basic_credentials(basic("ann", "x").replace("Basic", "bAsIc")) == ("ann", "x")


def test_users_get_in_with_their_passwords_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, clock = tmp_path / "users", ManualClock()
    set_user(path, "ann", "right")
    set_user(path, "bob", "other")
    checks: list[str] = []
    fits = ScryptKey.fits

    def counted(self: ScryptKey, password: str) -> bool:
        checks.append(password)
        return fits(self, password)

    monkeypatch.setattr(ScryptKey, "fits", counted)

    async def main() -> None:
        passwords = Passwords(UserFile(str(path), clock))
        for user, password in (("ann", "wrong"), ("ann", "other"), ("eve", "right")):
            with pytest.raises(NotAuthenticated):
                await passwords.user_of(basic(user, password))
        with pytest.raises(NotAuthenticated):
            await passwords.user_of(None)
        # One check for each guess, also of a user that does not exist: its time tells nothing.
        assert checks == ["wrong", "other", "right"]
        for _ in range(100):
            assert await passwords.user_of(basic("ann", "right")) == "ann"
        assert checks[3:] == ["right"], "the others were remembered"
        set_user(path, "ann", "new")
        clock.ms += 1_000
        with pytest.raises(NotAuthenticated):
            await passwords.user_of(basic("ann", "right"))
        assert await passwords.user_of(basic("ann", "new")) == "ann"
        remove_user(path, "ann")
        clock.ms += 1_000
        with pytest.raises(NotAuthenticated):
            await passwords.user_of(basic("ann", "new"))

    asyncio.run(main())
