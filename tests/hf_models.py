"""Tiny checkpoints of transformers: twelve architectures that it trains, and rotations that are scaled."""

import math
import time

import torch
import transformers

T = 32
SIZES = {"vocab_size": 257, "bos_token_id": 256, "eos_token_id": 256, "pad_token_id": 256}
LLAMA = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": T,
    "rope_parameters": {"rope_type": "default", "rope_theta": 500.0},
}
# gpt_neox knows neither grouped keys nor Llama's rope parameters, and turns half of each head.
GPT_NEOX = {name: value for name, value in LLAMA.items() if name != "num_key_value_heads"}
GPT_NEOX["rope_parameters"] = {"rope_type": "default", "rope_theta": 500.0, "partial_rotary_factor": 0.5}
CONFIGS = {
    "llama": LLAMA,
    "qwen2": LLAMA,
    "gemma2": LLAMA | {"head_dim": 8, "query_pre_attn_scalar": 8, "sliding_window": 24},
    "gpt_neox": GPT_NEOX,
    "gpt2": {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 8 * T + 1},
    "bloom": {"hidden_size": 32, "n_layer": 2, "n_head": 4},
    "falcon": {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "alibi": True},
    "gpt_oss": LLAMA | {"head_dim": 8, "num_local_experts": 2, "num_experts_per_tok": 1},
    "gptj": {"n_embd": 32, "n_layer": 2, "n_head": 4, "rotary_dim": 4, "n_positions": 8 * T + 1},
    "mamba": {"hidden_size": 32, "num_hidden_layers": 2, "state_size": 4, "max_position_embeddings": T},
    "mpt": {"d_model": 32, "n_layers": 2, "n_heads": 4, "max_seq_len": T},
    "opt": {
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "ffn_dim": 64,
        "word_embed_proj_dim": 32,
        "max_position_embeddings": 8 * T + 1,
    },
}


# Checkpoints whose rotation is scaled, or differs from layer to layer, after models that people have.
# T is the length before the scaling, LONG the one after.
LONG = 4 * T
YARN = {"rope_type": "yarn", "factor": 4.0, "rope_theta": 500.0, "original_max_position_embeddings": T}
LLAMA3 = YARN | {"rope_type": "llama3", "low_freq_factor": 1.0, "high_freq_factor": 4.0}
LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 500.0,
    "original_max_position_embeddings": T,
    "short_factor": [1.0, 1.0, 1.0, 1.1],
    "long_factor": [1.0, 1.5, 3.0, 4.5],
}
BY_LAYER = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 24}
GEMMA_ROPE = {
    "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
    "full_attention": {"rope_type": "linear", "factor": 4.0, "rope_theta": 500.0},
}
LATENT = {
    "q_lora_rank": 16,
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 8,
    "v_head_dim": 8,
    "num_key_value_heads": 4,
    "first_k_dense_replace": 2,  # no experts
}
SCALED = {
    "llama 3.1": ("llama", {"max_position_embeddings": LONG, "rope_parameters": LLAMA3}),
    "qwen yarn": ("qwen2", {"rope_parameters": YARN}),  # its configuration keeps the length before
    "phi-3": (
        "phi3",
        {
            "max_position_embeddings": LONG,
            "original_max_position_embeddings": T,
            "rope_parameters": LONGROPE,
        },
    ),
    "deepseek": (
        "deepseek_v3",
        LATENT
        | {"max_position_embeddings": LONG, "rope_parameters": YARN | {"mscale": 1.0, "mscale_all_dim": 1.0}},
    ),
    "gpt-oss": (
        "gpt_oss",
        BY_LAYER
        | {"head_dim": 8, "num_local_experts": 2, "num_experts_per_tok": 1}
        | {"max_position_embeddings": LONG, "rope_parameters": YARN | {"truncate": False}},
    ),
    "gemma 3": (
        "gemma3_text",
        BY_LAYER
        | {"head_dim": 8, "query_pre_attn_scalar": 8}
        | {"max_position_embeddings": LONG, "rope_parameters": GEMMA_ROPE},
    ),
    "gemma 4": (  # its heads are wider in global layers
        "gemma4_text",
        BY_LAYER
        | {"head_dim": 4, "global_head_dim": 8, "hidden_size_per_layer_input": 0}
        | {
            "max_position_embeddings": LONG,
            "rope_parameters": GEMMA_ROPE
            | {
                "full_attention": {
                    "rope_type": "proportional",
                    "partial_rotary_factor": 0.75,
                    "rope_theta": 500.0,
                }
            },
        },
    ),
    "linear": (
        "llama",
        {
            "max_position_embeddings": LONG,
            "rope_parameters": {"rope_type": "linear", "factor": 4.0, "rope_theta": 500.0},
        },
    ),
    "phimoe": (
        "phimoe",
        {
            "max_position_embeddings": LONG,
            "original_max_position_embeddings": T,
            "rope_parameters": LONGROPE | {"short_mscale": 1.1, "long_mscale": 1.2},
            "num_local_experts": 2,
            "num_experts_per_tok": 2,
        },
    ),
    # each query sees the eight keys that its layer chooses
    "chosen keys": ("deepseek_v32", LATENT | {"index_topk": 8, "index_head_dim": 16, "index_n_heads": 2}),
    "dynamic": ("llama", {"rope_parameters": {"rope_type": "dynamic", "factor": 4.0, "rope_theta": 500.0}}),
    "proportional": (
        "llama",
        {
            "max_position_embeddings": LONG,
            "rope_parameters": {
                "rope_type": "proportional",
                "partial_rotary_factor": 0.75,
                "rope_theta": 500.0,
            },
        },
    ),
}


def scaled(name):
    """Return an untrained model of `SCALED`, with weights so large that positions count."""
    architecture, changes = SCALED[name]
    return random_model(architecture, **(LLAMA | changes))


def random_model(architecture, **sizes):
    """Return an untrained model of an architecture, with weights so large that positions count."""
    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model(architecture, **(SIZES | sizes))
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    for name, weight in model.named_parameters():
        if weight.ndim > 1 or "sinks" in name:
            torch.nn.init.normal_(weight, std=0.2)
    return model


def trained(name, text, steps, length=T, seconds=math.inf, **changes):
    """Return a model of this architecture after some steps of AdamW on windows of bytes, BOS first.

    It stops after `seconds` if they are over before the steps. `changes` are of its configuration.
    """
    began = time.monotonic()
    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model(name, **(SIZES | CONFIGS[name] | changes))
    model = transformers.AutoModelForCausalLM.from_config(config)
    data = torch.tensor(tokenizer(bos=False)(text.decode())["input_ids"])
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for _ in range(steps):
        starts = torch.randint(len(data) - length, (16,))
        windows = torch.stack([data[start : start + length] for start in starts.tolist()])
        windows[:, 0] = SIZES["bos_token_id"]
        loss = model(windows, labels=windows).loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if time.monotonic() - began > seconds:
            break
    return model.eval()


def tokenizer(*, bos):
    """Return a tokenizer with one token a byte and BOS, which it puts in front of each text if `bos`."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    library = Tokenizer(models.BPE(vocab={sign: i for i, sign in enumerate(alphabet)}, merges=[]))
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    library.decoder = decoders.ByteLevel()
    library.add_special_tokens(["<s>"])
    if bos:
        library.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 256)])
    return transformers.PreTrainedTokenizerFast(tokenizer_object=library, bos_token="<s>")


def save(model, folder, *, bos=False):
    """Save a model and its tokenizer as `save_pretrained` does."""
    model.save_pretrained(folder)
    tokenizer(bos=bos).save_pretrained(folder)
    return folder
