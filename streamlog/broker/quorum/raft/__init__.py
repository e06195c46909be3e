"""Raft: the replicated metadata log, its files, and its messages (KIP-595, KIP-630)."""
