"""Readers and writers of files: prompts, labelled texts, records."""
