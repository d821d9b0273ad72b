"""Guard models as scorers: language models that are asked for a verdict, in process or a server."""
