"""Scorers that are asked over HTTP."""
