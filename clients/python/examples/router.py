"""A router for OpenAI-style back ends: sends each chat to the engine that has computed most of it.

    pip install ./clients/python starlette uvicorn
    python clients/python/examples/router.py --indexer http://127.0.0.1:8090 gpu-1=http://gpu-1:8000 gpu-2=http://gpu-2:8000

The service knows the engines under the same names (`register`) and has the model's tokenizer (`--tokenizer-dir`). An
engine's score is the number of prompt blocks that it need not compute. The router subtracts the requests that it has
sent to the engine and that are not answered yet, so a busy engine loses a tie. If the service does not answer in time,
the requests alone decide.
"""

import argparse
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import httpx
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import StreamingResponse
from starlette.routing import Route

from flash_indexer import AsyncClient, FlashIndexerError

# Number of prompt blocks that are worth one request less in an engine's queue.
BLOCKS_PER_REQUEST = 8.0


class Router:
    """Chooses engines and forwards requests to them."""

    def __init__(self, indexer: AsyncClient, engines: dict[str, str]) -> None:
        self._indexer = indexer
        self._engines = engines
        self._running: Counter[str] = Counter()
        self._http = httpx.AsyncClient(timeout=None, trust_env=False)

    async def choose(self, chat: dict[str, Any]) -> str:
        """The engine with the longest cached prefix, less its load."""
        try:
            pods = (await self._indexer.score_chat(chat, pods=list(self._engines))).pods
        except FlashIndexerError as error:
            print(f"routing by load alone: {error}")
            pods = {}

        def value(name: str) -> float:
            score = pods[name].score if name in pods else 0.0
            return score - BLOCKS_PER_REQUEST * self._running[name]

        return max(self._engines, key=value)

    async def forward(self, request: Request) -> StreamingResponse:
        """Sends a chat to the chosen engine, and its answer back as it arrives."""
        chat = await request.json()
        name = await self.choose(chat)
        self._running[name] += 1
        try:
            url = self._engines[name] + request.url.path
            answer = await self._http.send(self._http.build_request("POST", url, json=chat), stream=True)
        except BaseException:
            self._running[name] -= 1
            raise

        async def body() -> AsyncIterator[bytes]:
            try:
                async for part in answer.aiter_raw():
                    yield part
            finally:
                await answer.aclose()
                self._running[name] -= 1

        headers = {"content-type": answer.headers.get("content-type", "application/json"), "x-engine": name}
        return StreamingResponse(body(), answer.status_code, headers)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("engines", nargs="+", metavar="NAME=URL")
    parser.add_argument("--indexer", default="http://127.0.0.1:8090", metavar="URL")
    parser.add_argument("--port", type=int, default=8000)
    arguments = parser.parse_args()
    engines = dict(engine.split("=", 1) for engine in arguments.engines)
    router = Router(AsyncClient(arguments.indexer, deadline_s=0.2), engines)
    app = Starlette(routes=[Route("/v1/chat/completions", router.forward, methods=["POST"])])
    uvicorn.run(app, host="127.0.0.1", port=arguments.port)


if __name__ == "__main__":
    main()
