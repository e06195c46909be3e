"""Kafka Streams itself as an oracle: random cases on its TopologyTestDriver, and on ours."""
