"""Kafka Streams as an oracle: random cases on its TopologyTestDriver and on streamlog's driver."""
