"""Connect's three topics, written and read by Kafka Connect's own stores and by ours."""
