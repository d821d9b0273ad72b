"""Scorer wrappers: caches, windows, ensembles, calibrations, languages."""
