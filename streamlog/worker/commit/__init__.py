"""Commits: sinks, changelogs and offsets, at least once or exactly once."""
