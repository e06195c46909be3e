"""Inspection and repair of damaged partitions, by the files alone."""
