"""Scorer wrappers: caches, windows, ensembles, languages."""
