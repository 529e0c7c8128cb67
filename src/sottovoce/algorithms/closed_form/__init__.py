"""The closed-form vectors that FCF and FMF-LDP share."""
