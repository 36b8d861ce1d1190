"""Write a run as a checkpoint of transformers: Arcee's architecture is posenc's decoder with RoPE or NoPE.

Both have RMSNorm before each part, a squared ReLU between two maps, tied embeddings, no bias terms. Without
positions Arcee's rotation gets frequencies so small that nothing turns.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from posenc.core.atomic_files import folder_written_whole, why_not_writable
from posenc.core.console import say
from posenc.core.errors import UserError, visible
from posenc.core.paths import exists, expanded, is_folder, refuse_impossible
from posenc.data import build_tokenizer
from posenc.encodings.base import Encoding
from posenc.encodings.shared.rotary import Rotary
from posenc.model.attention import Attention
from posenc.model.decoder import Decoder
from posenc.running.hf_checkpoint import import_transformers
from posenc.running.stored_run import load_model, stored_run
from posenc.settings.tree import NONE, TokenizerSettings

# Arcee has no switch for positions.
STILL = 1e30  # a rotation whose frequencies are divided by this turns nothing at any length
NEW_FOLDER = "--hf FOLDER, a new one or an empty one"
OS_ERROR = re.compile(r"\(os error (\d+)\)")
# the weights that `state_of` writes
OF_ARCEE = re.compile(
    r"embedding\.weight|norm\.weight"
    r"|blocks\.\d+\.(attention_norm|attention\.qkv|attention\.out|mlp_norm|mlp\.up|mlp\.down)\.weight"
)
ACCEPTED = "an encoding without hooks, or one that turns every pair of a head by the frequencies of a base"


def export_hf(run: str, folder: str) -> Path:
    """Write config.json, model.safetensors and the tokenizer of a trained run; return the folder.

    Raises UserError for a run whose parts no architecture of transformers has; RunError if the disk refuses.
    """
    target = _new_folder(folder)
    try:
        # Plug-ins are left out, since Arcee has nothing but posenc's own RoPE and NoPE.
        stored = stored_run(run, [])
    except UserError as error:
        if error.key == "encoding":  # perhaps one of a plug-in, which this command does not import
            raise refused(run, error.problem) from error
        raise
    extend = stored.settings.extend.name
    if extend != NONE:
        raise refused(run, f"it was trained with extend={extend}")
    rope = rope_parameters(stored.outline, run)  # refuses the run before any library is loaded
    transformers = import_transformers("--hf", folder)
    model = load_model(stored.settings, stored.shape, stored.checkpoint)
    config = transformers.ArceeConfig(
        vocab_size=model.embedding.num_embeddings,
        hidden_size=model.shape.d_model,
        intermediate_size=model.shape.mlp_ratio * model.shape.d_model,
        num_hidden_layers=model.shape.n_layers,
        num_attention_heads=model.shape.n_heads,
        max_position_embeddings=stored.settings.context_length,
        # This is the epsilon of torch's RMSNorm in float32. Arcee's own default is another one.
        rms_norm_eps=torch.finfo(torch.float32).eps,
        tie_word_embeddings=True,
        rope_parameters=rope,
        # Arcee's defaults are 128000 and 128001, which lie outside of a small vocabulary.
        bos_token_id=None,
        eos_token_id=None,
    )
    with torch.device("meta"):
        # On the meta device nothing is allocated or drawn: the run's tensors take the places.
        arcee = transformers.ArceeForCausalLM(config)
    # Not strict: the output layer is the embedding, and gets its weights by `tie_weights`.
    not_loaded = arcee.load_state_dict(state_of(model), strict=False, assign=True)
    assert not not_loaded.unexpected_keys
    arcee.tie_weights()
    tokenizer = _tokenizer(transformers, stored.tokenizer_settings)
    needed = sum(parameter.nbytes for parameter in model.parameters())
    with folder_written_whole(target, needed) as temporary, _refusals_of_the_disk():
        arcee.save_pretrained(temporary)
        tokenizer.save_pretrained(temporary)
    say(f"wrote {visible(folder)}: transformers.AutoModelForCausalLM.from_pretrained reads it")
    return target


def _new_folder(folder: str) -> Path:
    """Return the path of a folder that is empty, or can be made, links followed. Raises UserError."""
    target = _named_folder(folder)
    # The root folder has no parents, and is refused below, since it is not empty.
    existing = next((parent for parent in target.parents if exists(parent)), target)
    problem = None
    if not is_folder(existing):
        problem = f"{visible(existing)} is not a folder"
    # The export is renamed to this name, and the shell would stand in a folder that is gone.
    elif target == Path.cwd():
        problem = "is the current folder"
    elif exists(target) and not _is_empty_folder(target):
        problem = "exists already"
    else:
        reason = why_not_writable(existing)
        if reason is not None:
            problem = f"the folder {visible(existing)} cannot be written ({reason})"
    if problem is not None:
        raise UserError("--hf", folder, problem, hint=NEW_FOLDER)
    return target


def _named_folder(folder: str) -> Path:
    """Return the path that the user names, links followed. Raises UserError for a name that can be none."""
    if not folder.strip():
        raise UserError("--hf", "''", "is not the name of a folder", hint=NEW_FOLDER)
    refuse_impossible("--hf", folder)
    path = expanded(folder)
    for named in (path, *path.parents):
        if os.path.islink(named) and not exists(named):  # noqa: PTH114 (Path's may raise)
            raise UserError("--hf", folder, f"{visible(named)} is a link to nothing", hint=NEW_FOLDER)
    return Path(os.path.realpath(path))


def _is_empty_folder(path: Path) -> bool:
    return is_folder(path) and os.access(path, os.R_OK) and not any(path.iterdir())


@contextmanager
def _refusals_of_the_disk() -> Iterator[None]:
    """Turn what libraries in Rust say of a disk, `No space left on device (os error 28)`, into an OSError."""
    try:
        yield
    except OSError:
        raise
    except Exception as error:  # safetensors and tokenizers each raise their own
        number = OS_ERROR.search(str(error))
        if number is None:
            raise
        raise OSError(int(number[1]), os.strerror(int(number[1]))) from error


def _tokenizer(transformers: Any, settings: TokenizerSettings) -> Any:
    """Return the tokenizer of a run as one of transformers; one of bytes gets a token for each byte."""
    from tokenizers import Tokenizer

    definition = build_tokenizer(settings, None).definition or bytes_definition()
    return transformers.PreTrainedTokenizerFast(tokenizer_object=Tokenizer.from_str(definition))


def rope_parameters(outline: Decoder, run: str) -> dict[str, Any]:
    """Return Arcee's settings of the rotation. Raises UserError with the part that Arcee does not have."""
    encoding = outline.encoding
    if not all(isinstance(block.attention, Attention) for block in outline.blocks):
        raise refused(run, "its attention is not the multi-head attention of that architecture")
    if outline.shape.short_conv is not None:
        raise refused(run, "that architecture has no model.short_conv")
    options: list[Any] = list(outline.options)
    # Drawn positions act in training alone, unless they are drawn in evaluation, too. That is asked below.
    acting = [option.name for option in options if option.hooks - {"positions"}]
    if acting:
        raise refused(run, f"that architecture has no {', '.join(acting)} in its attention")
    # Eight positions in evaluation mode show whether they are 0, 1, 2, ...
    positions = outline.effective_encoding.positions(8, False, torch.Generator().manual_seed(0))
    if positions.tolist() != list(range(8)):
        raise refused(run, "its positions are drawn, also in evaluation")
    if encoding.hooks and not turns_all(encoding):
        raise refused(run, f"encoding={encoding.name} is not in it; it takes {ACCEPTED}")
    nameless = [name for name, _ in outline.named_parameters() if not OF_ARCEE.fullmatch(name)]
    if nameless:
        raise refused(run, f"that architecture has no place for the weights {', '.join(nameless[:3])}")
    if isinstance(encoding, Rotary):
        return {"rope_type": "default", "rope_theta": float(encoding.base)}
    # `linear` divides all frequencies by its factor.
    return {"rope_type": "linear", "rope_theta": 10_000.0, "factor": STILL}


