"""A model in this process: the engine, its decode loop and their caches."""
