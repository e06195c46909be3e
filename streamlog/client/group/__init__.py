"""A member of a consumer group: the protocols, its coordinator, its committed offsets."""
