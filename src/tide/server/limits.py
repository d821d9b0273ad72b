"""What one server takes on: the options of `tide serve`, each also an environment variable."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field


class Limits(BaseModel):
    """Bounds of a server and of its requests. What goes beyond is refused, never cut short."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    max_body: int = Field(
        default=1 << 20, ge=1024, le=1 << 30, description="Largest request, in bytes."
    )
    max_tokens: int = Field(
        default=1024, ge=1, le=1_000_000, description="Most tokens a client may ask for at once."
    )
    max_choices: int = Field(
        default=32, ge=1, le=4096, description="Most completions of a request: prompts times n."
    )
    max_texts: int = Field(
        default=256, ge=1, le=65_536, description="Most texts of a request for scores."
    )
    max_under_way: int = Field(
        default=256,
        ge=1,
        le=1_000_000,
        description="Most completions in work or waiting; a request for more gets 429.",
    )
    max_waiting_texts: int = Field(
        default=4096,
        ge=1,
        le=1_000_000,
        description="Most texts that wait for scores; a request for more gets 429.",
    )
    request_seconds: float = Field(
        default=120.0, gt=0, le=86_400, description="Longest time of a request; then it gets 504."
    )
    keep_alive: float = Field(
        default=10.0, gt=0, le=3600, description="Seconds after which a silent stream says so."
    )
    drain: float = Field(
        default=30.0, gt=0, le=3600, description="Seconds for open requests after SIGTERM."
    )
    traces: bool = Field(
        default=False,
        description="Let clients see what was not accepted, as the playground does.",
    )
    strict: bool = Field(
        default=False,
        description="Refuse parameters that are not known. Without it, they are ignored and named.",
    )
