"""Kafka Connect's own transforms and JsonConverter, against ours."""
