"""The engine that runs a model in this process, with its decode loop and caches."""
