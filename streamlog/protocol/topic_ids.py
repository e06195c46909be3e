"""Ids of topics, and of others, as text. Pure."""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode


def id_text(topic_id: bytes) -> str:
    """An id as Kafka's tools print it, in base64; "unknown" for an empty one."""
    return urlsafe_b64encode(topic_id).decode().rstrip("=") or "unknown"


def id_bytes(text: str) -> bytes:
    """The id that `id_text` gave; empty for an empty text."""
    return urlsafe_b64decode(text + "=" * (-len(text) % 4))
