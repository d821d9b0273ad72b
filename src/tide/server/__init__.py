"""`tide serve`: detoxified generation and scoring over HTTP, for clients that exist already.

gate.py       what every request passes: keys, size, a client that leaves, log, metrics
protocol.py   the wire: what requests may say, what answers look like
serving.py    what requests become: calls of one AsyncDetoxifier, within limits
scoring.py    the wires of services that score
routes.py     addresses
"""
