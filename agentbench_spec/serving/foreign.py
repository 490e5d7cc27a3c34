"""What answered where a server was expected: its kind, its address and its first words."""

from __future__ import annotations

import json
import re
from typing import Any

import httpx

from agentbench_spec.errors import ConfigError

_TITLE = re.compile(r"<title[^>]*>\s*(.*?)\s*</title>", re.IGNORECASE | re.DOTALL)
_WAY_OUT = (
    "check that --base-url names the server itself and no proxy or page before it, and that --backend is its engine"
)
_WORDS = 80


class NotTheServer(ConfigError):
    """Something answers that is no server of this engine, or that stands before one."""


def kind_of(text: str) -> str:
    """What a body is, in words, with its first words or its keys."""
    text = text.strip()
    if not text:
        return "an empty body"
    if text.startswith("<"):
        title = _TITLE.search(text)
        return f"a page of HTML ({_first(title[1] if title else text)})"
    try:
        found = json.loads(text)
    except ValueError:
        if text.startswith(("{", "[")):
            return f"JSON that is cut off or broken ({_first(text)})"
        return f"plain text ({_first(text)})"
    if isinstance(found, dict):
        return f"a JSON object of another form (keys: {', '.join(map(str, list(found)[:6])) or 'none'})"
    return f"JSON that is no object ({_first(text)})"


def refuse_redirect(response: httpx.Response) -> None:
    """Raises NotTheServer for an answer that sends elsewhere, as a log-in page does; it is not followed."""
    if response.is_redirect:
        raise NotTheServer(
            f"{_url(response)} answers {response.status_code}: a redirect to "
            f"{response.headers['location'].partition('?')[0]}; {_WAY_OUT}"
        )


def refuse_page(response: httpx.Response, said: str) -> None:
    """Raises NotTheServer for a redirect, a page, or a route that is not there. said: the body, the key hidden."""
    refuse_redirect(response)
    missing = response.status_code in (httpx.codes.NOT_FOUND, httpx.codes.METHOD_NOT_ALLOWED)
    if missing or (response.status_code == httpx.codes.OK and said.lstrip().startswith("<")):
        raise unlike(response, said)


def unlike(response: httpx.Response, said: str) -> NotTheServer:
    """The error that names what answered. said: the body, the key hidden."""
    return NotTheServer(f"{_url(response)} answers {response.status_code} with {kind_of(said)}; {_WAY_OUT}")


def object_of(response: httpx.Response, said: str, *keys: str) -> dict[str, Any]:
    """The JSON object of an answer, which has one of `keys`. Raises NotTheServer naming what it is instead."""
    try:
        found = response.json()
    except ValueError:
        raise unlike(response, said) from None
    if not isinstance(found, dict) or not any(key in found for key in keys):
        raise unlike(response, said)
    return found


def _url(response: httpx.Response) -> str:
    return str(response.request.url.copy_with(query=None))


def _first(text: str) -> str:
    short = " ".join(text[: 4 * _WORDS].split())[:_WORDS]
    return f"{short!r}{' ...' if len(text) > _WORDS else ''}"
