"""Procedures of docs/operations.md under load, with short time-outs (`make procedures`: all)."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest

from chaos.procedures import CARRIED_OUT, PROCEDURES, SHORTENED, carry_out
from chaos.site import procedures
from tests.cluster.cluster import AT_LENGTH

SHORT = sorted(SHORTENED)
LONG = sorted({*PROCEDURES} - SHORTENED)


def test_every_block_of_the_document_is_carried_out() -> None:
    assert {*procedures()} == CARRIED_OUT


@pytest.mark.skipif(sys.platform != "linux", reason="needs Linux")
@pytest.mark.parametrize("name", [*SHORT, *(pytest.param(each, marks=AT_LENGTH) for each in LONG)])
def test_a_procedure_loses_no_acknowledged_record(name: str, tmp_path: Path) -> None:
    story = asyncio.run(carry_out(name, tmp_path / "site", is_quick=True))
    assert not story.broken
