"""The engine for one or several vLLM servers, and the protocol of these servers."""
