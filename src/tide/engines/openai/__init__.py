"""The engine for any server that completes text, with its words and the parsing of answers."""
