"""Connect service: connectors by configuration, with Kafka Connect's topics and REST API.

`ConnectService` runs what the configs topic says: the herder decides, and the tasks are those of
`connect_tasks`, as in an app. One process is the whole group: it takes over from one before it.
"""
