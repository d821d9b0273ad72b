"""TIDE: test-time iterative detoxification via embeddings.

The public names are listed in `__init__.pyi`. Each is imported when it is first used, so that
`import tide` loads no torch.
"""

from typing import Any

import lazy_loader

_load, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
__all__ += ["__version__"]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version  # noqa: PLC0415  (slow import)

        return version("tide-detox")
    from tide.core.errors import local_imports  # noqa: PLC0415

    with local_imports():
        return _load(name)
