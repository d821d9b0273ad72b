"""Keys and addresses of servers, checked where they come in."""

from __future__ import annotations

import os

import httpx
from pydantic import SecretStr

from tide.core.errors import EnvironmentVariableError, InputError
from tide.core.sanitize import hide


def read_key(variable: str, given: str | None = None) -> SecretStr | None:
    """The given key, else that of the environment variable; None without either.

    From then on the key is hidden in every message. Raises EnvironmentVariableError, without the
    key, for one with characters that no HTTP header carries.
    """
    key = (os.environ.get(variable, "") if given is None else given).strip()
    if not key:
        return None
    if not (key.isascii() and key.isprintable() and " " not in key):
        raise EnvironmentVariableError(
            f"{variable}: holds characters that no key has; set the key alone"
        )
    hide(key)
    return SecretStr(key)


def base_url(url: str, name: str) -> str:
    """`url` without a last slash. name: the option or variable that it comes from.

    Raises InputError unless it is http(s)://HOST[:PORT][/PATH]; the error does not quote it. An
    address with a password would end up in logs and records.
    """
    try:
        parts = httpx.URL(url.strip())
        port_fits = parts.port is None or 0 < parts.port < 1 << 16
    except (httpx.InvalidURL, ValueError):
        parts, port_fits = httpx.URL(), False
    if not port_fits or parts.scheme not in ("http", "https") or not parts.host:
        raise InputError(f"{name}: not an address like https://HOST:PORT/PATH")
    if parts.userinfo or parts.query or parts.fragment:
        raise InputError(
            f"{name}: an address with a user, password, query or fragment is not taken, because "
            "addresses are logged; give the key by its environment variable"
        )
    return str(parts).rstrip("/")


def need_key(variable: str, given: str | None = None) -> SecretStr:
    """As `read_key`. Raises EnvironmentVariableError if there is no key."""
    key = read_key(variable, given)
    if key is None:
        raise EnvironmentVariableError(f"no key; set the environment variable {variable}")
    return key
