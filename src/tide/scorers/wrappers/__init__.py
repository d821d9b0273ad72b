"""Wrappers of scorers: caches, windows, ensembles, calibrations."""
