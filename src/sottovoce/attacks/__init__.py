"""Attacks: what a party can guess from what it sees. They ship so that nobody takes a protocol for
more than it is."""
