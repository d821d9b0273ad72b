"""`tide serve`: detoxified generation and scoring over HTTP, for existing clients.

gate.py        checks the keys and sizes of requests, notices disconnects, logs and counts requests
schemas.py     the HTTP schemas of requests
answers.py     the formats of answers and errors
messages.py    Anthropic's API
responses.py   OpenAI's /v1/responses
policies.py    named sets of scorer, settings and mode; the API keys that may use them; and each
               policy's AsyncDetoxifier, which also writes drafts
generation.py  answers requests by calls of their policy's AsyncDetoxifier, within limits
monitor.py     writes unscored drafts, and forecasts the changes that enforcing would make
proxy.py       passes monitored requests of a gateway on to its server
guardrail.py   litellm's guardrail
scoring.py     the scoring APIs of Perspective and OpenAI
limits.py      the limits of a server and of one request
telemetry.py   metrics for Prometheus, budgets of policies, spans for OpenTelemetry
app.py         the routes
playground/    the page at /
"""
