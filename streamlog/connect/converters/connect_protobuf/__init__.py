"""Protobuf as Confluent's ProtobufConverter has it: schemas both ways, and rows as messages."""
