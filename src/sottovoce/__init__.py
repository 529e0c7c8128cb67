"""Sottovoce: federated recommendation in which every user decides what leaves the device."""

__version__ = "0.1.0"
