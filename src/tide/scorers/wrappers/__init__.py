"""Wrappers of scorers: caches, retries, windows, ensembles, calibrations."""
