"""Is there a hub? Asked once, before its libraries are loaded, since without one they retry for a minute a file."""

from __future__ import annotations

import errno
import os
import re
import socket
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable, Mapping, MutableMapping
from pathlib import Path

from agentbench_spec.engine import embedded
from agentbench_spec.errors import ConfigError

__all__ = ["check_models", "go_offline_if_unreachable", "is_hub_id", "refuse_missing_folder", "unreachable"]

_HUB_ID = re.compile(r"\w[\w.-]*(/[\w.-]+)?")
_TIMEOUT_S = 5.0
_OFFLINE, _ENDPOINT = "HF_HUB_OFFLINE", "HF_ENDPOINT"
_NO_WAY = (errno.ENETUNREACH, errno.EHOSTUNREACH)


def is_hub_id(source: str | None) -> bool:
    """True if a model source can only mean the hub: owner/name (or a bare name), and no such path is there."""
    return (
        bool(source)
        and source != embedded.NAME
        and _HUB_ID.fullmatch(str(source)) is not None
        and not Path(str(source)).exists()
    )


def refuse_missing_folder(source: str) -> None:
    """Raises ConfigError if a model source is a folder that is not there, or that holds no model."""
    folder = Path(source).expanduser()
    if source == embedded.NAME:
        return
    if folder.is_dir() and not (folder / "config.json").is_file():
        raise ConfigError(f"model folder {folder} has no config.json; give the folder that save_pretrained wrote")
    if not folder.is_dir() and (source.startswith((".", "/", "~")) or source.count("/") > 1):
        raise ConfigError(f"model {source!r}: no such folder (looked for {folder.absolute()})")


def check_models(target: str | None, *others: str | None, tell: Callable[[str], None]) -> None:
    """Raises ConfigError for a target whose folder is not there; tells if only the hub's cache can be used.

    others: checkpoints and tokenizers, which may be on the hub, too, and which only their plugins can judge. The hub's
    libraries retry for minutes where the hub does not answer.
    """
    if target is not None:
        refuse_missing_folder(target)
    if told := go_offline_if_unreachable([target, *others], os.environ):
        tell(told)
        if loaded := sys.modules.get("huggingface_hub.constants"):
            loaded.HF_HUB_OFFLINE = True  # type: ignore[attr-defined]  # it read the variable when it was imported


def go_offline_if_unreachable(sources: Iterable[str | None], environ: MutableMapping[str, str]) -> str | None:
    """Set HF_HUB_OFFLINE if a model of `sources` is on the hub and the hub gives no answer; what to tell the user.

    Nothing is asked or set where the variable is set already, "0" included, or where a proxy stands in between.
    """
    if environ.get(_OFFLINE) or environ.get("TRANSFORMERS_OFFLINE") or not any(map(is_hub_id, sources)):
        return None
    endpoint = environ.get(_ENDPOINT) or "https://huggingface.co"
    if _proxied(endpoint) or (why := unreachable(endpoint)) is None:
        return None
    environ[_OFFLINE] = "1"
    return (
        f"the hub {endpoint} gives no answer ({why}), so only what its cache on this machine holds is used; "
        f"{_OFFLINE}=0 makes it try all the same"
    )


def unreachable(endpoint: str, timeout_s: float = _TIMEOUT_S) -> str | None:
    """Why a server cannot be reached within `timeout_s`; None if it answers, whatever it says, or that is unclear."""
    found: list[str | None] = [f"none within {timeout_s:g} s"]
    asking = threading.Thread(target=lambda: found.append(_ask(endpoint, timeout_s)), daemon=True)
    asking.start()
    asking.join(timeout_s)  # the look-up of a name has no time limit of its own
    return found[-1]


def _ask(endpoint: str, timeout_s: float) -> str | None:
    try:
        urllib.request.urlopen(urllib.request.Request(endpoint, method="HEAD"), timeout=timeout_s).close()
    except urllib.error.HTTPError:
        return None
    except urllib.error.URLError as error:
        return _reason(error.reason)
    except OSError as error:
        return _reason(error)
    return None


def _reason(error: object) -> str | None:
    """The words of an error that says there is no way; others, such as an unknown certificate, are for the library."""
    no_way = isinstance(error, socket.gaierror | ConnectionRefusedError | TimeoutError)
    return str(error) if no_way or (isinstance(error, OSError) and error.errno in _NO_WAY) else None


def _proxied(endpoint: str) -> bool:
    proxies: Mapping[str, str] = urllib.request.getproxies()
    host = endpoint.partition("://")[2].partition("/")[0].partition(":")[0]
    return bool({endpoint.partition("://")[0], "all"} & set(proxies)) and not urllib.request.proxy_bypass(host)
