"""Mirroring: copies topics of other clusters into mirror topics of this one, byte for byte."""
