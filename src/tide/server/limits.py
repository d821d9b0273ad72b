"""Limits of a server. Each limit is an option of `tide serve` and an environment variable."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field


def _up_to(highest: int, default: int, says: str, lowest: int = 1) -> Any:
    return Field(default=default, ge=lowest, le=highest, description=says)


def _seconds(highest: int, default: float, says: str) -> Any:
    return Field(default=default, gt=0, le=highest, description=says)


class Limits(BaseModel):
    """Limits of a server and of its requests. A request over a limit is refused, not truncated."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    max_body: int = _up_to(1 << 30, 1 << 20, "Maximum size of a request, in bytes.", lowest=1024)
    max_tokens: int = _up_to(1_000_000, 100_000, "Maximum tokens that a request may ask for.")
    max_choices: int = _up_to(4096, 32, "Maximum completions of a request: prompts times n.")
    max_texts: int = _up_to(65_536, 256, "Maximum texts of a scoring request.")
    max_under_way: int = _up_to(
        1_000_000, 256, "Maximum completions running or queued; further requests get status 429."
    )
    max_waiting_texts: int = _up_to(
        1_000_000, 4096, "Maximum texts queued for scoring; further requests get status 429."
    )
    request_seconds: float = _seconds(
        86_400, 120.0, "Timeout of a request (status 504) and of a write to its client (seconds)."
    )
    keep_alive: float = _seconds(3600, 10.0, "Keep-alive interval of a stream (seconds).")
    drain: float = _seconds(3600, 30.0, "Time to finish open requests after SIGTERM (seconds).")
    traces: bool = Field(
        default=False, description="Show rejected texts to clients and on the playground."
    )
