"""Say which checkpoint of transformers it is: by its weights and code, or by what is read without them."""

from __future__ import annotations

import hashlib
import inspect
from pathlib import Path

from posenc.core.atomic_files import digest_of, read_sealed, sha256_of_file, write_sealed
from posenc.core.paths import cache_dir, expanded
from posenc.running.hf_checkpoint import HfCheckpoint, folder_of, import_transformers, model_class

# transformers reads the second kind where the first is missing.
WEIGHT_FILES = ("*.safetensors", "*.bin")
REMOTE_CODE = "transformers_modules."  # the package into which transformers puts code of a checkpoint


def outline_digest(checkpoint: HfCheckpoint) -> str:
    """Return a digest of what can be read of a checkpoint without its weights.

    It is the key under which the cache keeps a fitted plan. Checkpoints that differ in the values of their
    weights alone have the same.
    """
    folder = folder_of(checkpoint)
    if folder is None:
        return digest_of([checkpoint.path, checkpoint.access.revision])
    # These decide the sizes and the tokens. Of the weights their sizes are enough: a plan needs no values.
    texts = [folder / name for name in ("config.json", "tokenizer.json")]
    digests = [sha256_of_file(file) for file in texts if file.is_file()]
    sizes = [[file.name, file.stat().st_size] for file in _weight_files(folder)]
    return digest_of([digests, sizes])


def id_of_weights(checkpoint: HfCheckpoint) -> str:
    """Return what identifies weights and code: the commit on the hub, or a digest of the files."""
    # Other code with the same weights computes other numbers, and may be edited between two evaluations.
    code = _code_files(checkpoint) if checkpoint.access.trust_remote_code else []
    code_digests = [sha256_of_file(file) for file in code]
    if not checkpoint.is_local:
        # A branch such as `main` moves. The commit that was read does not.
        commit = getattr(checkpoint.config, "_commit_hash", None)
        return " ".join([checkpoint.path, str(commit), *code_digests])
    folder = expanded(checkpoint.path)
    # The same weights with another rotation in config.json are another model.
    sha = hashlib.sha256(folder.joinpath("config.json").read_bytes())
    digests = [_digest_of_weights(file) for file in _weight_files(folder)]
    for digest in (*digests, *code_digests):
        sha.update(bytes.fromhex(digest))
    return sha.hexdigest()


def known_id_of_weights(checkpoint: HfCheckpoint) -> str | None:
    """Return what `id_of_weights` returns; None if weights would have to be read for it."""
    if checkpoint.is_local:
        files = _weight_files(expanded(checkpoint.path))
        if any(read_sealed(_path_of_digest(file)) is None for file in files):
            return None
    return id_of_weights(checkpoint)


def _weight_files(folder: Path) -> list[Path]:
    """Return the files of weights in a folder, in the order of their paths, which a digest needs."""
    files: list[Path] = []
    for pattern in WEIGHT_FILES:
        files += folder.glob(pattern)
    return sorted(files)


def _digest_of_weights(file: Path) -> str:
    """Return the sha256 of a file of weights, from the cache if the file has not changed since.

    Reading 16 GB takes a quarter of a minute, and every evaluation would read them twice.
    """
    path = _path_of_digest(file)
    stored = read_sealed(path)
    if stored is not None:
        return str(stored["sha256"])
    digest = sha256_of_file(file)
    path.parent.mkdir(parents=True, exist_ok=True)
    # The file is sealed, since a digest that was cut would name the
    # records of a model that nobody has measured.
    write_sealed(path, {"sha256": digest})
    return digest


def _path_of_digest(file: Path) -> Path:
    """Return where the cache keeps the digest of a file of weights as it is now."""
    state = file.stat()
    # Size and mtime do not tell: a copy may keep the old mtime. The inode or the ctime is another one then.
    key = [str(file.resolve()), state.st_ino, state.st_size, state.st_mtime_ns, state.st_ctime_ns]
    return cache_dir() / "digests" / f"{digest_of(key)}.json"


def _code_files(checkpoint: HfCheckpoint) -> list[Path]:
    """Return the Python files that came with a model: those in its folder, or those of the hub that run.

    A repository on the hub may take its code from another one, whose commit is not known.
    """
    folders = {expanded(checkpoint.path)}
    if not checkpoint.is_local:
        classes = [model_class(import_transformers(), checkpoint), type(checkpoint.config)]
        # A checkpoint may bring code for its model and take its
        # configuration from transformers, or the reverse.
        remote_classes = [cls for cls in classes if cls.__module__.startswith(REMOTE_CODE)]
        folders = {Path(inspect.getfile(cls)).parent for cls in remote_classes}
    files = [file for folder in folders for file in folder.rglob("*.py")]
    return sorted(file for file in files if file.is_file())
