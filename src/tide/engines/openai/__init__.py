"""A model on any server that completes text: the engine, its words, and the parsing of answers."""
