"""Stream processing for Python on a log of its own that speaks the Kafka protocol."""
