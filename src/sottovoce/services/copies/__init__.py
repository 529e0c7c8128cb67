"""Copies of services' folders and of stores: made while they are in use, as secret as what they
copy, and put back whole or not at all."""
