"""The parties as HTTPS services, and the agents that speak with them."""
