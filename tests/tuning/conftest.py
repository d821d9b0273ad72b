from tests.tuning.world import _words

__all__ = ["_words"]
