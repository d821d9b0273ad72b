"""Runs trials: an engine writes answers, a scorer scores them, and failed text is repaired."""
