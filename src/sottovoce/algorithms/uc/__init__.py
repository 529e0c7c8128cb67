"""UC-FedRec, attribute filters over a recommender."""
