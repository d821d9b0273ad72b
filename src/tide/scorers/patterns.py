"""`regex:FILE` and `presidio`: mail addresses, card numbers and other patterns."""

from __future__ import annotations

import logging
from importlib.metadata import version
from pathlib import Path
from typing import Any

import regex
from pydantic import Field

from tide.core.errors import InputError, ScorerError
from tide.core.optional import require
from tide.data.files import as_text, read_small
from tide.plugins.options import Options
from tide.scorers.disguises import REVISION, digest_of
from tide.scorers.language import ReadingScorer

_SECONDS = 2.0  # limit of a pattern for a text


class PatternScorer(ReadingScorer):
    """path: a UTF-8 file, a regular expression a line, in any case; `#` begins a comment line.

    It searches the readings of the text (`tide.scorers.disguises`). A pattern that takes more than
    two seconds for a text is an error. Raises InputError for a file without patterns, or with one
    that cannot be read.
    """

    def __init__(self, path: str) -> None:
        found: dict[int, regex.Pattern[str]] = {}
        try:
            for number, line in enumerate(as_text(read_small(Path(path)), path).splitlines(), 1):
                if not (pattern := line.strip()) or pattern.startswith("#"):
                    continue
                where = f"{path}: line {number}"
                try:
                    found[number] = regex.compile(pattern, regex.IGNORECASE | regex.V1)
                except (regex.error, RecursionError, OverflowError) as error:
                    raise InputError(f"{where}: not a regular expression: {error}") from None
                if found[number].search("") is not None:
                    raise InputError(f"{where}: matches an empty text, and so every text")
            if not found:
                raise InputError(f"{path}: holds no patterns")
        except InputError as error:
            raise InputError(f"scorer regex: {error}") from None
        self._patterns, self._path = found, path
        self.name = f"regex@{digest_of(one.pattern for one in found.values())}"

    def _read(self, texts: list[str]) -> list[float]:
        return [float(self._matches(text)) for text in texts]

    def _matches(self, text: str) -> bool:
        for number, pattern in self._patterns.items():
            try:
                if pattern.search(text, timeout=_SECONDS):
                    return True
            except TimeoutError:
                raise ScorerError(
                    f"scorer {self.name}: {self._path}: line {number}: takes more than "
                    f"{_SECONDS:g} s for a text; write a simpler pattern"
                ) from None
        return False


# Length and step of the windows that are searched, in characters: some patterns take the square of
# a text's length, and Presidio drops a pattern that takes a minute without an error.
_WINDOW, _STEP = 1024, 768


class PresidioOptions(Options):
    entities: str = Field(
        default="EMAIL_ADDRESS|PHONE_NUMBER|CREDIT_CARD|IBAN_CODE",
        pattern=r"^[A-Z_]+(\|[A-Z_]+)*$",
        description="Entities to find, by Presidio's names, joined by |.",
    )
    language: str = Field(
        default="en", pattern=r"^[a-z]{2}$", description="Language whose patterns are used."
    )


class PresidioScorer(ReadingScorer):
    """The highest confidence of anything found; 0.0 where nothing is.

    Confidences are Presidio's constants: 1.0 with a check sum or an existing domain (mail
    addresses, cards, IBANs), 0.6 for IP addresses, 0.4 for phone numbers. No model of a language
    runs: names of persons and places are not found. Raises InputError for an entity that patterns
    do not find in the language.
    """

    options_class = PresidioOptions
    threshold = 0.4  # of phone numbers

    def __init__(self, options: PresidioOptions) -> None:
        package: Any = require("presidio_analyzer", extra="presidio")
        engines: Any = require("presidio_analyzer.nlp_engine", extra="presidio")
        domains: Any = require("tldextract.tldextract", extra="presidio")
        # Use the list of domains in its package; by default it downloads one.
        domains.TLD_EXTRACTOR = domains.TLDExtract(cache_dir=None, suffix_list_urls=())
        # It warns of each recognizer of another language. Its warnings quote no text.
        logging.getLogger("presidio-analyzer").setLevel(logging.ERROR)
        language, self._entities = options.language, options.entities.split("|")
        engine = engines.NoOpNlpEngine([{"lang_code": language, "model_name": ""}])
        engine.load()
        registry = package.RecognizerRegistry(supported_languages=[language])
        registry.load_predefined_recognizers(languages=[language], nlp_engine=engine)
        known = sorted(registry.get_supported_entities([language]))
        if unknown := [entity for entity in self._entities if entity not in known]:
            raise InputError(
                f"scorer presidio: entities: {unknown[0]} is not found by patterns in "
                f"{language!r}; these are: {', '.join(known)}. Names need a classifier "
                "(hf:ID#LABEL) or a list (lexicon:FILE)"
            )
        self._analyzer = package.AnalyzerEngine(
            registry=registry, nlp_engine=engine, supported_languages=[language]
        )
        self._language = language
        self.name = f"{options.spec('presidio')}@{version('presidio-analyzer')}-{REVISION}"

    def _read(self, texts: list[str]) -> list[float]:
        return [self._confidence(text) for text in texts]

    def _confidence(self, text: str) -> float:
        starts = range(0, max(1, len(text) - _WINDOW + _STEP), _STEP)
        found = [
            finding.score
            for start in starts
            for finding in self._analyzer.analyze(
                text[start : start + _WINDOW], language=self._language, entities=self._entities
            )
        ]
        return float(max(found, default=0.0))
