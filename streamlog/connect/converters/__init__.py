"""Converters: keys and values of a topic's bytes as rows with schemas, by Kafka Connect's names.

`converter_of` gives the converter that the settings of a connector or worker name. The service
uses converters where an app has serdes.
"""

from streamlog.connect.converters.converter import Converter, converter_of
from streamlog.connect.converters.json_converter import ConvertedValue, JsonConverter

__all__ = ["ConvertedValue", "Converter", "JsonConverter", "converter_of"]
