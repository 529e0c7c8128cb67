"""FPL, federated pair-wise learning."""
