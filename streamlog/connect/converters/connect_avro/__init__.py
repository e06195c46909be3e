"""Avro for converters: Connect's schemas and rows as Avro, by the conventions of AvroConverter."""
