"""Refuse checkpoints of transformers that cannot be measured, by their configuration and the names of files.

transformers itself says some of this only after minutes of reading weights, and some of it never: it loads
BERT as a language model that sees the text to be predicted, and only logs that.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from posenc.core.errors import UserError, first_line
from posenc.core.paths import expanded
from posenc.evaluation.models.causality import CAUSAL_MODELS
from posenc.running.hf_checkpoint import ADAPTER, HfCheckpoint, import_transformers, own_class
from posenc.running.stored_tensors import SINGLE_FILE, is_whole, safetensors_files

# Encoders that transformers also makes a decoder of, if is_decoder says so. GPT-NeoX has the same setting and
# no use for it, and BartForCausalLM sets it itself, so that the setting alone does not tell.
MASKED_SUFFIX = "ForMaskedLM"
OTHER_ENCODERS = ("bert-generation",)


def check_checkpoint(checkpoint: HfCheckpoint) -> None:
    """Raise UserError for a checkpoint that is no causal language model, or has no weights."""
    transformers = import_transformers()
    if own_class(checkpoint) is not None:  # such a class may read other files, and can be anything
        return
    _check_architecture(transformers, checkpoint.path, checkpoint.config)
    if checkpoint.is_local:
        _check_weight_files(transformers, checkpoint)


def _check_architecture(transformers: Any, path: str, config: Any) -> None:
    """Raise UserError for a configuration that is not of a causal language model."""
    model_type = config.model_type
    if type(config) not in transformers.MODEL_FOR_CAUSAL_LM_MAPPING:
        problem = f"is no causal language model: its config.json says model_type={model_type}"
        raise UserError("subject.path", path, problem, allowed=CAUSAL_MODELS)
    names = transformers.models.auto.modeling_auto
    # Names that transformers does not know are let through: other programs write LLaMAForCausalLM.
    architectures = [name for name in config.architectures or () if hasattr(transformers, name)]
    causal_names = names.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values()
    can_predict = [name for name in architectures if name in causal_names or _has_tied_head(name, config)]
    if architectures and not can_predict:
        listed = ", ".join(architectures)
        problem = f"is no causal language model: its config.json says architectures=[{listed}]"
        raise UserError("subject.path", path, problem, allowed=CAUSAL_MODELS)
    masked_name = names.MODEL_FOR_MASKED_LM_MAPPING_NAMES.get(model_type, "")
    is_encoder = masked_name.endswith(MASKED_SUFFIX) or model_type in OTHER_ENCODERS
    if is_encoder and not getattr(config, "is_decoder", False):
        problem = f"is an encoder ({model_type}), which sees later tokens: its config.json says no is_decoder"
        raise UserError("subject.path", path, problem, allowed=CAUSAL_MODELS)


def _has_tied_head(architecture: str, config: Any) -> bool:
    """Tell whether a model that was saved without a head has one: its token embeddings (Cerebras-GPT)."""
    is_headless = architecture.endswith("Model")
    return is_headless and bool(getattr(config.get_text_config(), "tie_word_embeddings", False))


def _check_weight_files(transformers: Any, checkpoint: HfCheckpoint) -> None:
    """Raise UserError for a folder without a file of weights that transformers would read."""
    names = transformers.utils
    files = [
        names.SAFE_WEIGHTS_NAME,
        names.SAFE_WEIGHTS_INDEX_NAME,
        names.WEIGHTS_NAME,
        names.WEIGHTS_INDEX_NAME,
        ADAPTER,
    ]
    named_by_config = getattr(checkpoint.config, "transformers_weights", None)
    if named_by_config is not None:
        files = [named_by_config]
    folder = expanded(checkpoint.path)
    if not any((folder / file).is_file() for file in files):
        allowed = f"a folder with {files[0]}, or with its parts and their index"
        hint = "a download may have left them out: git lfs pull, or hf download NAME"
        if any(folder.glob("*.gguf")):
            hint = "a GGUF has to be unpacked once: from_pretrained(DIR, gguf_file=...).save_pretrained(NEW)"
        raise UserError(
            "subject.path", checkpoint.path, "its weights are missing", allowed=allowed, hint=hint
        )
    _check_safetensors(checkpoint.path, folder)


def _check_safetensors(path: str, folder: Path) -> None:
    """Raise UserError if one of several files with weights is missing, or if one is cut."""
    hint = "load it again: hf download NAME, or git lfs pull"
    for file in safetensors_files(folder):
        if file.is_file():
            if not is_whole(file):
                raise UserError("subject.path", path, f"{file.name} is cut or damaged", hint=hint)
        # Without the single file the weights are in files of another kind.
        elif file.name != SINGLE_FILE:
            raise UserError("subject.path", path, f"{file.name} is missing, which its index names", hint=hint)


def check_quantisation(checkpoint: HfCheckpoint) -> None:
    """Raise UserError if a package is missing that the quantised weights need.

    Other obstacles, such as a missing GPU, are left to the loading. A plan may be made on another machine.
    """
    if not checkpoint.is_quantised:
        return
    settings = checkpoint.config.quantization_config
    transformers = import_transformers()
    try:
        quantizer = transformers.quantizers.AutoHfQuantizer.from_config(settings, pre_quantized=True)
        quantizer.validate_environment(device_map=None, weights_only=True)
    except ImportError as error:
        method = settings.get("quant_method") if isinstance(settings, dict) else None
        problem = f"its weights are quantised ({method or 'bitsandbytes'}): {first_line(error)}"
        raise UserError("subject.path", checkpoint.path, problem) from error
    except Exception:  # of many packages; what prevents the loading is said there
        return
