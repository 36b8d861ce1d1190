"""Read a checkpoint of transformers, from a folder or from the hub: what it is, and later its weights.

Configuration, tokenizer and the sizes of the weights are read in a moment. They are enough to plan with, to
estimate time and memory, and to refuse what cannot be measured. The weights come last.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from numbers import Real
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import nn

from posenc.core.atomic_files import sha256_of_file
from posenc.core.errors import UserError, first_line
from posenc.core.paths import expanded, is_file, is_folder, looks_local, why_missing
from posenc.data.download_bar import download_bar
from posenc.data.hub import not_loaded, reachable
from posenc.evaluation.models.transformers import rope_settings

WEIGHT_FILES = ("*.safetensors", "*.bin")
REMOTE_CODE = "transformers_modules."  # the package that transformers makes of it
WEIGHTS_NAMED = 3  # in an error
SIZES = ("num_hidden_layers", "num_attention_heads", "hidden_size", "vocab_size")  # of a configuration
HEADER_LENGTH_BYTES = 8  # of a safetensors file, before its header


@dataclass(frozen=True)
class Checkpoint:
    """Hold what is known of a checkpoint before its weights are read."""

    path: str  # as the user gave it: a folder, or a name on the hub
    source: str  # the same for transformers
    options: dict[str, Any]  # revision and the like, for each call of transformers
    config: Any
    tokenizer: Any | None  # None: it has none, or none that can be read

    @property
    def text_config(self) -> Any:
        """Return the configuration of the language model, where a checkpoint has other parts, too."""
        return self.config.get_text_config()

    @property
    def is_local(self) -> bool:
        """Tell whether it is a folder."""
        return is_folder(expanded(self.path))

    @property
    def is_quantised(self) -> bool:
        """Tell whether its weights are stored in a format that transformers unpacks."""
        return bool(getattr(self.config, "quantization_config", None))


def library_of(key: str) -> Any:
    """Return transformers with its messages switched off. Raises UserError if it is not installed."""
    try:
        import transformers
    except ImportError as error:
        raise UserError(key, "hf", "needs transformers", hint="pip install 'posenc[hf]'") from error
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    return transformers


def read_checkpoint(path: str, revision: str, trust_remote_code: bool) -> Checkpoint:
    """Read the configuration and the tokenizer of a checkpoint. Raises UserError."""
    transformers = library_of("subject")
    folder = expanded(path)
    _check_path(path, folder)
    is_local = is_folder(folder)
    source = str(folder) if is_local else path
    options: dict[str, Any] = {
        "revision": revision,
        "trust_remote_code": trust_remote_code,
        "local_files_only": is_local or not reachable(),
    }
    try:
        config = transformers.AutoConfig.from_pretrained(source, **options)
    except Exception as error:  # of many packages; all are final here
        raise _not_read(path, options, error) from error
    _check_config(path, config.get_text_config())
    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(source, **options)
    except Exception:  # said where one is needed
        tokenizer = None
    return Checkpoint(path, source, options, config, tokenizer)


def outline_of(checkpoint: Checkpoint) -> nn.Module:
    """Build the model without its weights: its tensors are on the meta device, but for the rotations.

    Raises UserError.
    """
    transformers = library_of("subject")
    try:
        kind = _model_class(transformers, checkpoint)
        with torch.device("meta"):
            model: nn.Module = _from_config(kind, checkpoint)
        for name, module in list(model.named_modules()):
            # frequencies are computed from the configuration, so these modules are whole
            if hasattr(module, "rope_type") and hasattr(module, "config"):
                rotation: Any = type(module)
                model.set_submodule(name, rotation(module.config))
    except Exception as error:
        raise _not_read(checkpoint.path, checkpoint.options, error) from error
    return model


def load_weights(checkpoint: Checkpoint, dtype: torch.dtype, device_map: str | None) -> nn.Module:
    """Load the model with its weights, of this type unless they are quantised. Raises UserError.

    `device_map` is that of transformers: None leaves the model on the CPU.
    """
    transformers = library_of("subject")
    placed = {} if device_map is None else {"device_map": device_map}
    try:
        model, report = _model_class(transformers, checkpoint).from_pretrained(
            checkpoint.source,
            config=checkpoint.config,
            dtype="auto" if checkpoint.is_quantised else dtype,
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # they are refused below, by name
            **checkpoint.options,
            **placed,
            **_download_options(transformers, checkpoint.path),
        )
    except Exception as error:
        raise _not_read(checkpoint.path, checkpoint.options, error) from error
    _check_weights(checkpoint.path, report)
    loaded: nn.Module = model.eval()
    return loaded


def _download_options(transformers: Any, path: str) -> dict[str, Any]:
    """Return the argument that shows the download of weights by bytes.

    An older transformers does not know it, and would pass it on to the model.
    """
    known = inspect.signature(transformers.utils.hub.cached_files).parameters
    return {"tqdm_class": download_bar(path)} if "tqdm_class" in known else {}


def _model_class(transformers: Any, checkpoint: Checkpoint) -> Any:
    """Return the class that loads the weights: of transformers, or of the code that came with the model.

    AutoModelForCausalLM keeps the class that it loaded first in a process, also once the code was edited.
    """
    options = checkpoint.options
    reference = getattr(checkpoint.config, "auto_map", {}).get("AutoModelForCausalLM")
    if reference is None or not options["trust_remote_code"]:
        return transformers.AutoModelForCausalLM
    load_class = transformers.dynamic_module_utils.get_class_from_dynamic_module
    return load_class(reference, checkpoint.source, **options)


def _from_config(kind: Any, checkpoint: Checkpoint) -> Any:
    """Build a model of a class of transformers, or of its `Auto` class."""
    if hasattr(kind, "from_config"):
        return kind.from_config(checkpoint.config)
    return kind(checkpoint.config)


# --- the type of the weights

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def dtype_name(checkpoint: Checkpoint, asked: str) -> str:
    """Return fp32, bf16 or fp16; `auto` is the type that the checkpoint stores. Raises UserError."""
    if asked != "auto":
        return asked
    stored = checkpoint.text_config.dtype
    if isinstance(stored, str):
        stored = getattr(torch, stored, None)
    names = [name for name, dtype in DTYPES.items() if dtype == stored]
    return names[0] if names else "fp32"


# --- sizes of the weights


@dataclass(frozen=True)
class StoredTensor:
    """Hold name, shape and bytes of a tensor in a file."""

    name: str
    shape: tuple[int, ...]
    bytes: int

    @property
    def numbers(self) -> int:
        """Return how many numbers it has."""
        return math.prod(self.shape)


def stored_tensors(checkpoint: Checkpoint) -> list[StoredTensor] | None:
    """Return the tensors of a checkpoint by the headers of its files; None if they cannot tell."""
    folder = folder_of(checkpoint)
    files = [] if folder is None else sorted(folder.glob("*.safetensors"))
    tensors = [tensor for file in files for tensor in _tensors_of_file(file)]
    return tensors or None


def _tensors_of_file(file: Path) -> list[StoredTensor]:
    """Read the header of a safetensors file: its length, then JSON. A damaged one has no tensors."""
    try:
        with file.open("rb") as stream:
            length = int.from_bytes(stream.read(HEADER_LENGTH_BYTES), "little")
            header = json.loads(stream.read(min(length, file.stat().st_size)))
    except (OSError, ValueError):
        return []
    header.pop("__metadata__", None)
    tensors = []
    for name, entry in header.items():
        begin, end = entry["data_offsets"]
        tensors.append(StoredTensor(name, tuple(entry["shape"]), end - begin))
    return tensors


def folder_of(checkpoint: Checkpoint) -> Path | None:
    """Return the folder with the files; of a name on the hub that of its snapshot, None before a download."""
    if checkpoint.is_local:
        return expanded(checkpoint.path)
    cached_file = library_of("subject").utils.cached_file
    file = cached_file(checkpoint.source, "config.json", revision=checkpoint.options["revision"])
    return None if file is None else Path(file).parent


# --- what is wrong with it


def _check_path(path: str, folder: Path) -> None:
    """Raise UserError for what can be no model: a file, a folder that does not exist, a run of posenc."""
    if is_file(folder):
        raise UserError("subject.path", path, "is a file", allowed="a folder of save_pretrained, or a name")
    if not is_folder(folder) and looks_local(path):
        raise UserError("subject.path", path, why_missing(folder, "folder"))
    if is_file(folder / "status.json"):
        raise UserError("subject.path", path, "is a run of posenc", hint=f"posenc eval run={path}")


def _check_config(path: str, config: Any) -> None:
    """Raise UserError for sizes and rotations that no model has: transformers builds it all the same."""
    for name in SIZES:
        size = getattr(config, name, None)
        if isinstance(size, int) and size < 1:
            problem = f"its config.json says {name}={size}"
            raise UserError("subject.path", path, problem, allowed="a whole number from 1")
    for rotation in rope_settings(config):
        base = rotation.get("rope_theta", 10_000)
        is_number = isinstance(base, Real)
        if not is_number or not 1 < base < math.inf:
            problem = f"its config.json says rope_theta={base}"
            raise UserError("subject.path", path, problem, allowed="a finite number above 1")


def _check_weights(path: str, report: Mapping[str, Any]) -> None:
    """Raise UserError unless every weight in the files has a place in the model, and the other way round.

    transformers draws the missing ones at random and drops the others, both without an error. What it
    reports leaves out buffers that older checkpoints hold, such as masks and frequencies.
    """
    problems = []
    if report["mismatched_keys"]:
        shapes = [f"{name} {tuple(stored)}" for name, stored, _ in report["mismatched_keys"]]
        problems.append(f"weights have another shape than in the model: {_listed(shapes)}")
    if report["missing_keys"]:
        problems.append(f"weights are missing, which would be random: {_listed(report['missing_keys'])}")
    if report["unexpected_keys"]:
        names = _listed(report["unexpected_keys"])
        problems.append(f"weights have no place in the model, and would be dropped: {names}")
    if problems:
        hint = "its config.json is not that of the model whose weights these are"
        raise UserError("subject.path", path, "; ".join(problems), hint=hint)


def _listed(names: Collection[str]) -> str:
    hidden = len(names) - WEIGHTS_NAMED
    more = [f"and {hidden} more"] if hidden > 0 else []
    return ", ".join([*sorted(names)[:WEIGHTS_NAMED], *more])


def _not_read(path: str, options: Mapping[str, Any], error: Exception) -> Exception:
    message = _message_of(error)
    if "trust_remote_code" in str(error):
        hint = "subject.trust_remote_code=true runs the code in it; say so if you trust it"
        return UserError("subject.path", path, "needs code of its own", hint=hint)
    if isinstance(error, SafetensorError):
        return UserError("subject.path", path, f"its weights cannot be read: {message}")
    if is_folder(expanded(path)):
        return UserError("subject.path", path, f"is no causal language model of transformers: {message}")
    ways_out = "subject.path=FOLDER, saved by save_pretrained"
    is_online = not options["local_files_only"]
    return not_loaded(f"the model {path}", error if is_online else None, ways_out)


def _message_of(error: Exception) -> str:
    """Return the first line of an error; with the second one where the first says that it follows."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if len(lines) > 1 and lines[0].endswith(":"):
        return " ".join(lines[:2])
    return first_line(error)


