"""The Hugging Face hub: whether it can be reached, and the error if it cannot."""

from __future__ import annotations

import functools
import os
import socket
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

from posenc.core.errors import RunError, first_line
from posenc.core.library_calls import run_interruptible

PROBE_SECONDS = 3.0  # for name look-up and connection together
OFFLINE = "HF_HUB_OFFLINE"  # environment variable of the hub's libraries
WAYS_OUT = (
    "posenc data prepare on a machine with network, and copy its POSENC_CACHE here; "
    "data=files data.paths=FOLDER; data=sympy"
)


def endpoint() -> str:
    """Return the address of the hub: `HF_ENDPOINT` or the public one."""
    return os.environ.get("HF_ENDPOINT") or "https://huggingface.co"


def reachable() -> bool:
    """Tell whether a connection to the hub, or to the proxy in front of it, opens within three seconds.

    It is tried once. If it fails, the hub's own libraries are told to stay offline. Otherwise they would go
    on trying for 23 s.
    """
    if os.environ.get(OFFLINE, "").upper() in {"1", "ON", "YES", "TRUE"}:
        return False
    if _connects(endpoint()):
        return True
    go_offline()
    return False


def go_offline() -> None:
    """Make `reachable` return False from now on, and keep the hub's libraries from trying."""
    os.environ[OFFLINE] = "1"


# A sweep asks for each of its jobs, and a hub that is out of reach would cost three seconds each time.
@functools.cache
def _connects(address: str) -> bool:
    """Tell whether a connection opens, to the address or to the proxy that serves it."""
    url = urlsplit(address)

    def connect() -> None:
        """Open a connection to the hub, or to the proxy that serves it, and close it."""
        target = url
        # Behind a proxy a direct connection fails, though the hub's libraries reach the hub.
        proxy = getproxies().get(url.scheme)
        if proxy and not proxy_bypass(url.hostname or ""):
            target = urlsplit(proxy if "://" in proxy else f"http://{proxy}")
        port = target.port or (443 if target.scheme == "https" else 80)
        # A connection and no request: that needs no certificate and no library but Python's own.
        socket.create_connection((target.hostname or "", port), timeout=PROBE_SECONDS).close()

    try:
        # the limit is here as well, since that of a socket does not cover the look-up of the name
        run_interruptible(connect, limit=PROBE_SECONDS)
    except (OSError, ValueError):
        return False
    return True


def not_loaded(what: str, error: Exception | None = None, ways_out: str = WAYS_OUT) -> RunError:
    """Return the error for a text or tokenizer that the hub did not give.

    Without an `error` the hub is out of reach, and the cache does not have it.
    """
    if error is None:
        host = endpoint().rpartition("@")[2].removeprefix("https://")  # an address may hold a password
        problem = f"{what} is not cached here and the hub ({host}) is out of reach"
    else:
        problem = f"{what} could not be loaded ({type(error).__name__}: {first_line(error)[:300]})"
    return RunError(problem, hint=f"ways out: {ways_out}")
