"""The group coordinator: groups and their committed offsets, in `__consumer_offsets`."""
