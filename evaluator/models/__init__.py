"""Models: the backend protocol, its implementations, prices, the response cache."""
