"""Compaction: which records survive, and the segments that a cleaning writes (KIP-58, KIP-534)."""
