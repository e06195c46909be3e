"""HTTP: a webhook, a poller, a reader of server-sent events, and a sink of requests."""
