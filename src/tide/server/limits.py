"""Limits of a server: the options of `tide serve`, each also an environment variable."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field


class Limits(BaseModel):
    """Bounds of a server and of its requests. Excess is refused, never truncated."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    max_body: int = Field(
        default=1 << 20, ge=1024, le=1 << 30, description="Largest request, in bytes."
    )
    max_tokens: int = Field(
        default=1024, ge=1, le=1_000_000, description="Maximum tokens that a request may ask for."
    )
    max_choices: int = Field(
        default=32, ge=1, le=4096, description="Maximum completions of a request: prompts times n."
    )
    max_texts: int = Field(
        default=256, ge=1, le=65_536, description="Maximum texts of a request for scores."
    )
    max_under_way: int = Field(
        default=256,
        ge=1,
        le=1_000_000,
        description="Maximum completions running or queued; beyond it: 429.",
    )
    max_waiting_texts: int = Field(
        default=4096,
        ge=1,
        le=1_000_000,
        description="Maximum texts queued for scoring; beyond it: 429.",
    )
    request_seconds: float = Field(
        default=120.0, gt=0, le=86_400, description="Request timeout, in seconds; then 504."
    )
    keep_alive: float = Field(
        default=10.0, gt=0, le=3600, description="Keep-alive interval of an idle stream (seconds)."
    )
    drain: float = Field(
        default=30.0, gt=0, le=3600, description="Seconds for open requests after SIGTERM."
    )
    traces: bool = Field(
        default=False,
        description="Show rejected texts to clients and on the playground.",
    )
    strict: bool = Field(
        default=False,
        description="Refuse unknown parameters; otherwise they are ignored and named.",
    )
