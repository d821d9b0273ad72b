"""Every reader and writer of files: prompts, labelled texts, records."""
