"""A port of Confluent's AvroData as an oracle: random rows and Avro schemas through it and ours."""
