"""Answers of any length: drafted by the model, scored and searched a block at a time."""
