"""A mirror to Apache Kafka beside MirrorMaker 2: records, and positions of groups."""
