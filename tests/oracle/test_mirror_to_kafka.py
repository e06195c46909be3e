"""The oracle of mirrors to Apache Kafka, at its smallest; `make oracle-mirror-to-kafka` is more."""

from __future__ import annotations

import asyncio
import os

import pytest

from conformance.kafka import Unavailable
from tests.oracle.mirror_to_kafka.__main__ import main, parsed


@pytest.mark.skipif(
    os.environ.get("STREAMLOG_PROFILE") != "thorough",
    reason="starts Apache Kafka and MirrorMaker 2",
)
@pytest.mark.timeout(600)
def test_records_and_positions_arrive() -> None:
    try:
        assert (
            asyncio.run(main(parsed(["--kills", "1", "--strikes", "1", "--transactions", "40"])))
            == []
        )
    except Unavailable as reason:
        pytest.skip(str(reason))
