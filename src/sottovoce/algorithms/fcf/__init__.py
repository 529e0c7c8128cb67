"""FCF, federated collaborative filtering."""
