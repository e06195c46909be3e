"""State of a task: ordered stores of bytes, transactions over them, and their changelog."""
