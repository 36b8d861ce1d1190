"""From the settings of `tokenizer` to a tokenizer: bytes, a BPE trained on the corpus, one from the hub."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from posenc.core.atomic_files import digest_of, read_sealed, write_sealed
from posenc.core.errors import RunError, UserError, visible
from posenc.core.paths import cache_dir, expanded
from posenc.core.signature import check_arguments
from posenc.data.hub_access import reachable, unreachable
from posenc.data.tokenizers import ByteTokenizer, LibraryTokenizer, Text, Tokenizer
from posenc.data.trouble import cache_error
from posenc.data.waiting import heard, one_at_a_time

log = logging.getLogger(__name__)


def check_tokenizer(settings: Mapping[str, Any]) -> None:
    """Raises UserError when the `tokenizer` group's settings are wrong; trains and loads nothing."""
    _checked(settings)


def build_tokenizer(settings: Mapping[str, Any], facts: Text) -> Tokenizer:
    """The tokenizer of the `tokenizer` group's settings, trained on the corpus where it has to be.

    A trained one is kept in the user's cache. Raises UserError for wrong settings, RunError when the hub or
    the cache is out of reach.
    """
    arguments = _checked(settings)
    if settings["name"] == "bpe":
        return _bpe(facts, **arguments)
    if settings["name"] == "hf":
        return _hf(**arguments)
    return ByteTokenizer()


def stored_tokenizer(file: Path) -> dict[str, Any]:
    """The `tokenizer` settings that read a definition kept with a model."""
    return {"name": "hf", "path": str(file), "revision": "main"}


def absolute_tokenizer(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings with a local path made absolute, so that they mean the same from another folder."""
    path = settings.get("path")
    local = isinstance(path, str) and expanded(path).exists()
    return {**settings, **({"path": str(expanded(str(path)).resolve())} if local else {})}


def _no_arguments() -> None:
    """`tokenizer=bytes` has no parameters."""


def _bpe(facts: Text, *, vocab_size: int) -> Tokenizer:
    asked = {"name": "bpe", "vocab_size": vocab_size, "trained_on": facts.train_fingerprint}
    path = cache_dir() / "tokenizers" / f"{digest_of(asked)}.json"
    known = read_sealed(path)
    try:
        if known is None:
            doing = f"training the tokenizer of {vocab_size:,} tokens"
            with one_at_a_time(path.with_suffix(".lock"), doing):
                known = read_sealed(path)
                if known is None:
                    if path.exists():
                        log.warning("the cached tokenizer %s is damaged; it is trained again", path)
                    texts = (d.text.decode() for d in facts.read() if d.split == "train")
                    known = {"definition": heard(partial(_train, vocab_size), texts, doing)}
                    write_sealed(path, known)
    except OSError as error:
        raise cache_error(path.parent, error) from error
    definition: str = known["definition"]
    return LibraryTokenizer("bpe", definition)


def _train(vocab_size: int, texts: Iterable[str]) -> str:
    from tokenizers import Tokenizer as Library
    from tokenizers import decoders, models, pre_tokenizers, trainers

    library = Library(models.BPE())
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    library.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    library.train_from_iterator(texts, trainer)
    definition: str = library.to_str()
    return definition


def _hf(*, path: str, revision: str) -> Tokenizer:
    local = expanded(path)
    file = local / "tokenizer.json" if local.is_dir() else local
    if not file.is_file():
        file = _download(path, revision)
    try:
        return LibraryTokenizer("hf", file.read_text(encoding="utf-8"))
    except Exception as error:  # the library raises bare Exception for a file it cannot take
        problem = f"is not a tokenizer of the `tokenizers` library ({visible(str(error)[:100])})"
        raise UserError("tokenizer.path", visible(path), problem) from error


def _download(name: str, revision: str) -> Path:
    online = reachable()
    from huggingface_hub import hf_hub_download

    try:
        found = hf_hub_download(name, "tokenizer.json", revision=revision, local_files_only=not online)
    except Exception as error:  # of five packages; all final here
        if online:
            raise RunError(
                f"the hub gave no tokenizer {visible(name)}: {visible(str(error)[:200])}",
                hint="ways out: tokenizer.path=FILE for a tokenizer.json; tokenizer=bpe; tokenizer=bytes",
            ) from error
        raise unreachable(
            f"the tokenizer {visible(name)}",
            "copy HF_HOME from a machine with network; tokenizer.path=FILE; tokenizer=bpe; tokenizer=bytes",
        ) from error
    return Path(found)


BUILDERS: dict[str, Callable[..., Any]] = {"bytes": _no_arguments, "bpe": _bpe, "hf": _hf}


def _checked(settings: Mapping[str, Any]) -> dict[str, Any]:
    name = settings.get("name")
    if name not in BUILDERS:
        raise UserError("tokenizer", name, "there is no such tokenizer", allowed=sorted(BUILDERS))
    given = {key: value for key, value in settings.items() if key != "name"}
    arguments = check_arguments(BUILDERS[name], given, "tokenizer")
    if name == "bpe" and not 256 <= arguments["vocab_size"] <= 2**20:
        size = arguments["vocab_size"]
        raise UserError("tokenizer.vocab_size", size, "out of range", allowed="256 (the bytes) to 1048576")
    if name == "hf":
        _check_path(arguments["path"])
    return arguments


def _check_path(path: str) -> None:
    if path in {"", "???"}:
        raise UserError("tokenizer.path", None, "missing", hint="tokenizer.path=FILE, or a name on the hub")
    local = expanded(path)
    if local.is_dir() and not (local / "tokenizer.json").is_file():
        raise UserError("tokenizer.path", visible(path), "this folder holds no tokenizer.json")
    looks_local = path.endswith(".json") or path.startswith((".", "/", "~")) or path.count("/") > 1
    if looks_local and not local.exists():
        raise UserError("tokenizer.path", visible(path), "there is no such file")
