"""Output: the forms of what commands print and log."""
