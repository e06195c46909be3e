"""Savepoints: all workers of an app stop at one cut and leave a snapshot of it."""
