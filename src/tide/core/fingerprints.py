"""Digests of code and of model folders, for comparison of what made a result with what is there."""

from __future__ import annotations

import hashlib
import inspect
import json
from collections.abc import Iterator
from pathlib import Path
from types import CodeType
from typing import Any

# Weights of at most this many bytes are read whole; larger files by samples of every tensor.
_WHOLE = 1 << 26
_SAMPLES, _SAMPLE = 16, 256
# Files of a model folder besides its weights: config, tokenizer and chat template.
_SMALL = (".json", ".txt", ".model", ".jinja", ".py")
_MAIN = ("__main__", "__mp_main__")
_SIMPLE = (bool, int, float, complex, str, bytes, type(None))


def code_digest(target: Any) -> str:
    """Return a digest of the code of a class, a function or an object's class; "" for TIDE's own.

    The code of an imported module is its whole file, since a class uses functions beside it. A
    function without a file or a name (a notebook's, a lambda) is told by its compiled code, the
    functions that it calls, and the values of its closure and defaults. Modules that the code
    imports are not read.
    """
    parts = list(_parts(target, set()))
    return hashlib.sha256(b"\0".join(parts)).hexdigest()[:12] if parts else ""


def _parts(target: Any, seen: set[int]) -> Iterator[bytes]:
    if isinstance(target, _SIMPLE):
        yield repr(target).encode("utf-8", "surrogatepass")
        return
    if id(target) in seen:  # such as a function that calls itself
        return
    seen.add(id(target))
    if isinstance(target, tuple | list | set | frozenset | dict):
        yield f"{type(target).__name__} of {len(target)}".encode()
        items = list(target.items() if isinstance(target, dict) else target)
        if isinstance(target, set | frozenset):
            items.sort(key=repr)
        for item in items:
            yield from _parts(item, seen)
    elif inspect.isclass(target):
        yield from _of_class(target, seen)
    elif inspect.ismethod(target):
        yield from _parts(target.__func__, seen)
        yield from _parts(type(target.__self__), seen)
    elif inspect.isfunction(target):
        yield from _of_function(target, seen)
    elif hasattr(target, "func") and hasattr(target, "keywords"):  # functools.partial
        yield from _parts((target.func, target.args, target.keywords), seen)
    else:
        yield from _parts(type(target), seen)


def _of_class(target: type, seen: set[int]) -> Iterator[bytes]:
    for base in target.__mro__:
        if base.__module__.partition(".")[0] in ("tide", "builtins", "typing", "abc"):
            continue
        yield base.__qualname__.encode()
        if (source := _file_of(base)) is not None:
            yield source
            continue
        for value in vars(base).values():
            inner = getattr(value, "__func__", value)  # of a static or class method
            if inspect.isfunction(inner) or isinstance(value, _SIMPLE):
                yield from _parts(inner, seen)


def _of_function(target: Any, seen: set[int]) -> Iterator[bytes]:
    if target.__module__ is not None and target.__module__.partition(".")[0] == "tide":
        return
    yield target.__qualname__.encode()
    source = _file_of(target)
    if source is not None:
        yield source
    if source is not None and "<" not in target.__qualname__:
        return
    yield from _of_code(target.__code__, seen)
    yield from _parts((target.__defaults__, target.__kwdefaults__), seen)
    for cell in target.__closure__ or ():
        try:
            yield from _parts(cell.cell_contents, seen)
        except ValueError:  # the variable is not set yet
            continue
    if source is None:
        for name in _names(target.__code__):
            value = target.__globals__.get(name)
            if getattr(value, "__module__", None) in _MAIN or isinstance(value, _SIMPLE):
                yield from _parts(value, seen)


def _names(code: CodeType) -> Iterator[str]:
    """Yield the names that a function and the functions inside it look up."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)


def _of_code(code: CodeType, seen: set[int]) -> Iterator[bytes]:
    yield code.co_code
    yield repr(code.co_names).encode()
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _of_code(constant, seen)
        else:
            yield from _parts(constant, seen)


def _file_of(target: Any) -> bytes | None:
    """Return the content of the file that `target` was imported from; None without such a file."""
    if target.__module__ in _MAIN:
        return None
    try:
        return Path(inspect.getfile(target)).read_bytes()
    except (OSError, TypeError):
        return None


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
