"""Renamed options: the former name is refused with the new one."""

from __future__ import annotations

from collections.abc import Sequence

from tide.core.errors import InputError

_OF_TIDE = ("cosine-threshold", "normalization", "projection", "estimator")
_SWITCHES = ("common-random-numbers", "antithetic")
_OF_LADDER = ("from", "to", "growth", "samples-growth")
_FORMER = {
    **{f"--{name}": f"tide:{name.replace('-', '_')}=VALUE" for name in _OF_TIDE},
    **{f"--{name}": f"tide:{name.replace('-', '_')}=true" for name in _SWITCHES},
    **{f"--no-{name}": f"tide:{name.replace('-', '_')}=false" for name in _SWITCHES},
    **{f"--ladder-{name}": f"ladder:{name.replace('-', '_')}=VALUE" for name in _OF_LADDER},
}


def refuse_former(arguments: Sequence[str]) -> None:
    """Raise InputError if one of the `arguments` is an option by a former name."""
    for argument in arguments:
        if argument == "--":
            return
        option = argument.partition("=")[0]
        if option in _FORMER:
            raise InputError(
                f"{option}: belongs to its strategy now; write --strategy {_FORMER[option]}, "
                "or the same in --methods"
            )
