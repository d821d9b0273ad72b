"""Calls the command line in the process of the tests."""

from __future__ import annotations

import logging
import sys
from functools import cache
from unittest.mock import patch

import pytest
from typer import main as typer_main

from tide.cli import main

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
