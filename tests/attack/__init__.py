"""Hostile clients against our own broker, on the loopback, bounded in number and time."""
