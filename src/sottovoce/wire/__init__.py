"""All that travels between parties, as bytes and documents."""
