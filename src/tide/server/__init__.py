"""`tide serve`: detoxified generation and scoring over HTTP, for existing clients.

gate.py        request checks: keys, size, disconnects, log, metrics
schemas.py     the HTTP schemas of requests and responses
policies.py    named sets of scorer, settings and mode, and the keys that may use them; a policy's
               AsyncDetoxifier, which also writes drafts and repairs texts
generation.py  maps requests to calls of their policy's AsyncDetoxifier, with limits
monitor.py     unscored drafts, and forecasts of the changes that enforcing would make
guardrail.py   litellm's guardrail; rewrite.py: repairs sentences that fail
scoring.py     HTTP APIs of scoring services
limits.py      the limits of a server and of one request; metrics.py, tracing.py: of Prometheus and
               OpenTelemetry
app.py         routes
"""
