"""Each attack at its smallest size."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.attack.attacks import ATTACKS


@pytest.mark.parametrize("name", ATTACKS)
def test_an_attack_does_not_keep_others_from_being_served(name: str, tmp_path: Path) -> None:
    finding = ATTACKS[name](tmp_path, 1)
    assert not finding.broken, finding.facts
