"""Read a checkpoint of transformers, from a folder or from the hub: what it is, and later its weights.

Configuration and tokenizer are read in a moment, and so are the sizes of the weights (`stored_tensors`). They
are enough to plan, to estimate time and memory, and to refuse what cannot be measured. The weights are read
last. `checkpoint_identity` says which ones they are.
"""

from __future__ import annotations

import copy
import dataclasses
import inspect
import math
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from numbers import Real
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import nn

from posenc.core.errors import UserError, first_few, first_line
from posenc.core.paths import expanded, is_file, is_folder, looks_local, missing_path
from posenc.data.download_bar import download_bar
from posenc.data.hub import not_loaded, reachable
from posenc.evaluation.models.configurations import rope_settings
from posenc.evaluation.models.replaced_parts import ATTENTION_NAME
from posenc.running.weight_types import weight_type_name

ADAPTER = "adapter_config.json"  # of peft: such a folder names the folder with the weights
EAGER = "eager"  # the attention of transformers that makes all scores of a window
WEIGHTS_NAMED = 3  # in an error
SIZES = ("num_hidden_layers", "num_attention_heads", "hidden_size", "vocab_size")  # of a configuration


@dataclass(frozen=True)
class Access:
    """Say how transformers gets at the files of a checkpoint. The fields are its own arguments."""

    revision: str
    trust_remote_code: bool
    local_files_only: bool

    def arguments(self) -> dict[str, Any]:
        """Return them for a call of transformers."""
        return dataclasses.asdict(self)


@dataclass(frozen=True)
class HfCheckpoint:
    """Hold what is known of a checkpoint before its weights are read."""

    path: str  # as the user gave it: a folder, or a name on the hub
    source: str  # the same as transformers takes it: a folder without `~`
    access: Access
    config: Any
    tokenizer: Any | None  # None: it has none, or none that can be read
    tokenizer_file: Path | None = None  # in place of `tokenizer`, if transformers was not asked
    tokenizer_problem: str | None = None  # why it cannot be read, in a line
    attention: str | None = None  # how transformers computes it, as the user chose; None: it chooses

    @property
    def is_plain(self) -> bool:
        """Tell whether it was read without transformers, for a dry run."""
        return self.tokenizer_file is not None

    @property
    def text_config(self) -> Any:
        """Return the configuration of the language model, without that of vision or speech."""
        return self.config.get_text_config()

    @property
    def is_local(self) -> bool:
        """Tell whether it is a folder."""
        return is_folder(expanded(self.path))

    @property
    def is_quantised(self) -> bool:
        """Tell whether its weights are stored in a format that transformers unpacks."""
        return bool(getattr(self.config, "quantization_config", None))


def import_transformers(key: str = "subject", value: str = "hf") -> Any:
    """Return transformers with its messages switched off.

    Raises UserError, which names what was asked for, if it is not installed.
    """
    try:
        # transformers is an extra, posenc[hf], and commands that read
        # no checkpoint do not wait for its import.
        import transformers
    except ImportError as error:
        raise UserError(key, value, "needs transformers", hint="pip install 'posenc[hf]'") from error
    # What it warns of is checked here by name. Its lines and bars would break posenc's own bar.
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    return transformers


def read_hf_checkpoint(path: str, revision: str, trust_remote_code: bool) -> HfCheckpoint:
    """Read the configuration and the tokenizer of a checkpoint. Raises UserError."""
    transformers = import_transformers()
    folder = expanded(path)
    check_path(path, folder)
    is_local = is_folder(folder)
    source = str(folder) if is_local else path
    # Where the hub is out of reach, its library alone would go on trying for 23 s.
    access = Access(revision, trust_remote_code, local_files_only=is_local or not reachable())
    try:
        config = transformers.AutoConfig.from_pretrained(source, **access.arguments())
    except Exception as error:  # transformers passes on the errors of many packages
        raise _reading_error(path, access, error) from error
    check_config(path, config.get_text_config())
    tokenizer = None
    tokenizer_problem = None
    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(source, **access.arguments())
    except Exception as error:  # it is not raised yet: the user may have chosen another tokenizer
        tokenizer_problem = _message_of(error).rstrip(",")
    return HfCheckpoint(path, source, access, config, tokenizer, tokenizer_problem=tokenizer_problem)


