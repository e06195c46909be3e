"""Kafka Connect's REST API: the same requests to Apache's worker and to ours."""
