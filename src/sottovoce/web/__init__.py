"""Pages for people: the consent centre, on loopback."""
