"""Metrics of a producer, a consumer and an admin client, under the names of Kafka's clients."""
