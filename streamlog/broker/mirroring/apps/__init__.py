"""Mirrored apps: marks up to where they are whole, and the cut when they are promoted at once."""
