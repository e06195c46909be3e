"""Metrics of clients (KIP-714): who is asked for which, who may push, and what has been pushed."""
