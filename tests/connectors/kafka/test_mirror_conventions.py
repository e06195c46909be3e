"""Mirror conventions: the bytes that Apache's classes write, and the names that they look for."""

from __future__ import annotations

import pytest

from streamlog.connectors.kafka.mirror_conventions import (
    KeyAndValue,
    MirrorNames,
    checkpoint,
    heartbeat,
    offset_sync,
)
from streamlog.record import TopicPartition

NAMES = MirrorNames(source="eu", target="us")


@pytest.mark.parametrize(
    ("row", "theirs"),
    [
        (
            offset_sync(TopicPartition("bestellungen-ä", 7), 1234567890123, 42),
            "000f62657374656c6c756e67656e2dc3a400000007 0000011f71fb04cb000000000000002a",
        ),
        (
            checkpoint("billing", TopicPartition("eu.orders", 3), 10, 9876543210, "höchstens"),
            "000762696c6c696e67000965752e6f726465727300000003 "  # noqa: ISC004
            "0000000000000000000a000000024cb016ea000a68c3b663687374656e73",
        ),
        (heartbeat(NAMES, 1700000000123), "0002657500027573 00000000018bcfe5687b"),
    ],
)
def test_the_bytes_are_those_of_apaches_classes(row: KeyAndValue, theirs: str) -> None:
    # OffsetSync, Checkpoint and Heartbeat of connect-mirror(-client) 4.3.1 have written `theirs`.
    assert " ".join(part.hex() for part in row) == theirs


def test_names() -> None:
    # As DefaultReplicationPolicy and IdentityReplicationPolicy have them.
    same = MirrorNames(source="eu", target="us", keeps_names=True)
    other = MirrorNames(source="eu", target="us", separator="_")
    assert [each.remote("a.orders") for each in (NAMES, same, other)] == [
        "eu.a.orders", "a.orders", "eu_a.orders",
    ]  # fmt: skip
    assert [each.remote_heartbeats for each in (NAMES, same, other)] == [
        "eu.heartbeats", "eu.heartbeats", "eu_heartbeats",
    ]  # fmt: skip
    assert (NAMES.offset_syncs, NAMES.checkpoints) == (
        "mm2-offset-syncs.eu.internal", "eu.checkpoints.internal",
    )  # fmt: skip
    assert other.checkpoints == "eu_checkpoints_internal"
    # Others take a topic for internal that begins with mm2 and ends with internal.
    assert NAMES.positions.startswith("mm2")
    assert NAMES.positions.endswith(".internal")
