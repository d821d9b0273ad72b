"""Wrappers of scorers: caches, guards, windows, ensembles, calibrations."""
