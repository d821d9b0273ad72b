"""`tide serve`: detoxified generation and scoring over HTTP, for existing clients.

gate.py        request checks: keys, size, disconnects, log, metrics
schemas.py     the HTTP schemas of requests and responses
generation.py  maps requests to calls of one AsyncDetoxifier, with limits
scoring.py     HTTP APIs of scoring services
app.py         routes
"""
