"""A model on one or several vLLM servers: the engine, their wire, and the pool that they form."""
