"""A model on any server that completes text: the engine, its words, and what servers answer."""
