"""The engine ``kind = "vllm_server"``: vLLM behind its HTTP server, one that runs already or one of this run."""

from __future__ import annotations

import asyncio
import os
import ssl
import sys
from collections.abc import Sequence

import aiohttp

from ...core.ports import EngineGone, EngineInfo, Weights
from ..engine_setup import EngineSetup
from ..gpus import environment_of
from .arguments import command_line, environment
from .checking import Unusable, check
from .http_link import HttpLink
from .linked import LinkedEngine
from .server_process import ServerProcess

CHECK_S = 30.0
"""For all questions to a server before it is used; a vLLM answers them in some ten milliseconds."""
POLL_S = 0.25
"""Between two looks whether a server that is being started answers."""


class VllmServerEngine(LinkedEngine):
    """The server at `url`, or, where that is None, one that is started with the interpreter ``engine.python``.

    One that is started sees `gpus` (see `gpus.environment_of`). A server at a URL must see the files of the run, at the
    same paths.
    """

    def __init__(
        self, setup: EngineSetup, url: str | None = None, gpus: Sequence[int] | None = None
    ) -> None:
        super().__init__(setup)
        self._url = url
        self._gpus = gpus
        self._process: ServerProcess | None = None
        self._fresh = False
        """Whether the process is prepared and was not used yet."""

    @property
    def pid(self) -> int | None:
        """Process of the server, if it was started here and runs."""
        return self._process.pid if self._process is not None else None

    async def prepare(self) -> None:
        """Start the server and wait until it answers; nothing to do for one that runs already.

        Raises `EngineGone`. Cancelled or failed, it leaves no process behind.
        """
        await self.close()
        if self._url is not None:
            return
        limit_s = self._setup.deadlines.start_s
        try:
            self._process = ServerProcess.start(
                self.name,
                self._setup.section.python or sys.executable,
                command_line(self._arguments),
                {**environment(self._setup.section), **environment_of(self._gpus)},
                self._setup.log_path,
            )
            async with asyncio.timeout(limit_s):
                await self._answers(self._process)
        except TimeoutError as error:
            await self.close()
            raise EngineGone(f"{self.name}: vLLM's server did not answer within {limit_s:g} s") from error
        except OSError as error:
            await self.close()
            raise EngineGone(f"{self.name} could not be started: {error}") from error
        except BaseException:
            await self.close()
            raise
        self._fresh = True

    async def require_usable(self) -> None:
        """Return if the server can serve this run; see `checking.check`. Raises `Unusable`, and changes nothing."""
        key, tls = self._credentials()
        await check(
            self._url or (self._process.url if self._process is not None else ""),
            model_path=self._setup.model_path,
            limit_s=min(CHECK_S, self._setup.deadlines.start_s),
            key=key,
            key_env=self._setup.section.api_key_env,
            tls=tls,
        )

    async def start(self, weights: Weights) -> EngineInfo:
        """Check the server, in one line each what is wrong with it, and serve `weights`; see `Engine.start`.

        Raises `EngineGone`, and then, as when it is cancelled, leaves no process behind.
        """
        if not self._fresh or (self._process is not None and self._process.ended() is not None):
            await self.prepare()
        self._fresh = False
        url = self._url or (self._process.url if self._process is not None else "")
        try:
            await self.require_usable()
            key, tls = self._credentials()
        except BaseException as error:
            await self.close()
            if isinstance(error, Unusable):
                raise EngineGone(f"{self.name}: {error}") from error
            raise
        return await self._taken_up(_ServerLink(url, self._process, key=key, tls=tls), weights)

    async def close(self) -> None:
        """Let go of the server, and end it if it was started here. Idempotent.

        Requests in flight end in `EngineGone`.
        """
        self._fresh = False
        await super().close()
        process, self._process = self._process, None
        if process is not None:
            await process.close(self._setup.deadlines.close_s)

    def _credentials(self) -> tuple[str | None, ssl.SSLContext | None]:
        """Return the key and the trust for the servers at URLs. Raises `Unusable`."""
        name, authority = self._setup.section.api_key_env, self._setup.section.tls_ca
        key = os.environ.get(name) if name else None
        if name and not key:
            raise Unusable(f"engine.api_key_env: the environment has no {name}")
        try:
            return key, ssl.create_default_context(cafile=authority) if authority else None
        except (OSError, ssl.SSLError) as error:
            raise Unusable(f"engine.tls_ca: {authority} cannot be used: {error}") from error

    async def _answers(self, process: ServerProcess) -> None:
        """Wait until the server answers. Raises `EngineGone` if it ends instead."""
        async with aiohttp.ClientSession() as session:
            while (how := process.ended()) is None:
                try:
                    async with session.get(process.url + "/health") as answer:
                        if answer.status == 200:
                            return
                except (aiohttp.ClientError, OSError):
                    pass
                await asyncio.sleep(POLL_S)
        raise EngineGone(f"{self.name}: vLLM's server did not start: {how}")


class _ServerLink(HttpLink):
    """A server that may be ours, and then says why it ended."""

    def __init__(
        self, url: str, process: ServerProcess | None, *, key: str | None, tls: ssl.SSLContext | None
    ) -> None:
        super().__init__(url, key=key, tls=tls)
        self._process = process

    async def check_alive(self) -> None:
        """Raise `EngineGone` with what the process said last, or as `HttpLink` does."""
        if self._process is not None and (how := self._process.ended()) is not None:
            raise EngineGone(how)
        await super().check_alive()
