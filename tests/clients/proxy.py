"""`python -m tests.clients.proxy`: litellm's proxy, by the file CONFIG_FILE_PATH, at any port."""

from __future__ import annotations

import asyncio
import json
import socket
import sys

import uvicorn

if __name__ == "__main__":
    from litellm.proxy.proxy_server import app

    server = uvicorn.Server(uvicorn.Config(app, log_level="warning"))
    with socket.create_server(("127.0.0.1", 0)) as listener:

        async def serve() -> None:
            task = asyncio.create_task(server.serve(sockets=[listener]))
            while not (server.started or task.done()):
                await asyncio.sleep(0.05)
            url = f"http://127.0.0.1:{listener.getsockname()[1]}"
            print(json.dumps({"serving": url}), file=sys.stderr, flush=True)
            await task

        asyncio.run(serve())
