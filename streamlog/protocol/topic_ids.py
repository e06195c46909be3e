"""Ids of topics, and of others, as text. Pure."""

from __future__ import annotations

from base64 import urlsafe_b64encode


def id_text(topic_id: bytes) -> str:
    """An id as Kafka's tools print it, in base64; "unknown" for an empty one."""
    return urlsafe_b64encode(topic_id).decode().rstrip("=") or "unknown"
