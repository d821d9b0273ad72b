"""What holds of the streams of a gateway or guardrail with OpenAI's API.

    python -m benchmarks.streams URL            # with 127.0.0.1:9400 as the server behind URL

The kit is the server behind the gateway and, if the gateway is told so, its scorer. So it knows
what was written, what was scored, and when. `python -m benchmarks.streams --help` has the options.
"""
