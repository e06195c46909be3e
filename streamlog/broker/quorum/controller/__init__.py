"""The active controller: decisions on brokers, partitions, topics, settings and users (KIP-631)."""
