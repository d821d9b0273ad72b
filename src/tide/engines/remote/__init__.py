"""A model on one or several vLLM servers: the engine, their protocol and their pool."""
