"""Who answers: the hub and W&B. Nothing is logged in to, no key is shown."""

from __future__ import annotations

from collections.abc import Iterator

from posenc.cli.doctor.finding import Finding


def hub() -> Iterator[Finding]:
    """The Hugging Face hub, and which of its corpora are here."""
    from posenc.data.sources.hub import endpoint, reachable, switched_off

    shown = endpoint().rpartition("@")[2]
    have = cached_corpora()
    told = f"; tokenised already: {', '.join(have)}" if have else "; no corpus of it is tokenised yet"
    if reachable():
        yield Finding("hub", "ok", f"{shown} answers{told}")
    elif switched_off():
        yield Finding("hub", "note", f"switched off by HF_HUB_OFFLINE{told}", "unset it to download corpora")
    else:
        advice = (
            "data=sympy, stdlib and files need no hub; or posenc data prepare elsewhere, and copy HF_HOME"
        )
        yield Finding("hub", "note", f"{shown} does not answer within 3 s{told}", advice)


def cached_corpora() -> list[str]:
    """Names of the corpora from elsewhere of which tokens are cached."""
    from posenc.data.corpus_stats import list_corpora

    return [row["name"] for row in list_corpora() if row["network"] and row["cached"]]


def wandb() -> Iterator[Finding]:
    """A key, and a server that answers."""
    from posenc.tracking.wandb_server import answers, credentials, host_of, requested_mode, server_url

    try:
        url = server_url()
    except Exception:  # not installed, or too old to tell
        yield Finding("W&B", "note", "the package wandb cannot be used", "if you want it: pip install wandb")
        return
    key = credentials(url) is not None
    told = f"key {'found' if key else 'not found'}"
    if (mode := requested_mode()) in ("offline", "disabled"):  # then nobody is asked
        kept = "writes offline runs; wandb sync sends them" if mode == "offline" else "writes nothing"
        yield Finding("W&B", "note", f"{told}; WANDB_MODE asks for {mode}: tracking=wandb {kept}")
        return
    there = answers(url)
    told += f"; {host_of(url)} {'answers' if there else 'does not answer'}"
    if key and there:
        yield Finding("W&B", "ok", f"{told}: tracking=wandb goes online")
    else:
        advice = "tracking=wandb writes offline runs; wandb sync sends them" + (
            "" if key else "; key: wandb login"
        )
        yield Finding("W&B", "note", told, advice)
