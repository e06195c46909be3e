"""Ids in messages have the form that Kafka's tools print and take."""

from __future__ import annotations

from streamlog.protocol.schema import id_text


def test_an_id_is_base64_for_urls_without_padding() -> None:
    assert id_text(bytes(15) + b"\x01") == "AAAAAAAAAAAAAAAAAAAAAQ"  # Uuid.METADATA_TOPIC_ID
    assert id_text(b"\xff\xef" * 8) == "_-__7__v_-__7__v_-__7w"
    assert id_text(b"") == "unknown"
