"""How a worker does: figures, watchdog, and what holds results back."""
