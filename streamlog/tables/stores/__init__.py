"""Stores of bytes: the port, memory, rows with a time to live, windows, sessions and versions."""
