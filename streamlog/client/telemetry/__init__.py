"""Telemetry: pushes the metrics of a client to the brokers that ask for them (KIP-714)."""