def outline_of(checkpoint: HfCheckpoint) -> nn.Module:
    """Build the model without its weights, on the meta device; only its rotations have real tensors.

    Raises UserError.
    """
    transformers = import_transformers()
    try:
        cls = model_class(transformers, checkpoint)
        with torch.device("meta"):
            model: nn.Module = _from_config(cls, checkpoint)
        # The modules are listed first, since some are replaced on the way.
        for name, module in list(model.named_modules()):
            # frequencies follow from the configuration, so that a rotation needs no weights
            if hasattr(module, "rope_type") and hasattr(module, "config"):
                rotation_class: Any = type(module)
                model.set_submodule(name, rotation_class(module.config))
    except Exception as error:
        if checkpoint.attention is not None:
            # If the attention is not the reason, the checkpoint fails without it, too, and says why.
            outline_of(dataclasses.replace(checkpoint, attention=None))
            key = "subject.attention"
            hint = "leave it out: transformers chooses one that works"
            raise UserError(key, checkpoint.attention, first_line(error), hint=hint) from error
        problem = "no model can be made from its config.json"
        raise _reading_error(checkpoint.path, checkpoint.access, error, problem) from error
    return model


def attention_names() -> list[str]:
    """Return the names of the attentions that transformers has, without those for serving (`paged|...`)."""
    names = import_transformers().AttentionInterface().valid_keys()
    return [EAGER, *(name for name in names if "|" not in name and name not in (EAGER, ATTENTION_NAME))]


def load_hf_model(checkpoint: HfCheckpoint, dtype: torch.dtype, device_map: str | None) -> nn.Module:
    """Load the model with its weights in this type; quantised ones stay as they are. Raises UserError.

    `device_map` is that of transformers: None leaves the model on the CPU.
    """
    transformers = import_transformers()
    placement = {} if device_map is None else {"device_map": device_map}
    attention = {} if checkpoint.attention is None else {"attn_implementation": checkpoint.attention}
    try:
        model, report = model_class(transformers, checkpoint).from_pretrained(
            checkpoint.source,
            config=checkpoint.config,
            dtype="auto" if checkpoint.is_quantised else dtype,
            # Without it transformers would only log which weights are random.
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # they are refused below, by name
            **checkpoint.access.arguments(),
            **placement,
            **attention,
            **_download_options(transformers, checkpoint.path),
        )
    except Exception as error:
        problem = "its weights cannot be loaded"
        raise _reading_error(checkpoint.path, checkpoint.access, error, problem) from error
    _check_weights(checkpoint.path, report)
    loaded: nn.Module = model.eval()
    return loaded


def _download_options(transformers: Any, path: str) -> dict[str, Any]:
    """Return the argument that shows the download of weights by bytes.

    An older transformers does not know the argument, and would pass it on to the model.
    """
    parameters = inspect.signature(transformers.utils.hub.cached_files).parameters
    return {"tqdm_class": download_bar(path)} if "tqdm_class" in parameters else {}


def model_class(transformers: Any, checkpoint: HfCheckpoint) -> Any:
    """Return the class that loads the weights: of transformers, or of the code that came with the model.

    The latter is looked up here each time, because AutoModelForCausalLM goes on with the class that it loaded
    first in a process, even if the code was edited since.
    """
    access = checkpoint.access
    reference = own_class(checkpoint)
    if reference is None:
        # Code that comes with a checkpoint runs only if the user has said so.
        return transformers.AutoModelForCausalLM
    load_class = transformers.dynamic_module_utils.get_class_from_dynamic_module
    return load_class(reference, checkpoint.source, **access.arguments())


def own_class(checkpoint: HfCheckpoint) -> str | None:
    """Return the name of the class that came with the model; None if transformers' own class is used."""
    name: str | None = getattr(checkpoint.config, "auto_map", {}).get("AutoModelForCausalLM")
    return name if checkpoint.access.trust_remote_code else None


