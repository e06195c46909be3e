"""Lines of JSON from a file into a topic with Quix Streams. In the peers' environment, alone."""

import json
import os

from quixstreams import Application
from quixstreams.sources.community.file.formats import JSONFormat
from quixstreams.sources.community.file.local import LocalFileSource


def loads(line):
    return {"_key": "", "_value": json.loads(line), "_timestamp": 0}


def key(record):
    return record["_key"]


def value(record):
    return record["_value"]


def timestamp(record):
    return record["_timestamp"]


app = Application(broker_address=os.environ["PEER_BROKER"], loglevel="ERROR")
source = LocalFileSource(
    os.environ["PEER_PATH"],
    key_setter=key,
    value_setter=value,
    timestamp_setter=timestamp,
    file_format=JSONFormat(compression=None, loads=loads),
)
if __name__ == "__main__":
    app.add_source(source, topic=app.topic(os.environ["PEER_TOPIC"]))
    app.run()
