"""API requests: one module for each area of Kafka's API, and the table that finds the handler."""
