"""What tasks read: where they start, where inputs end, and that the logs still are the same."""
