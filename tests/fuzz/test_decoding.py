"""Some thousands of damaged inputs; `make fuzz` tries ten million."""

from __future__ import annotations

from unittest.mock import patch

from streamlog.errors import CorruptData
from tests.fuzz import decoding
from tests.fuzz.decoding import fuzz

INPUTS = 30_000


def test_damaged_inputs_are_read_or_refused() -> None:
    outcome = fuzz(1, INPUTS)
    assert outcome.findings == []
    for door in ("request", "response", "batch"):
        assert outcome.counts[f"{door}: read"] > INPUTS // 100
        assert outcome.counts[f"{door}: CorruptData"] > INPUTS // 100


def test_a_crash_is_found() -> None:
    def crashes(data: bytes) -> None:
        if len(data) % 7 == 0:
            raise IndexError
        raise CorruptData("as it should be")

    with patch.object(decoding, "_read_batches", crashes):
        outcome = fuzz(1, INPUTS)
    assert len(outcome.findings) >= decoding.FINDINGS_MAX
    assert all("IndexError" in finding for finding in outcome.findings)


def test_a_hang_is_found() -> None:
    def hangs(_: bytes) -> None:
        while True:
            pass

    with patch.object(decoding, "_read_batches", hangs), patch.object(decoding, "HANGS_S", 0.01):
        outcome = fuzz(1, 100)
    assert any("hangs" in finding for finding in outcome.findings)
