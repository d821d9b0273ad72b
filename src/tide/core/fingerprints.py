"""Digests of code and of model folders, for comparison of what made a result with what is there."""

from __future__ import annotations

import functools
import hashlib
import inspect
import json
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from types import CodeType
from typing import Any

# Weights of at most this many bytes are read whole; larger files by samples of every tensor.
_WHOLE = 1 << 26
_SAMPLES, _SAMPLE = 16, 256
# Files of a model folder besides its weights: config, tokenizer and chat template.
_SMALL = (".json", ".txt", ".model", ".jinja", ".py")
# Modules whose code is told by the versions of TIDE and Python.
_KNOWN = ("tide", "builtins", "typing", "abc")
_MAIN = ("__main__", "__mp_main__")
_SIMPLE = (bool, int, float, complex, str, bytes, type(None))


def code_digest(target: Any) -> str:
    """Return a digest of the code of a class, a function or an object's class; "" for TIDE's own.

    The code of an imported module is its whole file, since a class uses functions beside it. The
    values of a function's closure and defaults count, too. Of a script or a notebook, only the
    source of the class or function itself is read, not that of functions it calls.
    """
    parts = list(_parts(target, set()))
    return hashlib.sha256(b"\0".join(parts)).hexdigest()[:12] if parts else ""


def _parts(target: Any, seen: set[int]) -> Iterator[bytes]:
    if id(target) in seen:  # such as a function that calls itself
        return
    seen.add(id(target))
    if isinstance(target, functools.partial):
        yield from _parts(target.func, seen)
        yield from _of_values([*target.args, *target.keywords.values()], seen)
    elif inspect.ismethod(target):
        yield from _parts(target.__func__, seen)
        yield from _parts(type(target.__self__), seen)
    elif inspect.isclass(target):
        for base in target.__mro__:
            if base.__module__.partition(".")[0] not in _KNOWN:
                yield base.__qualname__.encode()
                yield _source(base)
                if base.__module__ in _MAIN:
                    yield from _members(base, seen)
    elif not inspect.isfunction(target):
        yield from _parts(type(target), seen)
    elif str(target.__module__).partition(".")[0] not in _KNOWN:
        yield target.__qualname__.encode()
        yield _source(target)
        yield target.__code__.co_code
        yield from _of_values(target.__code__.co_consts, seen)
        yield from _of_values([target.__defaults__, target.__kwdefaults__], seen)
        for cell in target.__closure__ or ():
            with suppress(ValueError):  # the variable is not set yet
                yield from _of_values([cell.cell_contents], seen)


def _members(defined: type, seen: set[int]) -> Iterator[bytes]:
    """Yield the code of the methods and the plain values of a class.

    Python cannot find the source of a class of a notebook, only that of functions.
    """
    for name, value in vars(defined).items():
        function = getattr(value, "__func__", getattr(value, "fget", value))
        if inspect.isfunction(function):
            yield from _parts(function, seen)
        elif isinstance(value, _SIMPLE) and not name.startswith("__"):
            yield f"{name}={value!r}".encode("utf-8", "surrogatepass")


def _of_values(values: Iterable[Any], seen: set[int]) -> Iterator[bytes]:
    for value in values:
        if isinstance(value, _SIMPLE):
            yield repr(value).encode("utf-8", "surrogatepass")
        elif isinstance(value, dict):
            yield from _of_values(value.items(), seen)
        elif isinstance(value, tuple | list):
            yield f"{len(value)} values".encode()
            yield from _of_values(value, seen)
        elif isinstance(value, set | frozenset):
            yield from _of_values(sorted(value, key=repr), seen)
        elif not isinstance(value, CodeType):  # the source of inner functions is read already
            yield from _parts(value, seen)


def _source(code: Any) -> bytes:
    """Return the file of a class or function, or its own lines if it is of a script or notebook."""
    try:
        if code.__module__ in _MAIN:
            return inspect.getsource(code).encode()
        return Path(inspect.getfile(code)).read_bytes()
    except Exception:  # `inspect` raises errors of many kinds if the file was edited meanwhile
        return b""


def weights_digest(folder: Path) -> str:
    """Return a digest of a model folder: its small files, and its weights or samples of them.

    The names and modification times of files do not matter, so that a copy is the same model.
    """
    digest = hashlib.sha256()
    for path in sorted(folder.iterdir()):
        if path.suffix in _SMALL and path.is_file():
            digest.update(path.read_bytes())
        elif path.suffix == ".safetensors" and path.is_file():
            for part in _samples(path):
                digest.update(part)
    return digest.hexdigest()[:12]


def _samples(path: Path) -> Iterator[bytes]:
    """Yield a small file's content, or a large file's header and samples of every tensor."""
    size = path.stat().st_size
    with path.open("rb") as file:
        if size <= _WHOLE:
            yield file.read()
            return
        length = int.from_bytes(file.read(8), "little")
        header = file.read(length)
        yield header
        for tensor in json.loads(header).values():
            if "data_offsets" not in tensor:  # the entry __metadata__
                continue
            begin, end = tensor["data_offsets"]
            for number in range(_SAMPLES):
                file.seek(8 + length + begin + (end - begin) * number // _SAMPLES)
                yield file.read(_SAMPLE)
