"""The schema registry of a broker: Confluent's REST API over Confluent's topic `_schemas`.

The state is a replay of the topic (`registry_state`). A write is a pure decision from that state
(`schema_registration`, `deletions`, `subject_policies`): records for the topic, and an answer. The
primary, which is the leader of the topic's one partition, decides and appends (`registry_service`);
every other broker answers reads from its own replay and passes writes on to the primary.
"""
