"""Which errors of deltalake may pass, and how they read."""

from __future__ import annotations

from pathlib import Path

import pytest

from streamlog.connect import ConnectError, Retriable, Secret
from streamlog.connectors.lakes.delta import Delta, DeltaLake

CLOSED = "http://127.0.0.1:1"
AWAY = {
    "AWS_ENDPOINT_URL": CLOSED,
    "AWS_ALLOW_HTTP": "true",
    "AWS_REGION": "us-east-1",
    "AWS_ACCESS_KEY_ID": "a",
    "max_retries": "0",
}


def test_a_store_that_is_away_may_pass_and_says_why_in_one_line() -> None:
    secrets = Secret('{"AWS_SECRET_ACCESS_KEY": "b"}')
    lake = DeltaLake(Delta(url="s3://lake/t", options=AWAY, secrets=secrets), "lake")
    with pytest.raises(Retriable) as caught:
        lake.load("s3://lake/t")
    text = str(caught.value)
    assert text.startswith("table s3://lake/t can't be read: ")
    assert "Connection refused" in text
    assert text.isprintable(), "neither lines nor colours"


def test_a_log_that_is_damaged_does_not_pass(tmp_path: Path) -> None:
    first = tmp_path / "_delta_log" / f"{0:020}.json"
    first.parent.mkdir()
    first.write_text("{")
    with pytest.raises(ConnectError) as caught:
        DeltaLake(Delta(url=str(tmp_path)), "lake").load(str(tmp_path))
    assert not isinstance(caught.value, Retriable)
