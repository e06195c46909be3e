"""Apps in mirrors: marks of how far they are whole, and the cut of their promotion at once."""
