"""Calls for `make check`: the type checker knows the keywords, and reports an unused `ignore`."""

import tide

tide.Detoxifier(num_samples=3, mu=None)
tide.Detoxifier(num_sampels=3)  # type: ignore[call-arg]
tide.AsyncDetoxifier(num_samples="3")  # type: ignore[arg-type]
tide.Detoxifier()("a prompt", temprature=1.0)  # type: ignore[call-arg]
tide.AsyncDetoxifier(num_sampels=3)  # type: ignore[call-arg]
