"""Scorers that query a service over HTTP."""
