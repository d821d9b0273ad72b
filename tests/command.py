"""Calls the command line in the process of the tests, or in another."""

from __future__ import annotations

import logging
import sys
from functools import cache
from unittest.mock import patch

import pytest
from typer import main as typer_main

from tide.cli import main

# For a process of its own: runs the command lines from standard input, and prints the exit code,
# stdout and stderr of each.
SEVERAL = """
import io, json, sys
from contextlib import redirect_stderr, redirect_stdout
from tide.cli import main
done = []
for sys.argv[1:] in json.load(sys.stdin):
    code = 0
    with redirect_stdout(io.StringIO()) as out, redirect_stderr(io.StringIO()) as err:
        try:
            main()
        except SystemExit as ended:
            code = ended.code or 0
    done.append((code, out.getvalue(), err.getvalue()))
print(json.dumps(done))
"""
# Without a cache, Typer inspects the parameters of all commands at each call.
_get_command = cache(typer_main.get_command)


def tide(*arguments: object) -> int:
    """The exit code of `tide ARGUMENTS`."""
    with (
        patch.object(sys, "argv", ["tide", *map(str, arguments)]),
        patch.object(typer_main, "get_command", _get_command),
        # Later log lines must not go to a stream that belonged to this test.
        patch.object(logging.getLogger("tide"), "handlers", []),
        pytest.raises(SystemExit) as caught,
    ):
        main()
    return int(caught.value.code or 0)
