"""Compare the logits that posenc reads off every causal language model of transformers with the model's own.

python scripts/checks/architectures.py [NAME ...]: each architecture (all without a name) is built small, with
random weights, where its configuration allows that. Four ways must give the same logits: a pass, a pass whose
logits are made in blocks, the next token alone, and a pass in chunks. The last one may be refused. It takes
about four minutes, and the exit code is 1 if an architecture differs.
"""

from __future__ import annotations

import sys
import warnings
from typing import Any

import torch
import transformers
from torch import Tensor
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from posenc.core.errors import UserError, first_line
from posenc.evaluation.models.transformers import TransformersModel

LENGTH = 24  # tokens of the text
TARGETS = 10  # of which so many are scored
BLOCK = 4  # targets whose logits are made at once
CHUNK = 7  # tokens
VOCABULARY = 97
WIDTH = 32
LARGEST = 30_000_000  # parameters; what is larger has sizes that no name below reaches
TOLERANCE = 1e-3  # of logits, whose deviation is about 1. Rounding gives 1e-5, other logits give 5.

# The sizes of a small model, under all names that configurations have for them.
WIDTHS = ("hidden_size", "d_model", "n_embd", "emb_dim", "embedding_size", "word_embed_proj_dim", "lru_width")
MLP_WIDTHS = ("intermediate_size", "ffn_dim", "decoder_ffn_dim", "encoder_ffn_dim")
LAYERS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers", "decoder_layers", "encoder_layers")
HEADS = ("num_attention_heads", "n_head", "n_heads", "num_heads", "attention_heads")
HEADS_OF_PARTS = ("decoder_attention_heads", "encoder_attention_heads")
EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts")
SIZES: dict[str, Any] = {
    **dict.fromkeys(WIDTHS, WIDTH),
    **dict.fromkeys(MLP_WIDTHS, 2 * WIDTH),
    **dict.fromkeys(LAYERS, 2),
    **dict.fromkeys((*HEADS, *HEADS_OF_PARTS), 4),
    **dict.fromkeys(EXPERTS, 2),
    **dict.fromkeys(("max_position_embeddings", "n_positions"), 10 * LENGTH),
    **dict.fromkeys(("moe_intermediate_size", "shared_expert_intermediate_size"), WIDTH),
    **dict.fromkeys(("num_experts_per_tok", "n_group", "topk_group"), 1),
    **dict.fromkeys(("q_lora_rank", "kv_lora_rank"), 16),
    **dict.fromkeys(("head_dim", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"), 8),
    "num_key_value_heads": 2,
    "vocab_size": VOCABULARY,
    "is_decoder": True,
    "first_k_dense_replace": 2,  # no experts in any layer
    "sliding_window": 8,
    "state_size": 4,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 1,
}


def small_model(architecture: str) -> Any:
    """Build an architecture small, with weights so large that positions count. Raises what it raises."""
    usual = transformers.AutoConfig.for_model(architecture)
    known = set(usual.to_dict()) | set(usual.attribute_map)
    sizes = {name: size for name, size in SIZES.items() if name in known}
    config = transformers.AutoConfig.for_model(architecture, **sizes)
    with torch.device("meta"):
        outline = transformers.AutoModelForCausalLM.from_config(config)
    parameters = sum(parameter.numel() for parameter in outline.parameters())
    if parameters > LARGEST:
        raise ValueError(f"it would have {parameters:,} parameters")
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    for weight in model.parameters():
        if weight.ndim > 1:
            torch.nn.init.normal_(weight, std=0.2)
    return model


def logits_in_chunks(subject: TransformersModel, text: Tensor) -> Tensor | str:
    """Return the logits of a pass in chunks, or why there is none."""
    reason = subject.why_not_in_chunks(subject.effective_encoding)
    if reason is not None:
        return reason
    subject.chunk_tokens = CHUNK
    try:
        subject.check_chunks()
        return subject.target_logits(text, TARGETS)(slice(None))
    except UserError as error:
        return error.problem
    finally:
        subject.chunk_tokens = None


def differences(model: Any) -> dict[str, float]:
    """Return the largest difference from the model's own logits, by the way in which posenc makes them."""
    text = torch.randint(2, VOCABULARY, (2, LENGTH), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        expected = model(text).logits[:, -TARGETS:]
    subject = TransformersModel(model, LENGTH)
    logits_of = subject.target_logits(text, TARGETS)
    blocks = [logits_of(slice(start, start + BLOCK)) for start in range(0, TARGETS, BLOCK)]
    logits = {
        "pass": subject(text, TARGETS),
        "blocks": torch.cat(blocks, dim=1),
        "next token": subject.next_logits(text).logits[:, None],
    }
    in_chunks = logits_in_chunks(subject, text)
    if isinstance(in_chunks, Tensor):
        logits["chunks"] = in_chunks
    return {way: float((made - expected[:, -made.shape[1] :]).abs().max()) for way, made in logits.items()}


def main() -> None:
    warnings.filterwarnings("ignore")
    transformers.logging.set_verbosity_error()
    architectures = sys.argv[1:] or list(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)
    n_same = 0
    differing = []
    not_built = []
    for architecture in architectures:
        try:
            model = small_model(architecture)
            model(torch.full((1, LENGTH), 2))
        except Exception as error:  # a configuration without some sizes, or a model of other inputs
            not_built.append(f"{architecture}: {first_line(error)[:90]}")
            continue
        difference = differences(model)
        is_same = max(difference.values()) <= TOLERANCE
        n_same += is_same
        if not is_same:
            differing.append(architecture)
        figures = ", ".join(f"{way} {figure:.0e}" for way, figure in difference.items())
        print(f"{architecture:24} {'same' if is_same else 'DIFFERS'}: {figures}", flush=True)
    print("\nnot built:", *not_built, sep="\n  ")
    print(f"\n{n_same} the same, {len(differing)} differ {differing}, {len(not_built)} not built")
    sys.exit(bool(differing))


if __name__ == "__main__":
    main()
