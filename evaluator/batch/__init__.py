"""Batches: rows x templates x models x epochs, scored, counted honestly, and gone on with after a crash."""
