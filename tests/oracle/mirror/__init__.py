"""Mirrors of Apache Kafka and of clusters of ours, by random histories, as librdkafka sees them."""
