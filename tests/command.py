"""The command line, called in the tests' process."""

from __future__ import annotations

import sys
from unittest.mock import patch

import pytest

from tide.cli import main


def tide(*arguments: object) -> int:
    """The exit code of `tide ARGUMENTS`."""
    with (
        patch.object(sys, "argv", ["tide", *map(str, arguments)]),
        pytest.raises(SystemExit) as caught,
    ):
        main()
    return int(caught.value.code or 0)
