"""How servers are reached: addresses, and the API key, which is never written anywhere."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import httpx

from agentbench_spec.config import RunConfig, ServersConfig
from agentbench_spec.errors import ConfigError
from agentbench_spec.serving.engines import engine_of

if TYPE_CHECKING:
    from agentbench_spec.serving.client import Client

API_KEY = "OPENAI_API_KEY"
"""The environment variable that OpenAI's clients and SGLang's own benchmark read."""

Connect = Callable[[str], "Client"]
"""Opens a client of the server at a base URL."""

_KEY_FLAGS = ("--api-key", "--admin-api-key")
_SECRET_NAME = re.compile(r"(^|_)(KEY|TOKEN|SECRET|PASSWORD)$")
HIDDEN = "***"


def api_key(given: str | None, environ: Mapping[str, str]) -> str | None:
    """The key to send: the one given, else the environment's; None if there is none.

    Raises ConfigError, without showing it, for a key that cannot stand in a header.
    """
    key = (given or environ.get(API_KEY) or "").strip()
    if not all("!" <= letter <= "~" for letter in key):
        raise ConfigError(f"the API key (--api-key or {API_KEY}) holds blanks or letters that no header can carry")
    return key or None


def hide_key(words: Sequence[str], key: str | None) -> list[str]:
    """A command line that may be written down."""
    return [word.replace(key, HIDDEN) if key else word for word in words]


def connector(config: RunConfig, key: str | None) -> Connect:
    """Clients with the run's time-outs and the key."""
    settings = config.servers

    def connect(base_url: str) -> Client:
        client = engine_of(config.backend).client()  # loads torch, which no address needs
        return client(base_url, timeout_s=settings.request_timeout_s, api_key=key)

    return connect


def refuse_addresses(backend: str, settings: ServersConfig) -> None:
    """Raises ConfigError for a base URL that is none, and for secrets where they would be written to the manifest."""
    for base_url in settings.base_urls:
        _refuse_address(base_url)
    for word in settings.server_args:
        if word.partition("=")[0] in _KEY_FLAGS:
            raise ConfigError(
                f"{backend}.server_args: {word.partition('=')[0]} would be written to the manifest and the log; leave "
                "it out: launched servers listen on 127.0.0.1 only"
            )
    for name in settings.server_env:
        if _SECRET_NAME.search(name.upper()):
            raise ConfigError(
                f"{backend}.server_env.{name} would be written to the manifest; export it in the shell instead: "
                "launched servers inherit the environment"
            )


def _refuse_address(base_url: str) -> None:
    try:
        url = httpx.URL(base_url)
    except httpx.InvalidURL as error:
        raise ConfigError(f"--base-url {base_url!r} is no URL: {error}; write http://HOST:PORT") from None
    if url.scheme not in ("http", "https") or not url.host:
        raise ConfigError(f"--base-url {base_url!r} is no URL of a server; write http://HOST:PORT")
    if url.userinfo:
        raise ConfigError(
            f"--base-url for {url.host} holds a password, which would be written to every row; give a key with "
            f"--api-key or {API_KEY}"
        )
