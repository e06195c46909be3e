"""Messages as Google's own compiler makes them of a `.proto` text, for tests to read and write."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import google.type
import grpc_tools
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from grpc_tools import protoc

from streamlog.schemas.protobuf.proto_imports import CONFLUENT_FILES


def compiled(folder: Path, text: str, message: str) -> Any:
    """Return the class of a message, by its full name.

    Raises:
        ValueError: the compiler refuses the text.
    """
    for path, known in CONFLUENT_FILES.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(known)
    (folder / "own.proto").write_text(text)
    paths = (
        folder,
        Path(google.type.__path__[0]).parents[1],
        Path(grpc_tools.__path__[0], "_proto"),
    )
    options = [f"-I{path}" for path in paths]
    out = f"--descriptor_set_out={folder / 'own.set'}"
    if protoc.main(["protoc", *options, out, "--include_imports", "own.proto"]):
        raise ValueError(f"protoc refuses {text}")
    found = descriptor_pb2.FileDescriptorSet.FromString((folder / "own.set").read_bytes())
    pool = descriptor_pool.DescriptorPool()
    for file in found.file:
        pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(message))
