"""The device of a person: it asks, learns at home, and sends what the door lets go."""
