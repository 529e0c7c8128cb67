"""gram: one noisy sum over users, and a linear item model from it."""
