"""Client: producer, consumer and admin of a log, ours or Kafka's, over any Transport."""
