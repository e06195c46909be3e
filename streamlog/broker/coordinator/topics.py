"""The names of topics that no group means when it names them by an expression."""

from __future__ import annotations

INTERNAL_TOPICS = frozenset({"__consumer_offsets", "__transaction_state"})
"""Kafka's: no expression for names means them."""
