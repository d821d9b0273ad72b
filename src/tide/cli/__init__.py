"""The command line. One file a command, or a group of them."""

from __future__ import annotations

import logging
import os
import sys
from importlib.metadata import version


def main() -> None:
    """Entry point: a TideError is one line on stderr and exit code 1, Ctrl-C is 130."""
    if sys.argv[1:] == ["--version"]:  # the answer needs none of the commands
        print(version("tide-detox"))
        return
    from tide.cli.app import app  # noqa: PLC0415
    from tide.cli.display import ERRORS  # noqa: PLC0415
    from tide.errors import TideError  # noqa: PLC0415

    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(levelname)s: %(message)s"))
    logging.getLogger("tide").addHandler(handler)
    # Loading bars of a model that loads in a moment would only push the results off the screen.
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    os.environ.setdefault("HF_HUB_VERBOSITY", "error")
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    try:
        app()
    except TideError as error:
        ERRORS.print(f"error: {error}", style="red", highlight=False, markup=False, soft_wrap=True)
        sys.exit(1)
    except KeyboardInterrupt:
        ERRORS.print("stopped", style="yellow")
        sys.exit(130)
