"""Health of a worker: figures, watchdog, and results that are held back."""
