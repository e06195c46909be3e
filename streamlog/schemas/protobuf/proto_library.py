"""The protobuf library, the extra `protobuf`: descriptors, and the pool that links and checks them.

Rule: the only module of this room that loads the library. A descriptor is an object of a class that
the library makes at run time, so its attributes have no types here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from types import ModuleType
from typing import Any, TypeAlias

from streamlog.errors import ConfigError, InvalidSchema
from streamlog.metrics.build_info import install_command

Descriptor: TypeAlias = Any
"""A message of `google/protobuf/descriptor.proto`: a FileDescriptorProto, or a part of one."""

_GOOGLE = (
    *("any", "api", "descriptor", "duration", "empty", "field_mask", "source_context", "struct"),
    *("timestamp", "type", "wrappers"),
)
_GOOGLE_TYPES = (
    *("calendar_period", "color", "date", "datetime", "dayofweek", "decimal", "expr", "fraction"),
    *("interval", "latlng", "localized_text", "money", "month", "phone_number", "postal_address"),
    *("quaternion", "timeofday"),
)
_MODULES = {
    **{f"google/protobuf/{name}.proto": f"google.protobuf.{name}_pb2" for name in _GOOGLE},
    **{f"google/type/{name}.proto": f"google.type.{name}_pb2" for name in _GOOGLE_TYPES},
}
"""The modules of well-known files; those of google/type are in `googleapis-common-protos`."""


def load_library(name: str = "descriptor_pb2") -> ModuleType:
    """Return a module of the library.

    Raises:
        ConfigError: protobuf is not installed.
    """
    try:
        return import_module(f"google.protobuf.{name}")
    except ImportError as error:
        raise ConfigError(
            f"Protobuf schemas need the extra protobuf: {install_command('protobuf')}"
        ) from error


def new_file(name: str) -> Descriptor:
    """Return an empty descriptor of a file."""
    return load_library().FileDescriptorProto(name=name)


def read_file(data: bytes) -> Descriptor:
    """Return the descriptor of a file from its bytes.

    Raises:
        InvalidSchema: the bytes are no FileDescriptorProto.
    """
    try:
        file = load_library().FileDescriptorProto.FromString(data)
    except load_library("message").DecodeError as error:
        raise InvalidSchema("The schema is no serialized FileDescriptorProto") from error
    if not file.IsInitialized() or not _has_only_text(file):
        raise InvalidSchema(
            "The FileDescriptorProto lacks a field, or has a text that is not UTF-8"
        )
    return file


def _has_only_text(message: Descriptor) -> bool:
    """Whether all texts of a descriptor are Unicode; the library leaves others as bytes."""
    waiting = [message]
    while waiting:
        for known, value in waiting.pop().ListFields():
            # A map is in an option of others alone, which a process may know; proto3 checks it.
            if known.message_type is not None and known.message_type.GetOptions().map_entry:
                continue
            values = value if known.is_repeated else (value,)
            if known.type == known.TYPE_MESSAGE:
                waiting += values
            elif known.type == known.TYPE_STRING and any(isinstance(x, bytes) for x in values):
                return False
    return True


def well_known_file(path: str) -> Descriptor | None:
    """Return a file that every schema may import without a reference; None if it is none."""
    # A path of a user's is never imported as a module.
    if path not in _MODULES:
        return None
    try:
        return read_file(import_module(_MODULES[path]).DESCRIPTOR.serialized_pb)
    except ImportError:
        return None


def link_files(files: Sequence[Descriptor]) -> Mapping[str, Descriptor]:
    """Return files by name with full names of types and all kinds filled in.

    Args:
        files: the files, each after those that it imports.

    Raises:
        InvalidSchema: a type is unknown, a name or number is used twice, and what else the library
            refuses.
    """
    pool = load_library("descriptor_pool").DescriptorPool()
    linked: dict[str, Descriptor] = {}
    for each in files:
        try:
            found = pool.AddSerializedFile(each.SerializeToString())
        except TypeError as error:
            # The library's only error for it, with the reason after a colon.
            reason = str(error).partition("descriptor pool: ")[2] or str(error)
            raise InvalidSchema(f"The Protobuf file {each.name} is invalid: {reason}") from error
        # The library has resolved names by the scopes around them: these are full ones.
        linked[each.name] = load_library().FileDescriptorProto()
        found.CopyToProto(linked[each.name])
    return linked
