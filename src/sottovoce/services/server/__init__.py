"""The server of a federation of devices."""
