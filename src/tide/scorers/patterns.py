"""`regex:FILE` and `presidio` find mail addresses, card numbers and other patterns."""

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

_SECONDS = 2.0  # maximum time for one pattern on one text


class PatternScorer(ReadingScorer):
    """Whether a pattern of a file matches a reading of the text (`tide.scorers.disguises`).

    path: a UTF-8 file, one regular expression a line, case-insensitive; `#` begins a comment line.
    A pattern that takes more than two seconds for a text is an error. Raises InputError for a file
    without patterns or with an invalid pattern.
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
                    raise InputError(f"{where} is not a regular expression: {error}") from None
                if found[number].search("") is not None:
                    raise InputError(f"{where} matches an empty text, and therefore every text")
            if not found:
                raise InputError(f"{path} holds no patterns")
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
                    f"scorer {self.name}: {self._path}: line {number} takes more than "
                    f"{_SECONDS:g} s for a text; write a simpler pattern"
                ) from None
        return False


# Length and step, in characters, of the windows to search. Some patterns take time quadratic in the
# text's length, and Presidio silently drops a pattern that takes a minute.
_WINDOW, _STEP = 1024, 768


class PresidioOptions(Options):
    entities: str = Field(
        default="EMAIL_ADDRESS|PHONE_NUMBER|CREDIT_CARD|IBAN_CODE",
        pattern=r"^[A-Z_]+(\|[A-Z_]+)*$",
        description="Presidio's names of the entities to find, joined by |.",
    )
    language: str = Field(
        default="en", pattern=r"^[a-z]{2}$", description="Language of the patterns."
    )


class PresidioScorer(ReadingScorer):
    """The highest confidence among Presidio's findings; 0.0 without a finding.

    Confidences are Presidio's constants: 1.0 with a valid checksum or existing domain (mail
    addresses, cards, IBANs), 0.6 for IP addresses, 0.4 for phone numbers. No language model runs,
    so names of persons and places are not found. Raises InputError for an entity without a pattern
    in the language.
    """

    options_class = PresidioOptions
    threshold = 0.4  # the confidence of phone numbers

    def __init__(self, options: PresidioOptions) -> None:
        package: Any = require("presidio_analyzer", extra="presidio")
        engines: Any = require("presidio_analyzer.nlp_engine", extra="presidio")
        domains: Any = require("tldextract.tldextract", extra="presidio")
        # Use the domains in tldextract's package; by default it downloads a list.
        domains.TLD_EXTRACTOR = domains.TLDExtract(cache_dir=None, suffix_list_urls=())
        # Silence Presidio's warnings about the recognizers of other languages.
        logging.getLogger("presidio-analyzer").setLevel(logging.ERROR)
        language, self._entities = options.language, options.entities.split("|")
        engine = engines.NoOpNlpEngine([{"lang_code": language, "model_name": ""}])
        engine.load()
        registry = package.RecognizerRegistry(supported_languages=[language])
        registry.load_predefined_recognizers(languages=[language], nlp_engine=engine)
        known = sorted(registry.get_supported_entities([language]))
        if unknown := [entity for entity in self._entities if entity not in known]:
            raise InputError(
                f"scorer presidio: entities: no pattern for {unknown[0]} in {language!r}; there "
                f"are patterns for {', '.join(known)}. Names need a classifier (hf:ID#LABEL) or a "
                "list (lexicon:FILE)"
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
