"""A vLLM server, spoken to over HTTP."""

from __future__ import annotations

import json
import ssl
from collections.abc import Mapping
from typing import Any

import aiohttp
import msgspec
import yarl

from ...core.ports import EngineError, EngineGone, GenerateRequest, Generation
from .link import PauseMode
from .ownership import version_named
from .requests import Bounds, sampling

GENERATE = "/inference/v1/generate"
JSON = "application/json"
KEEP_ALIVE_S = 2.5
"""How long an idle connection may be used again. vLLM's server closes it after five seconds, and a request that is just
then on its way is lost."""
HEALTH_S = 10.0
"""For the answer to a health check: one that takes longer shows no life."""
BODY_CHARS = 200
"""How much of an unexpected answer is quoted."""


class HttpLink:
    """A `Link` to the server at `url`. To be made within a running event loop, and closed."""

    def __init__(self, url: str, *, key: str | None = None, tls: ssl.SSLContext | None = None) -> None:
        self.url = url.rstrip("/")
        self._urls: dict[str, yarl.URL] = {}
        """Of the paths that were asked for: a URL is slow to read."""
        self.bounds = Bounds()
        self.owner = ""
        self._session = aiohttp.ClientSession(
            headers={"Authorization": f"Bearer {key}"} if key else {},
            # Whatever is in flight has a connection of its own: one that waited for another's would be late, and
            # its request not in vLLM's queue, where it is counted.
            connector=aiohttp.TCPConnector(
                limit=0, ssl=tls if tls is not None else True, keepalive_timeout=KEEP_ALIVE_S
            ),
            timeout=aiohttp.ClientTimeout(total=None),
        )

    async def generate(self, request: GenerateRequest) -> Generation:
        """Sample one completion; see `Link`. Cancelling closes the connection, at which the server aborts it."""
        self.bounds.check(request)
        body = {
            "request_id": request.request,
            "token_ids": list(request.prompt_ids),
            "sampling_params": sampling(request),
        }
        status, answer = await self._send("POST", GENERATE, body=body, trace_parent=request.trace_parent)
        if status in (400, 422):
            raise self.bounds.refusal(said_by(answer), request)
        return _generation(self._expect(status, answer, GENERATE), self.owner)

    async def reach(self, path: str) -> str:
        """Return `path`: a server sees the files of the run where the run sees them."""
        return path

    async def pause(self, mode: PauseMode, *, clear_cache: bool) -> None:
        """Stop scheduling."""
        await self._post("/pause", query={"mode": mode, "clear_cache": str(clear_cache).lower()})

    async def resume(self) -> None:
        """Schedule again."""
        await self._post("/resume")

    async def workers(self, method: str, request: dict[str, Any]) -> list[dict[str, Any]]:
        """Call vLLM's workers."""
        answer = await self._post(
            "/collective_rpc", body={"method": method, "kwargs": {"request": json.dumps(request)}}
        )
        answers: list[dict[str, Any]] = answer["results"]
        return answers

    async def set_version(self, version: str) -> None:
        """Name the weights' version."""
        await self._post("/update_weight_version", body={"new_version": version})

    async def drop_cache(self) -> bool:
        """Forget all keys and values."""
        answer = await self._post("/reset_prefix_cache", query={"reset_running_requests": "true"})
        return bool(answer["success"])

    async def metrics(self) -> str:
        """Return the server's metrics."""
        status, answer = await self._send("GET", "/metrics")
        return str(self._expect(status, answer, "/metrics"))

    async def check_alive(self) -> None:
        """Raise `EngineGone` unless the server answers that it is healthy."""
        self._require_open()
        try:
            async with self._session.get(
                self.url + "/health", timeout=aiohttp.ClientTimeout(total=HEALTH_S)
            ) as answer:
                status = answer.status
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise EngineGone(f"{self.url} does not answer: {_words(error)}") from error
        if status != 200:
            raise EngineGone(f"{self.url} says that it is not healthy (GET /health: {status})")

    async def close(self) -> None:
        """Close all connections. Requests in flight end in `EngineGone`."""
        await self._session.close()

    def _require_open(self) -> None:
        if self._session.closed:
            raise EngineGone(f"{self.url} is not asked any more: the engine was closed")

    async def _post(self, path: str, *, body: Any = None, query: Mapping[str, str] | None = None) -> Any:
        status, answer = await self._send("POST", path, body=body, query=query)
        return self._expect(status, answer, path)

    async def _send(
        self,
        method: str,
        path: str,
        *,
        body: Any = None,
        query: Mapping[str, str] | None = None,
        trace_parent: str = "",
    ) -> tuple[int, Any]:
        """Return status and answer. A failure is an `EngineError` only of a server that is alive.

        Thousands of requests are in flight at once, and their token ids and log-probs are most of what passes here:
        msgspec reads and writes them in a tenth of the time that the standard library takes.
        """
        self._require_open()
        headers = {"traceparent": trace_parent} if trace_parent else {}
        data = None
        if body is not None:
            data, headers["Content-Type"] = msgspec.json.encode(body), JSON
        try:
            async with self._session.request(
                method, self._url(path), data=data, params=query, headers=headers
            ) as answer:
                status, content = answer.status, await answer.read()
                is_json = answer.content_type == JSON
                said = msgspec.json.decode(content) if is_json else content.decode(errors="replace")
        except (aiohttp.ClientError, OSError, msgspec.DecodeError) as error:
            await self.check_alive()
            raise EngineError(f"{self.url}{path}: {_words(error)}") from error
        if status >= 500:
            await self.check_alive()
        return status, said

    def _url(self, path: str) -> yarl.URL:
        url = self._urls.get(path)
        if url is None:
            url = self._urls[path] = yarl.URL(self.url + path)
        return url

    def _expect(self, status: int, answer: Any, path: str) -> Any:
        if status == 200:
            return answer
        message = f"{self.url}{path} answered {status}: {said_by(answer)}"
        if status in (401, 403, 404):
            raise EngineGone(message)  # nothing that trying again would change
        raise EngineError(message)


def said_by(answer: Any) -> str:
    """Return what an answer says, in one line of bounded length."""
    if isinstance(answer, dict) and "error" in answer:
        error = answer["error"]
        answer = error.get("message", error) if isinstance(error, dict) else error
    text = " ".join(str(answer).split())
    return text if len(text) <= BODY_CHARS else f"{text[:BODY_CHARS]}..."


def _generation(answer: dict[str, Any], owner: str) -> Generation:
    choice = answer["choices"][0]
    return Generation(
        token_ids=choice["token_ids"],
        logprobs=[token["logprob"] for token in (choice["logprobs"] or {}).get("content") or ()],
        version_spans=tuple(
            (version_named(span["version"], owner), span["end"] - span["start"])
            for span in choice["weight_versions"] or ()
        ),
        finish_reason=choice["finish_reason"],
        queue_s=0.0,  # the server does not say, and neither how long the whole took it
        engine_s=None,
    )


def _words(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__
