"""Names, specs and options of engines, scorers, strategies and baselines."""
