"""The rules of each party, without a network or a disk."""
