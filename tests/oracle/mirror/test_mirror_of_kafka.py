"""One short history of a mirror of Apache Kafka; `make oracle-mirror` lives longer ones."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from conformance.kafka import Unavailable
from tests.cluster.cluster import AT_LENGTH
from tests.oracle.mirror.clusters import kafka_side, our_side
from tests.oracle.mirror.history import History


@AT_LENGTH
def test_a_mirror_of_apache_kafka_equals_it_and_goes_on_when_it_is_promoted(tmp_path: Path) -> None:
    try:
        with kafka_side(tmp_path / "source") as there, our_side(tmp_path / "mirror", 1) as here:
            assert History(there, here, Random("mirror"), acts=25, strike_share=0).run() == []
    except Unavailable as reason:
        pytest.skip(str(reason))
