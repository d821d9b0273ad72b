"""A model in this process: the engine, its decode loop, and what makes both fast."""
