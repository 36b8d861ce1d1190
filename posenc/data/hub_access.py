"""Is the Hugging Face hub there? Asked before a library waits and retries, and said in two lines."""

from __future__ import annotations

import os
import socket
import sys
import threading
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

from posenc.core.errors import RunError

PATIENCE = 3.0  # seconds for name look-up and connection together


def endpoint() -> str:
    """The address of the hub: `HF_ENDPOINT` or the public one."""
    return os.environ.get("HF_ENDPOINT") or "https://huggingface.co"


def reachable() -> bool:
    """Whether a connection to the hub, or to the proxy before it, opens within three seconds."""
    if switched_off():
        return False
    try:
        url = urlsplit(endpoint())
        proxy = getproxies().get(url.scheme)
        if proxy and not proxy_bypass(url.hostname or ""):
            url = urlsplit(proxy if "://" in proxy else f"http://{proxy}")
        address = (url.hostname or "", url.port or (443 if url.scheme == "https" else 80))
    except ValueError:
        return False
    answered = threading.Event()

    def connect() -> None:
        try:
            socket.create_connection(address, timeout=PATIENCE).close()
            answered.set()
        except OSError:
            pass

    # a thread, because the timeout of a socket does not cover the look-up of its name
    attempt = threading.Thread(target=connect, daemon=True)
    attempt.start()
    attempt.join(PATIENCE)
    return answered.is_set()


def switched_off() -> bool:
    """Whether the environment keeps the hub's libraries from the network."""
    return os.environ.get("HF_HUB_OFFLINE", "").upper() in {"1", "ON", "YES", "TRUE"}


def go_offline() -> None:
    """Keep the hub's libraries from the network, loaded already or not; cached copies still load."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    for module, names in {
        "huggingface_hub.constants": ["HF_HUB_OFFLINE"],
        "datasets.config": ["HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE"],
    }.items():
        for name in names:
            if module in sys.modules:
                setattr(sys.modules[module], name, True)


def unreachable(what: str, ways_out: str) -> RunError:
    """The error for something that is neither cached nor to be had; its second line has the ways out."""
    host = endpoint().rpartition("@")[2].removeprefix("https://")  # an address may hold a password
    return RunError(
        f"{what} is not cached here and the hub ({host}) is out of reach", hint=f"ways out: {ways_out}"
    )
