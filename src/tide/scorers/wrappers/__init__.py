"""What stands around other scorers: caches, guards, windows, ensembles, calibrations."""