def turns_all(encoding: Encoding) -> bool:
    """Tell whether it turns all pairs of a head by base^(-2k/D) and does nothing else."""
    if not isinstance(encoding, Rotary) or not encoding.keeps_lengths or encoding.hooks != {"rotate"}:
        return False
    if encoding.width != encoding.shape.head_dim:
        return False
    cpu = torch.device("cpu")
    # A class derived from Rotary may change the frequencies, and Arcee computes them by RoPE's formula.
    return torch.equal(encoding.frequencies(cpu), Rotary.frequencies(encoding, cpu))


def refused(run: str, reason: str) -> UserError:
    """Return the error for a run that no architecture of transformers can represent."""
    return UserError("run", run, f"no architecture of transformers is the same: {reason}")


def state_of(model: Decoder) -> dict[str, Tensor]:
    """Return the weights by Arcee's names."""
    layout = getattr(model.encoding, "layout", "half")
    weights = {"model.embed_tokens.weight": model.embedding.weight, "model.norm.weight": model.norm.weight}
    blocks: list[Any] = list(model.blocks)
    for layer, block in enumerate(blocks):
        q, k, v = block.attention.qkv.weight.split(model.shape.d_model)  # each (d, d)
        if layout == "interleaved":
            q = pairs_as_halves(q, model.shape.n_heads)
            k = pairs_as_halves(k, model.shape.n_heads)
        weights_of_layer = {
            "input_layernorm": block.attention_norm.weight,
            "self_attn.q_proj": q,
            "self_attn.k_proj": k,
            "self_attn.v_proj": v,
            "self_attn.o_proj": block.attention.out.weight,
            "post_attention_layernorm": block.mlp_norm.weight,
            "mlp.up_proj": block.mlp.up.weight,
            "mlp.down_proj": block.mlp.down.weight,
        }
        for name, weight in weights_of_layer.items():
            weights[f"model.layers.{layer}.{name}.weight"] = weight
    # q, k and v are views of one tensor, and safetensors refuses tensors that share memory.
    return {name: weight.detach().clone() for name, weight in weights.items()}


def pairs_as_halves(weight: Tensor, heads: int) -> Tensor:
    """Return a map to queries or keys whose pairs (2k, 2k+1) of a head stand at (k, k + D/2), as Arcee's do.

    weight: (d, d), rows are the outputs.
    """
    width = weight.shape[1]
    by_pair = weight.view(heads, -1, 2, width)  # (H, D/2, 2, d)
    return by_pair.transpose(1, 2).reshape(width, width)


def bytes_definition() -> str:
    """Return the tokenizer.json with a token for each byte; the token's id is the byte."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers.convert_slow_tokenizer import bytes_to_unicode

    vocabulary = {sign: byte for byte, sign in bytes_to_unicode().items()}
    # Without merges a BPE leaves every byte alone.
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    return str(tokenizer.to_str())
