"""llama.cpp's own server with a GGUF file, as `xllamacpp` brings it.

python tests/llama_cpp/serve.py FILE PORT
"""

from __future__ import annotations

import signal
import sys

import xllamacpp

if __name__ == "__main__":
    parameters = xllamacpp.CommonParams()
    parameters.model.path = sys.argv[1]
    parameters.port = int(sys.argv[2])
    parameters.n_parallel = 2
    parameters.n_ctx = 2 * 256
    parameters.cpuparams.n_threads = 1
    # Another request's cached beginning may round a logit differently.
    parameters.cache_prompt = False
    server = xllamacpp.Server(parameters)
    signal.pause()
