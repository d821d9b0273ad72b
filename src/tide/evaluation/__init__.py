"""Benchmarks, metrics, perplexity, significance, tables and figures over runs on disk."""
