"""Debezium as an oracle: its engine and ours capture the same changes of tables."""
