"""Limits: budgets that nest, rate limits and concurrency."""
