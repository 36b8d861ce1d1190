"""Write a run as a checkpoint of transformers: Arcee's architecture is posenc's decoder with RoPE or NoPE.

Both have RMSNorm before each part, a squared ReLU between two maps, tied embeddings, no bias terms. Without
positions Arcee's rotation gets frequencies so small that nothing turns.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from posenc.core.console import say
from posenc.core.errors import UserError
from posenc.core.paths import expanded
from posenc.encodings.base import Encoding
from posenc.encodings.shared.rotary import Rotary
from posenc.model.attention import Attention
from posenc.model.decoder import Decoder
from posenc.running.stored_run import load_model, stored_run
from posenc.running.subject_hf import library_of

STILL = 1e30  # a rotation's frequencies divided by this turn nothing at any length
THERE = "an encoding without hooks, or one that turns every pair of a head by the frequencies of a base"


def export_hf(run: str, folder: str) -> Path:
    """Write config.json, model.safetensors and the tokenizer of a trained run; return the folder.

    Raises UserError for a run whose parts no architecture of transformers has.
    """
    place = expanded(folder)
    if place.exists() and (not place.is_dir() or any(place.iterdir())):
        raise UserError("--hf", folder, "is there already", hint="a new folder, or an empty one")
    if blocked := next((one for one in place.parents if one.exists() and not one.is_dir()), None):
        raise UserError("--hf", folder, f"{blocked} is no folder")
    stored = stored_run(run, [])
    outline, length = stored.outline, stored.settings.context_length
    rope = rope_parameters(outline, run)
    transformers = library_of("--hf")
    from tokenizers import Tokenizer as Library

    model = load_model(stored.settings, stored.shape, stored.checkpoint)
    shape, vocabulary = model.shape, model.embedding.num_embeddings
    config = transformers.ArceeConfig(
        vocab_size=vocabulary,
        hidden_size=shape.d_model,
        intermediate_size=shape.mlp_ratio * shape.d_model,
        num_hidden_layers=shape.n_layers,
        num_attention_heads=shape.n_heads,
        max_position_embeddings=length,
        rms_norm_eps=torch.finfo(torch.float32).eps,
        tie_word_embeddings=True,
        rope_parameters=rope,
        bos_token_id=None,
        eos_token_id=None,
    )
    with torch.device("meta"):
        other = transformers.ArceeForCausalLM(config)
    other.load_state_dict(state_of(model), strict=False, assign=True)
    other.tie_weights()
    place.mkdir(parents=True, exist_ok=True)
    other.save_pretrained(place)
    definition = stored.checkpoint.path / "tokenizer.json"
    text = definition.read_text(encoding="utf-8") if definition.is_file() else bytes_definition()
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=Library.from_str(text))
    tokenizer.save_pretrained(place)
    say(f"wrote {place}: transformers.AutoModelForCausalLM.from_pretrained reads it")
    return place


def rope_parameters(outline: Decoder, run: str) -> dict[str, Any]:
    """Return Arcee's settings of the rotation. Raises UserError with the part that it has not."""
    encoding, options = outline.encoding, cast("list[Encoding]", list(outline.options))
    if not all(isinstance(block.attention, Attention) for block in outline.blocks):
        raise refused(run, "its attention is not the multi-head attention of that architecture")
    if outline.shape.short_conv is not None:
        raise refused(run, "model.short_conv has no place there")
    if named := [one.name for one in options if one.hooks - {"positions"}]:
        raise refused(run, f"{', '.join(named)} of its attention has no place there")
    drawn = outline.effective_encoding.positions(8, False, torch.Generator().manual_seed(0))
    if drawn.tolist() != list(range(8)):
        raise refused(run, "its positions are drawn, also in evaluation")
    if not encoding.hooks:
        return {"rope_type": "linear", "rope_theta": 10_000.0, "factor": STILL}
    if turns_all(encoding):
        assert isinstance(encoding, Rotary)
        return {"rope_type": "default", "rope_theta": float(encoding.base)}
    raise refused(run, f"encoding={encoding.name} is not in it; what is: {THERE}")


def turns_all(encoding: Encoding) -> bool:
    """Tell whether it turns all pairs of a head by base^(-2k/D) and does nothing else."""
    if not isinstance(encoding, Rotary) or not encoding.turns_only or encoding.hooks != {"rotate"}:
        return False
    cpu = torch.device("cpu")
    whole = encoding.width == encoding.shape.head_dim
    return whole and torch.equal(encoding.frequencies(cpu), Rotary.frequencies(encoding, cpu))


def refused(run: str, reason: str) -> UserError:
    """Return the error for a run that no architecture of transformers is the same as."""
    return UserError("run", run, f"no architecture of transformers is the same: {reason}")


def state_of(model: Decoder) -> dict[str, Tensor]:
    """Return the weights by Arcee's names."""
    layout = getattr(model.encoding, "layout", "half")
    heads, width = model.shape.n_heads, model.shape.d_model
    found = {"model.embed_tokens.weight": model.embedding.weight, "model.norm.weight": model.norm.weight}
    blocks: list[Any] = list(model.blocks)
    for layer, block in enumerate(blocks):
        q, k, v = block.attention.qkv.weight.split(width)
        if layout == "interleaved":  # its pairs (2k, 2k+1) become Arcee's (k, k + D/2)
            q, k = (one.view(heads, -1, 2, width).transpose(1, 2).reshape(width, width) for one in (q, k))
        own = {
            "input_layernorm": block.attention_norm.weight,
            "self_attn.q_proj": q,
            "self_attn.k_proj": k,
            "self_attn.v_proj": v,
            "self_attn.o_proj": block.attention.out.weight,
            "post_attention_layernorm": block.mlp_norm.weight,
            "mlp.up_proj": block.mlp.up.weight,
            "mlp.down_proj": block.mlp.down.weight,
        }
        found.update({f"model.layers.{layer}.{name}.weight": one for name, one in own.items()})
    return {name: one.detach().clone() for name, one in found.items()}


def bytes_definition() -> str:
    """Return the tokenizer.json of one token a byte, whose id is the byte."""
    from tokenizers import Tokenizer as Library
    from tokenizers import decoders, models, pre_tokenizers
    from transformers.convert_slow_tokenizer import bytes_to_unicode

    vocabulary = {sign: byte for byte, sign in bytes_to_unicode().items()}
    library = Library(models.BPE(vocab=vocabulary, merges=[]))
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    library.decoder = decoders.ByteLevel()
    return str(library.to_str())
