"""The server engine against what may answer at a URL: other programs, other models, and servers that hang or lie."""

from __future__ import annotations

import asyncio
import json
import shutil
import ssl
import subprocess
import time
from collections.abc import Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from vllm_models import CONTEXT_TOKENS, VOCABULARY, ask

from eventrain.adapters.engine_setup import EngineSetup
from eventrain.adapters.vllm import guard
from eventrain.adapters.vllm.backend import EXTENSION
from eventrain.adapters.vllm.ownership import named
from eventrain.adapters.vllm.server import VllmServerEngine
from eventrain.core.config import DeadlineSection, EngineSection, RolloutSection
from eventrain.core.ports import (
    EngineError,
    EngineGone,
    GenerateRequest,
    PromptRefused,
    PromptTooLong,
    Weights,
)

WEIGHTS = Weights(3, "/weights", 2, 1, "abc")


@dataclass
class FakeVllm:
    """A server with vLLM's interface, of which every answer can be replaced or withheld."""

    model: dict[str, Any]
    answers: dict[str, Any] = field(default_factory=dict)
    """Instead of its own: by path, a status, ``(status, body)``, or an exception to break the connection with."""
    hanging: set[str] = field(default_factory=set)
    """Paths that are not answered."""
    asked: list[tuple[str, Any, dict[str, str]]] = field(default_factory=list)
    url: str = ""
    in_flight: int = 0
    in_flight_max: int = 0
    go: asyncio.Event = field(default_factory=asyncio.Event)
    logprobs_mode: str = "processed_logprobs"

    async def answer(self, request: web.Request) -> web.StreamResponse:
        path, text = request.path, await request.text()
        body = json.loads(text) if text else None
        self.asked.append((path, {**request.query, **(body or {})}, dict(request.headers)))
        method = (body or {}).get("method", "")
        if path in self.hanging or method in self.hanging:
            await asyncio.Event().wait()
        said = self.answers.get(method or path)
        if isinstance(said, type):
            assert request.transport is not None
            request.transport.abort()
        if isinstance(said, int):
            said = (said, {"error": {"message": f"says {said}"}})
        status, content = said if said is not None else (200, await self.own(path, body))
        return web.Response(
            status=status,
            text=content if isinstance(content, str) else json.dumps(content),
            content_type="text/plain" if isinstance(content, str) else "application/json",
        )

    async def own(self, path: str, body: Any) -> Any:
        match path:
            case "/version":
                return {"version": "0.32.0"}
            case "/collective_rpc":
                if body["method"] == "eventrain_attach":
                    self.owner = json.loads(body["kwargs"]["request"])["owner"]
                return {"results": [self.worker(body["method"])]}
            case "/metrics":
                return 'vllm:num_requests_running{engine="0"} 1.0\nvllm:generation_tokens_total{engine="0"} 5.0\n'
            case "/inference/v1/generate" if body:
                self.in_flight += 1
                self.in_flight_max = max(self.in_flight, self.in_flight_max)
                try:
                    await self.go.wait()
                finally:
                    self.in_flight -= 1
                spans = [{**span, "version": named(self.owner, span["version"])} for span in CHOICE["weight_versions"]]
                return {"choices": [{**CHOICE, "weight_versions": spans}]}
        return {"success": True}

    def worker(self, method: str) -> dict[str, Any]:
        match method:
            case "eventrain_finish":
                return {
                    "ok": {"version": WEIGHTS.version, "tensors": WEIGHTS.tensors, "digest": WEIGHTS.digest}
                }
            case "eventrain_attach" | "eventrain_describe":
                ours = {
                    "vocabulary": VOCABULARY,
                    "context_tokens": CONTEXT_TOKENS,
                    "slots": 4,
                    "device": "cuda",
                    "node": "far-away",
                }
                return {"ok": {**ours, "logprobs_mode": self.logprobs_mode, "model": self.model}}
            case "eventrain_fetched":
                return {"ok": True}
        return {"ok": None}


CHOICE = {
    "token_ids": [4, 5],
    "logprobs": {"content": [{"token_id": 4, "logprob": -1.5}, {"token_id": 5, "logprob": -0.5}]},
    "weight_versions": [{"version": 2, "start": 0, "end": 1}, {"version": 3, "start": 1, "end": 2}],
    "finish_reason": "stop",
}
MODEL = {
    "model_type": "llama",
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "intermediate_size": 64,
}


