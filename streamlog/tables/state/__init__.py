"""A task's state: its transaction, its changelog, and the writes on their way to the disk."""
