"""The words of a pickled tokenizer are read without unpickling it."""

import pickle
from typing import Any

from tests.scripts.loading import load_script

ATTRIBUTES = {
    "word_counts": {"filters": 9, "split": 4, "the": 2},
    "filters": "!_",
    "split": " ",
    "word_index": {"filters": 1, "split": 2, "the": 3},
    "index_word": {1: "filters", 2: "split", 3: "the"},
}


class Tokenizer:
    def __init__(self) -> None:
        self.__dict__.update(ATTRIBUTES)


class Hostile(Tokenizer):
    def __reduce__(self) -> tuple[Any, ...]:
        raise_error = (exec, ("raise AssertionError('the pickled file was executed')",))
        return (*raise_error, None, None, iter(ATTRIBUTES.items()))


def test_words_and_separators_of_a_pickled_tokenizer():
    read_tokenizer = load_script("benchmarks/lstm_judge.py").read_tokenizer
    for tokenizer in (Tokenizer(), Hostile()):
        numbers, separators = read_tokenizer(pickle.dumps(tokenizer, protocol=5))
        assert numbers == ATTRIBUTES["word_index"]
        assert separators == "!_"