@asynccontextmanager
async def serving(fake: FakeVllm, tls: ssl.SSLContext | None = None) -> Any:
    """Serve `fake` at a free port for the length of the block."""
    app = web.Application()
    app.router.add_route("*", "/{tail:.*}", fake.answer)
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls)
        await site.start()
        port = runner.addresses[0][1]
        fake.url = f"{'https' if tls else 'http'}://127.0.0.1:{port}"
        yield fake
    finally:
        await runner.cleanup()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder with the configuration of the model."""
    (tmp_path / "config.json").write_text(json.dumps(MODEL))
    return tmp_path


@pytest.fixture
def engine_at(folder: Path) -> Callable[..., VllmServerEngine]:
    """Return the maker of engines at a URL."""

    def make(
        url: str, start_s: float = 5, weight_sync_s: float = 4, llm_call_s: float = 600, **settings: Any
    ) -> VllmServerEngine:
        setup = EngineSetup(
            "engine-0",
            folder,
            EngineSection(kind="vllm_server", urls=[url], **settings),
            RolloutSection(context_tokens=CONTEXT_TOKENS, max_tokens=32),
            folder / "log",
            DeadlineSection(start_s=start_s, weight_sync_s=weight_sync_s, llm_call_s=llm_call_s),
        )
        return VllmServerEngine(setup, url)

    return make


@pytest.fixture(autouse=True)
def _often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard, "LOOK_S", 0.02)


def refusal_of(fake: FakeVllm, engine_at: Callable[..., VllmServerEngine], **settings: Any) -> str:
    """Return what `start` says of a server, having left it alone."""

    async def start() -> str:
        async with serving(fake):
            with pytest.raises(EngineGone) as refused:
                await engine_at(fake.url, **settings).start(WEIGHTS)
        assert not any("begin" in str(body) or path == "/pause" for path, body, _ in fake.asked)
        return str(refused.value).replace(fake.url, "URL")

    message = asyncio.run(start())
    assert "\n" not in message
    return message


LACKS_OURS = (500, {"error": {"message": "'Worker' object has no attribute 'eventrain_describe'"}})
COUNTS_NOTHING_SAID = (
    "URL does not count its tokens (its metrics have no vllm:num_requests_running): "
    "start vLLM without --disable-log-stats"
)
LACKS_OURS_SAID = (
    f"URL cannot take weights of this run: start vLLM with --worker-extension-cls {EXTENSION} and "
    """--weight-transfer-config '{"backend": "eventrain_file"}'"""
)


@pytest.mark.parametrize(
    ("answers", "message"),
    [
        (
            {"/version": (200, "<p>nginx</p>")},
            "URL is no vLLM server: GET /version answered 200: <p>nginx</p>",
        ),
        ({"/version": 404}, "URL is no vLLM server: GET /version answered 404: says 404"),
        (
            {"/version": (200, {"version": "0.9.1"})},
            "vLLM at URL has version 0.9.1; supported are 0.32 and later, before 0.33",
        ),
        (
            {"/version": (200, {"version": "1.0"})},
            "vLLM at URL has version 1.0; supported are 0.32 and later, before 0.33",
        ),
        ({"/v1/models": 401}, "URL answered 401 to a request without a key: set engine.api_key_env"),
        ({"/v1/models": 403}, "URL answered 403 to a request without a key: set engine.api_key_env"),
        ({"/inference/v1/generate": 404}, "URL does not take token ids: start vLLM with --enable-scale-out"),
        ({"/is_paused": 404}, "URL does not let itself be paused: start vLLM with VLLM_SERVER_DEV_MODE=1"),
        (
            {"/metrics": (200, "process_cpu_seconds_total 3.0")},
            COUNTS_NOTHING_SAID,
        ),
        (
            {"eventrain_describe": LACKS_OURS},
            LACKS_OURS_SAID,
        ),
    ],
)
def test_a_server_that_cannot_serve_is_refused_in_one_line(
    engine_at: Callable[..., VllmServerEngine], answers: dict[str, Any], message: str
) -> None:
    """The line says what answered and what would be right, and nothing was loaded or paused before."""
    assert refusal_of(FakeVllm(MODEL, answers), engine_at) == f"engine-0: {message}"


@pytest.mark.parametrize(
    ("key", "value"), [("vocab_size", 65), ("num_hidden_layers", 3), ("model_type", "qwen2")]
)
def test_another_model_is_refused_with_both_values(
    engine_at: Callable[..., VllmServerEngine], folder: Path, key: str, value: Any
) -> None:
    """A server with weights of another shape could take none of this run's."""
    message = refusal_of(FakeVllm({**MODEL, key: value}), engine_at)
    assert (
        message
        == f"engine-0: URL serves another model: its {key} is {value}, that of {folder} is {MODEL[key]}"
    )


