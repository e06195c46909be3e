"""Windows as data, the assignment of timestamps to them, and when they close."""
