"""Firstlight: a geo-routed inference mesh. Import everything as `firstlight.…`."""

__version__ = "0.1.0"
