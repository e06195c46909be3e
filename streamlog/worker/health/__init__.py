"""Health of a worker: its state, metrics, watchdog, and results that are held back."""