def test_logprobs_of_another_distribution_are_refused(engine_at: Callable[..., VllmServerEngine]) -> None:
    """Raw log-probs would be wrong in training wherever temperature or top_p are not 1."""
    message = refusal_of(FakeVllm(MODEL, logprobs_mode="raw_logprobs"), engine_at)
    assert "gives raw_logprobs" in message
    assert "--logprobs-mode processed_logprobs" in message


def test_a_key_that_is_refused_is_named_by_its_variable(
    engine_at: Callable[..., VllmServerEngine], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The key itself is sent, as a bearer token, and never said."""
    monkeypatch.setenv("THE_KEY", "secret")
    fake = FakeVllm(MODEL, {"/v1/models": 401})
    assert (
        refusal_of(fake, engine_at, api_key_env="THE_KEY")
        == "engine-0: URL answered 401 to the key in $THE_KEY"
    )
    assert fake.asked[-1][2]["Authorization"] == "Bearer secret"


def test_a_key_that_is_not_there_is_missed_before_anything_is_asked(
    engine_at: Callable[..., VllmServerEngine],
) -> None:
    """A variable that is not set is no key."""
    fake = FakeVllm(MODEL)
    message = refusal_of(fake, engine_at, api_key_env="NO_SUCH_KEY")
    assert message == "engine-0: engine.api_key_env: the environment has no NO_SUCH_KEY"
    assert fake.asked == []


def test_a_server_that_is_not_there_is_refused(engine_at: Callable[..., VllmServerEngine]) -> None:
    """Nobody listens at that port."""
    with pytest.raises(EngineGone, match=r"engine-0: http://127\.0\.0\.1:9 cannot be reached: "):
        asyncio.run(engine_at("http://127.0.0.1:9").start(WEIGHTS))


def test_what_is_in_flight_when_an_engine_is_closed_ends_as_gone(
    engine_at: Callable[..., VllmServerEngine],
) -> None:
    """A run closes an engine that it has lost; whatever else was asked of it, or is then, is lost with it."""
    fake = FakeVllm(MODEL, hanging={"/pause"})
    fake.go.clear()

    async def outcome(work: Coroutine[Any, Any, Any]) -> BaseException | None:
        try:
            await work
        except Exception as error:  # noqa: BLE001 - which one is what is tested
            return error
        return None

    async def close() -> list[BaseException | None]:
        async with serving(fake):
            engine = engine_at(fake.url)
            fake.hanging.clear()
            await engine.start(WEIGHTS)
            fake.hanging.add("/pause")
            link = engine._link._link  # type: ignore[union-attr]
            async with asyncio.TaskGroup() as group:
                asked = [
                    group.create_task(outcome(engine.generate(ask("a", [1, 2])))),
                    group.create_task(outcome(engine.pause("pause"))),
                    group.create_task(outcome(link.pause("keep", clear_cache=True))),
                ]
                async with asyncio.timeout(5):
                    while not fake.in_flight:  # noqa: ASYNC110 - it counts
                        await asyncio.sleep(0)
                await engine.close()
            later = [await outcome(work) for work in (link.resume(), link.check_alive())]
            return [task.result() for task in asked] + later

    for error in asyncio.run(close()):
        assert isinstance(error, EngineGone), repr(error)


def test_a_connection_that_the_server_is_about_to_close_is_not_used_again(
    monkeypatch: pytest.MonkeyPatch, engine_at: Callable[..., VllmServerEngine]
) -> None:
    """A vLLM gives an idle connection up after five seconds; a call that goes out on it just then would be lost."""
    passed_s = [0.0]
    monkeypatch.setattr(aiohttp.connector, "monotonic", lambda: time.monotonic() + passed_s[0])
    ports: list[int] = []

    class Noting(FakeVllm):
        async def answer(self, request: web.Request) -> web.Response:
            assert request.transport is not None
            if request.path == "/resume":
                ports.append(request.transport.get_extra_info("peername")[1])
            return await super().answer(request)

    async def resume_after(*pauses_s: float) -> None:
        async with serving(Noting(MODEL)) as fake:
            engine = engine_at(fake.url)
            await engine.start(WEIGHTS)
            for pause_s in pauses_s:
                passed_s[0] += pause_s
                await engine.resume()
            await engine.close()

    asyncio.run(resume_after(0.0, 2.0, 4.9))
    assert ports[0] == ports[1] == ports[2]
    assert ports[3] != ports[2]


def test_a_server_that_does_not_answer_is_refused_in_time(engine_at: Callable[..., VllmServerEngine]) -> None:
    """It hangs at the first question, and the start ends at its deadline."""
    fake = FakeVllm(MODEL, hanging={"/version"})

    async def start() -> None:
        async with serving(fake):
            engine = engine_at(fake.url, start_s=0.2)
            with pytest.raises(EngineGone, match=r"has not answered within 0\.2 s"):
                await engine.start(WEIGHTS)

    asyncio.run(start())


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Return a certificate for 127.0.0.1 that signs itself, and its key."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed")
    folder = tmp_path_factory.mktemp("tls")
    certificate, key = folder / "certificate.pem", folder / "key.pem"
    command = (
        "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=here -addext subjectAltName=IP:127.0.0.1"
    )
    subprocess.run([*command.split(), "-out", certificate, "-keyout", key], check=True, capture_output=True)
    return certificate, key


def test_a_certificate_is_trusted_by_its_authority_alone(
    engine_at: Callable[..., VllmServerEngine], certificate: tuple[Path, Path], fake: FakeVllm
) -> None:
    """A server whose certificate nobody known has signed is refused, and used with engine.tls_ca."""
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(*certificate)

    async def start() -> None:
        async with serving(fake, tls):
            with pytest.raises(EngineGone, match=r"TLS failed: .*engine\.tls_ca names the authority"):
                await engine_at(fake.url).start(WEIGHTS)
            assert fake.asked == []
            engine = engine_at(fake.url, tls_ca=str(certificate[0]))
            assert (await engine.start(WEIGHTS)).slots == 4
            await engine.close()

    asyncio.run(start())


# A server that is fine, and then is not


@pytest.fixture
def fake() -> FakeVllm:
    """Return a server that is fine."""
    return FakeVllm(MODEL)


@asynccontextmanager
async def started(fake: FakeVllm, engine_at: Callable[..., VllmServerEngine], **settings: Any) -> Any:
    """Serve `fake` and start an engine at it, for the length of the block."""
    async with serving(fake):
        engine = engine_at(fake.url, **settings)
        try:
            info = await engine.start(WEIGHTS)
            assert (info.context_tokens, info.slots, info.device, info.node) == (
                CONTEXT_TOKENS,
                4,
                "cuda",
                "far-away",
            )
            yield engine
        finally:
            await engine.close()


def test_a_request_says_all_that_it_samples_by(
    fake: FakeVllm, engine_at: Callable[..., VllmServerEngine]
) -> None:
    """Its own seed, temperature and stops, no default of the server, and the span that it belongs to."""

    async def generate() -> None:
        async with started(fake, engine_at) as engine:
            fake.go.set()
            request = GenerateRequest("57/3/0", [1, 2], 9, 0.7, 0.9, (5,), 42, "00-aa-bb-01")
            answer = await engine.generate(request)
            assert (answer.token_ids, answer.logprobs, answer.finish_reason) == ([4, 5], [-1.5, -0.5], "stop")
            assert answer.version_spans == ((2, 1), (3, 1))

    asyncio.run(generate())
    path, body, headers = fake.asked[-1]
    assert (path, body["request_id"], body["token_ids"]) == ("/inference/v1/generate", "57/3/0", [1, 2])
    said = body["sampling_params"]
    assert (said["temperature"], said["top_p"], said["seed"], said["max_tokens"]) == (0.7, 0.9, 42, 9)
    assert (said["stop_token_ids"], said["ignore_eos"], said["top_k"], said["repetition_penalty"]) == (
        [5],
        True,
        0,
        1.0,
    )
    assert headers["traceparent"] == "00-aa-bb-01"


def test_every_request_in_flight_has_a_connection(
    fake: FakeVllm, engine_at: Callable[..., VllmServerEngine]
) -> None:
    """None of 150 waits on this side for another to end, as it would behind a limit of connections."""

    async def generate() -> None:
        async with started(fake, engine_at) as engine, asyncio.TaskGroup() as group:
            for number in range(150):
                group.create_task(engine.generate(ask(str(number), [1])))
            async with asyncio.timeout(10):
                while fake.in_flight < 150:  # noqa: ASYNC110 - the server counts
                    await asyncio.sleep(0.01)
            fake.go.set()

    asyncio.run(generate())
    assert fake.in_flight_max == 150


@pytest.mark.parametrize(
    ("status", "prompt", "error"),
    [
        (400, [1] * CONTEXT_TOKENS, PromptTooLong),
        (400, [1], PromptRefused),
        (422, [1], PromptRefused),
        (429, [1], EngineError),
        (500, [1], EngineError),
        (503, [1], EngineError),
        (401, [1], EngineGone),
        (404, [1], EngineGone),
    ],
)
def test_a_failed_request_is_told_by_what_trying_again_would_bring(
    fake: FakeVllm,
    engine_at: Callable[..., VllmServerEngine],
    status: int,
    prompt: list[int],
    error: type[Exception],
) -> None:
    """The prompt's fault, the engine's for now, or the end of it."""

    async def generate() -> None:
        async with started(fake, engine_at) as engine:
            fake.answers["/inference/v1/generate"] = status
            with pytest.raises(error):
                await engine.generate(ask("r", prompt))

    asyncio.run(generate())


@pytest.mark.parametrize(
    ("health", "error"), [(200, EngineError), (503, EngineGone), (ConnectionError, EngineGone)]
)
@pytest.mark.parametrize("failure", [500, ConnectionError])
def test_a_failure_is_the_engines_end_only_where_its_health_says_so(
    fake: FakeVllm,
    engine_at: Callable[..., VllmServerEngine],
    failure: Any,
    health: Any,
    error: type[Exception],
) -> None:
    """A broken connection or an internal error alone does not take a living server for dead."""

    async def generate() -> None:
        async with started(fake, engine_at) as engine:
            fake.answers |= {"/inference/v1/generate": failure, "/health": health}
            with pytest.raises(error):
                await engine.generate(ask("r", [1]))

    asyncio.run(generate())


def test_a_server_that_processes_no_tokens_is_gone_though_healthy(
    fake: FakeVllm, engine_at: Callable[..., VllmServerEngine]
) -> None:
    """Its counters stand still while a request is in flight; its health check says 200 all the while."""

    async def generate() -> None:
        async with started(fake, engine_at, llm_call_s=1) as engine:
            with pytest.raises(EngineGone, match="1 requests in flight and has not processed a token"):
                async with asyncio.timeout(10):
                    await engine.generate(ask("stuck", [1]))
            with pytest.raises(EngineGone):
                await engine.generate(ask("later", [1]))

    asyncio.run(generate())


@pytest.mark.parametrize(
    ("hanging", "call"),
    [
        ("/pause", lambda engine: engine.pause("pause")),
        ("/resume", lambda engine: engine.resume()),
        ("eventrain_begin", lambda engine: engine.begin_update(WEIGHTS, 1)),
    ],
)
def test_a_call_that_hangs_ends_at_its_deadline(
    fake: FakeVllm, engine_at: Callable[..., VllmServerEngine], hanging: str, call: Any
) -> None:
    """The engine is given up: what a call that may still arrive will do is not known."""

    async def hang() -> None:
        async with started(fake, engine_at, weight_sync_s=0.5) as engine:
            fake.hanging.add(hanging)
            with pytest.raises(EngineGone, match="has not answered"):
                async with asyncio.timeout(10):
                    await call(engine)
            with pytest.raises(EngineGone):
                await engine.generate(ask("later", [1]))

    asyncio.run(hang())


def test_a_wait_in_a_pause_is_no_sign_of_a_wedge(
    fake: FakeVllm, engine_at: Callable[..., VllmServerEngine]
) -> None:
    """A request waits for as long as the pause takes, and is answered afterwards."""

    async def wait() -> None:
        async with started(fake, engine_at, llm_call_s=0.5) as engine:
            await engine.pause("pause")
            async with asyncio.TaskGroup() as group:
                answer = group.create_task(engine.generate(ask("waiting", [1])))
                await asyncio.sleep(0.4)  # four times what would be a wedge
                assert not answer.done()
                fake.go.set()
                await engine.resume()
            assert answer.result().finish_reason == "stop"

    asyncio.run(wait())


@pytest.mark.parametrize("kv_after_sync", ["recompute", "keep"])
def test_the_cache_is_dropped_between_new_weights_and_the_next_token(
    fake: FakeVllm, engine_at: Callable[..., VllmServerEngine], kv_after_sync: str
) -> None:
    """Unless it is to be kept; and the version is named before anything is sampled."""

    async def update() -> None:
        async with started(fake, engine_at, kv_after_sync=kv_after_sync) as engine:
            fake.asked.clear()
            await engine.begin_update(WEIGHTS, 1)
            await engine.transfer(0, 1)
            await engine.finish_update(1)

    asyncio.run(update())
    steps = [body.get("method", path) for path, body, _ in fake.asked]
    dropped = ["/reset_prefix_cache"] if kv_after_sync == "recompute" else []
    calls = ["/pause", "eventrain_begin", "eventrain_transfer", "eventrain_finish", "/update_weight_version"]
    assert steps == [*calls, *dropped, "/resume"]
    assert fake.asked[0][1] == {"mode": "keep", "clear_cache": "true" if dropped else "false"}


def test_a_cache_that_is_not_dropped_keeps_the_engine_paused(
    fake: FakeVllm, engine_at: Callable[..., VllmServerEngine]
) -> None:
    """Old keys and values are not used with new weights; finishing again, when it works, goes on."""

    async def update() -> None:
        async with started(fake, engine_at) as engine:
            await engine.begin_update(WEIGHTS, 1)
            await engine.transfer(0, 1)
            fake.answers["/reset_prefix_cache"] = (200, {"success": False})
            with pytest.raises(EngineError, match="did not drop its KV cache"):
                await engine.finish_update(1)
            with pytest.raises(EngineError, match="half updated"):
                await engine.resume()
            del fake.answers["/reset_prefix_cache"]
            assert (await engine.finish_update(1)).version == WEIGHTS.version

    asyncio.run(update())
    assert fake.asked[-1][0] == "/resume"


def test_an_engine_that_loads_something_else_does_not_start(
    fake: FakeVllm, engine_at: Callable[..., VllmServerEngine]
) -> None:
    """Its receipt for the first weights differs from what was published."""

    async def start() -> None:
        fake.answers["eventrain_finish"] = (
            200,
            {"results": [{"ok": {"version": 3, "tensors": 1, "digest": "abc"}}]},
        )
        async with serving(fake):
            with pytest.raises(EngineGone, match=r"was to load .*tensors=2.* and has loaded .*tensors=1"):
                await engine_at(fake.url).start(WEIGHTS)

    asyncio.run(start())
    assert fake.asked[-1][0] != "/resume"


def test_workers_that_differ_fail_the_update(
    fake: FakeVllm, engine_at: Callable[..., VllmServerEngine]
) -> None:
    """Each worker of a spread engine counts for itself; one that has something else is not outvoted."""

    async def update() -> None:
        async with started(fake, engine_at) as engine:
            await engine.begin_update(WEIGHTS, 1)
            one = {"ok": {"version": 3, "tensors": 2, "digest": "abc"}}
            other = {"ok": {"version": 3, "tensors": 2, "digest": "xyz"}}
            fake.answers["eventrain_finish"] = (200, {"results": [one, other]})
            with pytest.raises(EngineError, match="answered differently"):
                await engine.finish_update(1)

    asyncio.run(update())


def test_metrics_are_read_as_vllm_counts(fake: FakeVllm, engine_at: Callable[..., VllmServerEngine]) -> None:
    """A server that does not answer has no load, and that is no error."""

    async def sample() -> None:
        async with started(fake, engine_at) as engine:
            load = await engine.sampled()
            assert (load.engine, load.running, load.sampled_tokens) == ("engine-0", 1, 5)
            fake.answers["/metrics"] = 500
            assert await engine.sampled() is None
        assert await engine.sampled() is None

    asyncio.run(sample())
