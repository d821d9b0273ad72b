"""`calibrated:FILE.json`: a scorer whose scores were fitted to labels by isotonic regression.

Isotonic regression is the best fit that never reverses the order of two scores (Zadrozny and Elkan,
2002): it changes what a score of 0.5 means, not which of two texts is more toxic.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from tide.core.errors import InputError
from tide.core.validation import problem
from tide.data.files import read_small
from tide.plugins.options import checked
from tide.scorers.base import Attributed, Floats, Scorer
from tide.scorers.wrappers.base import ScorerWrapper

_Unit = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]


class Calibration(BaseModel):
    """A rising piecewise linear map from raw to calibrated scores of one scorer.

    scorer: the scorer's spec. name: the scorer's name at fitting, with its revision. raw,
    calibrated: the corners of the map, both rising.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    format: Literal["tide-calibration-1"] = "tide-calibration-1"
    scorer: str
    name: str
    labels: str
    texts: int
    raw: tuple[_Unit, ...] = Field(min_length=1)
    calibrated: tuple[_Unit, ...] = Field(min_length=1)

    @model_validator(mode="after")
    def _rising(self) -> Calibration:
        if len(self.raw) != len(self.calibrated):
            raise ValueError("raw and calibrated differ in length")
        if (np.diff(self.raw) <= 0).any() or (np.diff(self.calibrated) < 0).any():
            raise ValueError("raw and calibrated must rise")
        return self

    def __call__(self, scores: Floats) -> Floats:
        return np.asarray(np.interp(scores, self.raw, self.calibrated), dtype=np.float64)

    @classmethod
    def load(cls, path: Path) -> Calibration:
        """Load a calibration. Raises InputError if the file is missing or invalid."""
        try:
            return cls.model_validate_json(read_small(path), strict=True)
        except ValidationError as error:
            raise InputError(f"{path} is not a calibration: {problem(error)}") from None


def fit(scorer: str, name: str, labels: str, scores: Floats, targets: Floats) -> Calibration:
    """Fit the calibration of `scorer` from its scores and labels in [0, 1], both of shape (n,)."""
    from sklearn.isotonic import IsotonicRegression  # noqa: PLC0415  (slow import)

    isotonic = IsotonicRegression(y_min=0.0, y_max=1.0).fit(scores, targets)
    return Calibration(
        scorer=scorer,
        name=name,
        labels=labels,
        texts=len(scores),
        raw=isotonic.X_thresholds_.tolist(),
        calibrated=isotonic.y_thresholds_.tolist(),
    )


class CalibratedScorer(ScorerWrapper):
    """The scorer named in a calibration file, with calibrated scores and unchanged attributes.

    Raises InputError if the file is not a calibration, or if it is for another revision.
    """

    @checked
    def __init__(self, path: str | Path, scorer: Scorer | None = None) -> None:
        from tide.scorers import load_scorer  # noqa: PLC0415  (it loads this module by name)

        self._calibration = Calibration.load(Path(path))
        super().__init__(load_scorer(self._calibration.scorer) if scorer is None else scorer)
        self.threshold = 0.5
        if self._scorer.name != self._calibration.name:
            raise InputError(
                f"{path} was fitted for {self._calibration.name}, not {self._scorer.name}; "
                "fit it again with 'tide scorers calibrate'"
            )
        digest = hashlib.sha256(self._calibration.model_dump_json().encode()).hexdigest()[:8]
        self.name = f"calibrated@{digest}:{self._scorer.name}"

    def score_attributes(self, texts: Sequence[str]) -> Attributed:
        found = super().score_attributes(texts)
        return found._replace(values=self._calibration(found.values))
