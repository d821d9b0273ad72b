"""A model on one or several vLLM servers: the engine and their protocol."""
