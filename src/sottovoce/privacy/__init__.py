"""Releases: what of an update leaves, and at what price."""