def _from_config(model_class: Any, checkpoint: HfCheckpoint) -> Any:
    """Build a model with random weights, of a class of transformers or of its `Auto` class."""
    config = checkpoint.config
    if checkpoint.attention is not None:
        config = copy.deepcopy(config)
        config._attn_implementation = checkpoint.attention
    if hasattr(model_class, "from_config"):
        return model_class.from_config(config)
    return model_class(config)


# --- the type of the weights


def stored_dtype(checkpoint: HfCheckpoint) -> str:
    """Return the type in which the checkpoint stores its weights: fp32, bf16 or fp16; fp32 for any other."""
    # A plain config.json has a text such as `bfloat16`, transformers a type of torch.
    stored = checkpoint.text_config.dtype
    if isinstance(stored, str):
        stored = getattr(torch, stored, None)
    return weight_type_name(stored)


def folder_of(checkpoint: HfCheckpoint) -> Path | None:
    """Return the folder with the files: for a name on the hub that of its snapshot, None if none is there."""
    if checkpoint.is_local:
        return expanded(checkpoint.path)
    # Only the library knows where the hub's cache keeps a revision.
    cached_file = import_transformers().utils.cached_file
    file = cached_file(checkpoint.source, "config.json", revision=checkpoint.access.revision)
    return None if file is None else Path(file).parent


def name_of_checkpoint(path: str) -> str:
    """Return what a checkpoint is called: its folder, or its name on the hub without the owner."""
    if is_folder(expanded(path)):
        # `.` and `..` say nothing of the folder that they stand for. A link keeps its own name.
        path = os.path.abspath(expanded(path))  # noqa: PTH100
    return Path(path).name


# --- what is wrong with a checkpoint


def check_path(path: str, folder: Path) -> None:
    """Raise UserError for what can be no model: a file, no folder, a run of posenc, an adapter alone."""
    if is_file(folder):
        raise UserError("subject.path", path, "is a file", allowed="a folder of save_pretrained, or a name")
    if not is_folder(folder) and looks_local(path):
        raise missing_path("subject.path", path, "folder")
    # A run has a config.yaml and no config.json, so transformers would complain of a file that is missing.
    if is_file(folder / "status.json"):
        raise UserError("subject.path", path, "is a run of posenc", hint=f"posenc eval run={path}")
    if is_file(folder / ADAPTER) and not is_file(folder / "config.json"):
        hint = "save it merged into its model: merge_and_unload().save_pretrained(DIR), of peft"
        raise UserError("subject.path", path, "is an adapter without its model", hint=hint)


def check_config(path: str, config: Any) -> None:
    """Raise UserError for sizes and rotations that no model has, but that transformers would build."""
    for name in SIZES:
        size = getattr(config, name, None)
        # transformers builds a model of no layers without a word, and it would be measured.
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
    # Weights that do not fit are left at random values, too.
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


def _listed(names: Iterable[str]) -> str:
    return first_few(sorted(names), WEIGHTS_NAMED)


def _reading_error(
    path: str,
    access: Access,
    error: Exception,
    problem: str = "is no causal language model of transformers",
) -> Exception:
    """Return the error to raise where transformers could not read a checkpoint."""
    # transformers words its errors for programmers who read a traceback. Here one line of it is shown.
    message = _message_of(error)
    if "trust_remote_code" in str(error):
        hint = "subject.trust_remote_code=true runs the code in it; say so if you trust it"
        return UserError("subject.path", path, "needs code of its own", hint=hint)
    if isinstance(error, SafetensorError):
        return UserError("subject.path", path, f"its weights cannot be read: {message}")
    if is_folder(expanded(path)):
        return UserError("subject.path", path, f"{problem}: {message}")
    ways_out = "subject.path=FOLDER, saved by save_pretrained"
    is_online = not access.local_files_only
    return not_loaded(f"the model {path}", error if is_online else None, ways_out)


def _message_of(error: Exception) -> str:
    """Return the first line of an error, and the second one too if the first ends with a colon."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    # huggingface_hub's checks of a configuration write a title that ends so, and the reason below it.
    # transformers does the same for a tokenizer, and names the first file that it looked for.
    if len(lines) > 1 and lines[0].endswith(":"):
        return " ".join(lines[:2])
    if isinstance(error, KeyError):  # its text is the key alone, such as a rope_type that does not exist
        return f"transformers has no {error}"
    return first_line(error)
