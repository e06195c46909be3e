"""Kafka Connect's classes as an oracle: random JSON read, shown and cast by them and by ours."""
