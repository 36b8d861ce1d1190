"""Is there a W&B server to talk to, and a key for it? Found out here, within seconds, without prompts.

`wandb.init` asks for a key on a terminal, raises without one, and waits 100 s for a server that is not there.
What it would find is looked up in the same places and the same order: environment, settings files, netrc.
"""

from __future__ import annotations

import configparser
import http.client
import netrc
import os
import ssl
import threading
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

Mode = Literal["online", "offline", "disabled"]

PROBE_SECONDS = 2.0
MODES: dict[str, Mode] = {  # what WANDB_MODE may say
    "online": "online",
    "run": "online",
    "shared": "online",
    "offline": "offline",
    "dryrun": "offline",
    "disabled": "disabled",
}
# The hosted service answers under two names, and keys saved under either are valid for both.
HOSTED = ("api.forge.coreweave.com", "api.wandb.ai")


def load_wandb() -> Any:
    """The wandb package, told to be quiet before it is imported."""
    # With error reporting on, its exit hook waits 12 s and more for a server that hangs (0.31)
    os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
    os.environ.setdefault("WANDB_SILENT", "true")
    import wandb

    return wandb


def configured(key: str) -> str | None:
    """As wandb would find it: WANDB_<KEY>, then `wandb/settings` here, then the user's settings file."""
    if value := os.environ.get(f"WANDB_{key.upper()}", "").strip():
        return value
    own = Path(os.environ.get("WANDB_CONFIG_DIR") or "~/.config/wandb")
    for file in (Path(os.environ.get("WANDB_DIR") or ".") / "wandb" / "settings", own / "settings"):
        parser = configparser.ConfigParser(interpolation=None)
        try:
            parser.read_string(file.expanduser().read_text(encoding="utf-8"))
        except (OSError, RuntimeError, UnicodeDecodeError, configparser.Error):
            continue  # no such file, no home directory, or one that wandb could not read either
        if value := parser.get("default", key, fallback="").strip():
            return value
    return None


def requested_mode() -> Mode | None:
    """The mode the user's environment asks for; None when it asks for nothing that wandb knows."""
    return MODES.get((configured("mode") or "").lower())


def server_url() -> str:
    """The address of the W&B API: the user's own server or the hosted service of this wandb version."""
    if url := configured("base_url"):
        return url.rstrip("/")
    return str(load_wandb().Settings.model_fields["base_url"].default)


def credentials(url: str) -> dict[str, str] | None:
    """Settings to log in with at `url`; None without a key; empty for a token file, which wandb reads."""
    if key := os.environ.get("WANDB_API_KEY", "").strip():
        return {"api_key": key}
    if os.environ.get("WANDB_IDENTITY_TOKEN_FILE"):
        return {}
    if saved := _netrc_password(url) or configured("api_key"):
        return {"api_key": saved}
    return None


def host_of(url: str) -> str:
    """`host:port` for messages, without any user name and password of the address."""
    return urlsplit(url).netloc.rpartition("@")[2] or url


def answers(url: str) -> bool:
    """Does anything at `url` speak HTTP within 2 s, looking up its name included? Any status will do.

    An open port is not enough: a server that accepts and never answers would hold up the run at every call.
    Proxies of the environment are used as wandb uses them.
    """
    found: list[bool] = []
    # urllib's time-out covers neither name resolution nor the sum of its steps; a thread covers both
    probe = threading.Thread(target=lambda: found.append(_speaks_http(url)), daemon=True)
    probe.start()
    probe.join(PROBE_SECONDS)
    return bool(found and found[0])


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any) -> None:
        return None


def _speaks_http(url: str) -> bool:
    opener = urllib.request.build_opener(_NoRedirect)
    try:
        opener.open(urllib.request.Request(url, method="HEAD"), timeout=PROBE_SECONDS).close()
    except urllib.error.HTTPError:
        return True  # a status such as 404 is an answer
    except urllib.error.URLError as error:
        # whether to trust a certificate is for wandb to decide, with its own settings
        return isinstance(error.reason, ssl.SSLCertVerificationError)
    except (OSError, ValueError, http.client.HTTPException):
        return False
    return True


def _netrc_password(url: str) -> str | None:
    named = os.environ.get("NETRC")
    host = urlsplit(url).netloc
    hosts = HOSTED if host in HOSTED else (host,)
    for file in [named] if named else ["~/.netrc", "~/_netrc"]:
        try:
            entries = netrc.netrc(Path(file).expanduser())
        except (OSError, RuntimeError, UnicodeDecodeError, netrc.NetrcParseError):
            continue
        for name in hosts:
            if (found := entries.authenticators(name)) and found[2]:
                return found[2]
    return None
