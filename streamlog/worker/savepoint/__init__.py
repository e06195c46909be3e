"""Savepoints: all workers of an app stop at one cut and write a snapshot there."""
