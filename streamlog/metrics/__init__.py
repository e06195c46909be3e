"""Metrics: what a process counts and measures, without a library in the hot path.

`instruments` count, a `registry` holds them by name, and exporters read the registry: `prometheus`
as text, and OpenTelemetry (the extra `[otel]`). Brokers use the names that Prometheus' JMX exporter
gives Kafka's metrics, so that dashboards and alerts made for Kafka work.
"""
