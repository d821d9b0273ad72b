"""Settings chosen for a model.

The names that are used from outside are listed in `__init__.pyi`, and imported when first used.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
