"""Compatibility of schemas: whether programs with one can read what programs with another write.

`check` (`checks`) compares a schema with those before it, at one of the seven levels (`levels`).
"""

from __future__ import annotations

from streamlog.schemas.compatibility.checks import check, incompatibilities
from streamlog.schemas.compatibility.levels import CompatibilityLevel, Incompatibility

__all__ = ["CompatibilityLevel", "Incompatibility", "check", "incompatibilities"]
