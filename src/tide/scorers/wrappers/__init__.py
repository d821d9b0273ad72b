"""Scorer wrappers: caches, windows, ensembles."""
