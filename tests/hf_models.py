"""Tiny checkpoints of eleven architectures, trained and saved by transformers itself."""

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
}


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
