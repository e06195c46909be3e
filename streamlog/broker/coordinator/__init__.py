"""The coordinator: groups and their offsets, kept in `__consumer_offsets`."""
