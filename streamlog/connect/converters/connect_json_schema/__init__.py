"""JsonSchemaConverter: rows of Connect as JSON, with JSON Schemas in a registry."""
