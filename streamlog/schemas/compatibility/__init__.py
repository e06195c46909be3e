"""Compatibility of schemas: whether programs with one can read what programs with another write."""

from __future__ import annotations

from streamlog.schemas.compatibility.levels import CompatibilityLevel, Incompatibility

__all__ = ["CompatibilityLevel", "Incompatibility"]
