"""Hostile clients against a broker of our own, on the loopback, bounded in number and time."""
