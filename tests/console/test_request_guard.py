"""Which requests may change something: one rule at a time is broken, and each one refuses."""

from __future__ import annotations

import pytest

from streamlog.console.request_guard import POLICY, RequestGuard, Visitor

SECRET = b"s" * 32
GUARD = RequestGuard(SECRET, {"ann"})
ANN = Visitor("ann", is_operator=True)
GOOD = {
    "host": "log.example:6066",
    "origin": "https://log.example:6066",
    "sec-fetch-site": "same-origin",
}


def refusal(
    guard: RequestGuard = GUARD, visitor: Visitor = ANN, token: str | None = None, **headers: str
) -> str:
    sent = GOOD | {name.replace("_", "-"): value for name, value in headers.items()}
    return guard.refusal(visitor, sent, {"token": guard.token(ANN) if token is None else token})


def test_an_operator_on_a_page_of_this_server_may_change() -> None:
    assert not refusal()
    # Neither curl nor an old browser says where a request comes from: the token decides.
    assert not GUARD.refusal(ANN, {"host": "h"}, {"token": GUARD.token(ANN)})


@pytest.mark.parametrize("site", ["cross-site", "same-site", "none", ""])
def test_other_sites_are_refused(site: str) -> None:
    assert "another site" in refusal(sec_fetch_site=site)


@pytest.mark.parametrize(
    "origin",
    ["null", "https://evil.example", "https://log.example", "https://log.example:6066.evil", ""],
)
def test_other_origins_are_refused(origin: str) -> None:
    assert "another origin" in refusal(origin=origin)


def test_a_token_is_of_one_user_and_one_process() -> None:
    assert "load it again" in refusal(token="")
    assert "load it again" in refusal(token="é")
    assert "load it again" in refusal(token=RequestGuard(b"x" * 32, {"ann"}).token(ANN))
    ben = Visitor("ben", is_operator=True)
    assert "load it again" in refusal(visitor=ben, token=GUARD.token(ANN))


def test_readers_change_nothing() -> None:
    assert GUARD.visitor("ann") == ANN
    for user in ("ben", "", None):
        visitor = GUARD.visitor(user)
        assert not visitor.is_operator
        assert "ask an operator" in refusal(visitor=visitor, token=GUARD.token(visitor))
    assert not RequestGuard(SECRET, set()).visitor("ann").is_operator
    assert RequestGuard(SECRET, None).visitor(None).is_operator


def test_the_policy_allows_no_code_of_others() -> None:
    rules = dict(each.strip().split(" ", 1) for each in POLICY.split(";"))
    assert rules["default-src"] == "'none'"
    assert {rules[name] for name in ("script-src", "style-src", "connect-src")} == {"'self'"}
    assert "unsafe" not in POLICY
