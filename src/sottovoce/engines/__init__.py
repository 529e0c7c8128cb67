"""How messages travel: simulation, and Flower."""
