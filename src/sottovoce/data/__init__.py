"""Data sets: the interaction table, named sources, importers, splits and the generated town."""
