"""Whether what answers at a URL can serve this run; each refusal is one line, before anything is loaded.

A server that was started by hand may be anything: another program, another model, a vLLM that lacks what a run needs
of it. All of that would show later as something else, so it is asked for first.
"""

from __future__ import annotations

import asyncio
import json
import ssl
from pathlib import Path
from typing import Any

import aiohttp

from .backend import BACKEND, EXTENSION
from .http_link import GENERATE, said_by
from .load import engine_load
from .versions import require_supported

MODEL_KEYS = (
    "model_type",
    "vocab_size",
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "intermediate_size",
)
"""What two models have to agree in, at the least, for one to take the other's weights."""
LOGPROBS_MODE = "processed_logprobs"


class Unusable(Exception):
    """The server cannot serve this run. The message is one line that says why, and what would be right."""


async def check(
    url: str,
    *,
    model_path: Path,
    limit_s: float,
    key: str | None = None,
    key_env: str | None = None,
    tls: ssl.SSLContext | None = None,
) -> None:
    """Return if the server at `url` is a supported vLLM, started as a run needs it, serving the model of the folder.

    Raises `Unusable`, at the latest after `limit_s`. Changes nothing in the server.
    """
    try:
        async with (
            asyncio.timeout(limit_s),
            aiohttp.ClientSession(
                headers={"Authorization": f"Bearer {key}"} if key else {},
                connector=aiohttp.TCPConnector(ssl=tls if tls is not None else True),
            ) as session,
        ):
            server = _Asked(session, url.rstrip("/"))
            await _check_version(server)
            await _check_key(server, key_env)
            await _check_interfaces(server)
            await _check_model(server, model_path)
    except TimeoutError:
        raise Unusable(f"{url} has not answered within {limit_s:g} s") from None
    except aiohttp.ClientSSLError as error:
        raise Unusable(f"{url}: TLS failed: {error}; engine.tls_ca names the authority to trust") from error
    except (aiohttp.ClientError, OSError) as error:
        raise Unusable(f"{url} cannot be reached: {error or type(error).__name__}") from error


class _Asked:
    """A server that is asked questions."""

    def __init__(self, session: aiohttp.ClientSession, url: str) -> None:
        self._session = session
        self.url = url

    async def ask(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        """Return the status of an answer and what it says: parsed if it is JSON, else its text."""
        async with self._session.request(method, self.url + path, json=body) as answer:
            text = await answer.text(errors="replace")
            try:
                return answer.status, json.loads(text)
            except ValueError:
                return answer.status, text


async def _check_version(server: _Asked) -> None:
    status, answer = await server.ask("GET", "/version")
    if status in (401, 403):
        raise Unusable(
            f"{server.url} answered {status} to GET /version: {said_by(answer)}; see engine.api_key_env"
        )
    if status != 200 or not isinstance(answer, dict) or not isinstance(answer.get("version"), str):
        raise Unusable(f"{server.url} is no vLLM server: GET /version answered {status}: {said_by(answer)}")
    try:
        require_supported(answer["version"], f"vLLM at {server.url}")
    except ValueError as error:
        raise Unusable(str(error)) from error


async def _check_key(server: _Asked, key_env: str | None) -> None:
    status, answer = await server.ask("GET", "/v1/models")
    if status in (401, 403):
        why = f"the key in ${key_env}" if key_env else "a request without a key: set engine.api_key_env"
        raise Unusable(f"{server.url} answered {status} to {why}")
    if status != 200:
        raise Unusable(f"{server.url} answered {status} to GET /v1/models: {said_by(answer)}")


async def _check_interfaces(server: _Asked) -> None:
    status, _ = await server.ask("POST", GENERATE, {})
    if status == 404:
        raise Unusable(f"{server.url} does not take token ids: start vLLM with --enable-scale-out")
    status, _ = await server.ask("GET", "/is_paused")
    if status == 404:
        raise Unusable(f"{server.url} does not let itself be paused: start vLLM with VLLM_SERVER_DEV_MODE=1")
    _, metrics = await server.ask("GET", "/metrics")
    try:
        engine_load(str(metrics), server.url)
    except ValueError as error:
        raise Unusable(
            f"{server.url} does not count its tokens ({error}): start vLLM without --disable-log-stats"
        ) from error


async def _check_model(server: _Asked, model_path: Path) -> None:
    request = json.dumps({"keys": MODEL_KEYS})
    status, answer = await server.ask(
        "POST", "/collective_rpc", {"method": "eventrain_describe", "kwargs": {"request": request}}
    )
    if status == 404:
        raise Unusable(f"{server.url} cannot be updated: start vLLM with VLLM_SERVER_DEV_MODE=1")
    if status != 200:
        if "no attribute" in said_by(answer):
            raise Unusable(
                f"{server.url} cannot take weights of this run: start vLLM with --worker-extension-cls {EXTENSION} "
                f"and --weight-transfer-config '{json.dumps({'backend': BACKEND})}'"
            )
        raise Unusable(f"{server.url} does not say what it serves: {said_by(answer)}")
    said = answer["results"][0].get("ok") if answer.get("results") else None
    if said is None:
        raise Unusable(f"{server.url} does not say what it serves: {said_by(answer)}")
    wanted = await asyncio.to_thread(_model_of, model_path)
    for name in MODEL_KEYS:
        if name in wanted and said["model"][name] != wanted[name]:
            raise Unusable(
                f"{server.url} serves another model: its {name} is {said['model'][name]}, that of {model_path} is "
                f"{wanted[name]}"
            )
    if said["logprobs_mode"] != LOGPROBS_MODE:
        raise Unusable(
            f"{server.url} gives {said['logprobs_mode']}, not those of the distribution sampled from: start vLLM with "
            f"--logprobs-mode {LOGPROBS_MODE}"
        )


def _model_of(folder: Path) -> dict[str, Any]:
    path = folder / "config.json"
    try:
        config: dict[str, Any] = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise Unusable(f"{path} cannot be read: {error}") from error
    text: dict[str, Any] = config.get("text_config", config)
    return text
