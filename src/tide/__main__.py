"""`python -m tide`, for where the command `tide` is not on the path."""

from tide.cli import program

program()
