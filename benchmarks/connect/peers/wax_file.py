"""Lines of a file into a topic with Bytewax. In the peers' environment, alone."""

import os

from bytewax import operators as op
from bytewax.connectors.files import FileSource
from bytewax.connectors.kafka import KafkaSink, KafkaSinkMessage
from bytewax.dataflow import Dataflow

flow = Dataflow("lines")
lines = op.input("read", flow, FileSource(os.environ["PEER_PATH"], batch_size=1_000))
messages = op.map("message", lines, lambda line: KafkaSinkMessage(None, line.encode()))
op.output("write", messages, KafkaSink([os.environ["PEER_BROKER"]], os.environ["PEER_TOPIC"]))
