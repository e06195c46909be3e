"""The shapes of docs/two-data-centres.md under load (`make mirror-shapes`: all)."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest

from chaos.shapes import CARRIED_OUT, DOCUMENT, SHAPES, blocks, carry_out
from tests.cluster.cluster import AT_LENGTH
from tests.docs.commands import commands

SHORT = {"source-lost"}
"""Its commands are those that must work when things are at their worst."""


def test_every_command_of_the_document_is_carried_out() -> None:
    assert {*blocks()} == CARRIED_OUT
    text = DOCUMENT.read_text()
    carried_out = "\n".join(blocks().values())
    assert [each for each in commands(text) if each not in carried_out] == []


@pytest.mark.skipif(sys.platform != "linux", reason="needs Linux")
@pytest.mark.parametrize(
    "name",
    [each if each in SHORT else pytest.param(each, marks=AT_LENGTH) for each in SHAPES],
)
def test_a_shape_keeps_what_it_promises(name: str, tmp_path: Path) -> None:
    assert not asyncio.run(carry_out(name, tmp_path)).broken
