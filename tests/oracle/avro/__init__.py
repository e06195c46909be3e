"""Apache Avro as an oracle: random pairs of schemas on its SchemaCompatibility and on ours."""
