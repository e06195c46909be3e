"""Steps over windows: folding, closing, emission, sessions, sliding and count windows."""
