"""Examples that run: `python -m examples.flights`."""
