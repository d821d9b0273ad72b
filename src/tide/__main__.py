"""`python -m tide`, for when the command `tide` is not on the path."""

from tide.cli import program

program()
