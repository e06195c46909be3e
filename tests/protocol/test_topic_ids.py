"""Topic ids in messages have the form of Kafka's tools."""

from __future__ import annotations

from streamlog.protocol.schema import id_text


def test_a_topic_id_is_shown_as_url_safe_base64() -> None:
    assert id_text(bytes(15) + b"\x01") == "AAAAAAAAAAAAAAAAAAAAAQ"  # Uuid.METADATA_TOPIC_ID
    assert id_text(b"\xff\xef" * 8) == "_-__7__v_-__7__v_-__7w"
    assert id_text(b"") == "unknown"