# --- which one it is


def identity_of(checkpoint: Checkpoint) -> str:
    """Return what identifies weights and code: the commit on the hub, or a digest of the files."""
    code = _code_files(checkpoint) if checkpoint.options["trust_remote_code"] else []
    code_digests = [sha256_of_file(file) for file in code]
    if not checkpoint.is_local:
        commit = getattr(checkpoint.config, "_commit_hash", None)
        return " ".join([checkpoint.path, str(commit), *code_digests])
    folder = expanded(checkpoint.path)
    files = [file for pattern in WEIGHT_FILES for file in folder.glob(pattern)]
    sha = hashlib.sha256(folder.joinpath("config.json").read_bytes())
    for digest in (*map(sha256_of_file, sorted(files)), *code_digests):
        sha.update(bytes.fromhex(digest))
    return sha.hexdigest()


def _code_files(checkpoint: Checkpoint) -> list[Path]:
    """Return the Python files that came with a model: those in its folder, or those of the hub that run.

    A repository on the hub may take its code from another one, whose commit is not known.
    """
    sources = {expanded(checkpoint.path)}
    if not checkpoint.is_local:
        kinds = [_model_class(library_of("subject"), checkpoint), type(checkpoint.config)]
        kinds_of_hub = [kind for kind in kinds if kind.__module__.startswith(REMOTE_CODE)]
        sources = {Path(inspect.getfile(kind)).parent for kind in kinds_of_hub}
    files = [file for source in sources for file in source.rglob("*.py")]
    return sorted(file for file in files if file.is_file())
