"""Passwords that are checked quickly: the cost of a real one is of one test alone."""

from __future__ import annotations

import pytest

from streamlog.http_access import user_file


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(user_file, "COST", (16, 8, 1))
