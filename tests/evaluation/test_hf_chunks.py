"""Passes of models of transformers over a part of a window at a time: the same losses in less memory."""

import re

import hf_models
import pytest
import torch
import transformers

from posenc.evaluation import passes
from posenc.evaluation.errors import OutOfMemoryError
from posenc.evaluation.extensions import build_extension
from posenc.evaluation.models.chunks import pass_in_chunks
from posenc.evaluation.models.configurations import tokens_kept
from posenc.evaluation.models.layer_progress import LayerProgress
from posenc.evaluation.models.transformers import TransformersModel
from posenc.training.memory import LiveTensors

T = hf_models.T
W = 2 * T
CHUNK = 7  # it divides neither the window nor the targets
N_TARGETS = 40
EXACT = ["llama", "qwen2", "gpt2", "gpt_neox", "gemma2", "gpt_oss", "falcon", "bloom", "gptj"]
SCALED_EXACT = ["gemma 3", "gpt-oss", "qwen yarn", "llama 3.1", "deepseek"]


def model_of(name):
    """Return a model with random weights, of an architecture or of a scaled checkpoint."""
    if name in hf_models.SCALED:
        return hf_models.scaled(name)
    return hf_models.random_model(name, **hf_models.CONFIGS[name])


def losses_of(model, chunk_tokens, extension=None, on_layer=None):
    """Return the losses of the last targets of two windows, (2, N_TARGETS)."""
    subject = TransformersModel(model, T, bos=256, chunk_tokens=chunk_tokens)
    tokens = torch.randint(250, (2, W + 1), generator=torch.Generator().manual_seed(1))
    encoding = None
    if extension is not None:
        encoding = build_extension(extension, subject).effective_encoding(W)
        assert subject.why_not_in_chunks(encoding) is None
    return subject.losses(tokens[:, :-1], tokens[:, -N_TARGETS:], encoding, on_layer=on_layer).nats


@pytest.mark.parametrize("name", [*EXACT, *SCALED_EXACT])
def test_losses_by_chunks_are_those_of_the_whole_pass(name):
    model = model_of(name)
    subject = TransformersModel(model, T)
    assert subject.why_not_in_chunks(subject.effective_encoding) is None
    torch.testing.assert_close(losses_of(model, CHUNK), losses_of(model, None), atol=1e-5, rtol=0)


@pytest.mark.parametrize("extension", ["yarn", "pi", "dynamic_ntk"])
@pytest.mark.parametrize("name", ["llama", "gpt_neox"])
def test_an_extension_of_frequencies_acts_in_every_chunk(name, extension):
    model = model_of(name)
    settings = {"name": extension}
    extended = losses_of(model, CHUNK, settings)
    torch.testing.assert_close(extended, losses_of(model, None, settings), atol=1e-5, rtol=0)
    assert (extended - losses_of(model, None)).abs().max() > 1e-3


@pytest.mark.parametrize("name", ["dynamic", "phi-3", "mamba"])
def test_a_model_whose_numbers_would_change_says_why_not(name):
    subject = TransformersModel(model_of(name), T)
    assert subject.why_not_in_chunks(subject.effective_encoding) is not None


@pytest.mark.parametrize("extension", [{"name": "window", "window": 8}, {"name": "self_extend"}], ids=str)
def test_an_extension_in_the_attention_is_none_of_chunks(extension):
    subject = TransformersModel(model_of("llama"), T)
    acting = build_extension(extension, subject).effective_encoding(W)
    assert "attention" in subject.why_not_in_chunks(acting)


def test_layers_of_every_chunk_tell_how_far_a_pass_is():
    shares = []
    losses_of(model_of("llama"), W // 2, on_layer=shares.append)
    assert shares == [0.25, 0.5, 0.75, 1.0]


def pass_for_one_target():
    """Make a pass over T tokens in chunks, for the last one."""
    decoder = model_of("llama").base_model
    tokens = torch.zeros(1, T, dtype=torch.int64)
    nothing_reported = LayerProgress(layers=None, on_layer=None)
    return pass_in_chunks(decoder, tokens, 1, CHUNK, nothing_reported)


def test_the_keys_of_earlier_chunks_are_dropped_before_logits():
    assert "past_key_values" not in pass_for_one_target().output


def test_hidden_states_before_the_targets_are_dropped_with_their_chunk():
    with torch.no_grad(), LiveTensors() as meter:
        chunked = pass_for_one_target()
    assert chunked.hidden.shape == (1, 1, 32)
    assert meter.live < T * 32 * 4


def peak_of(model, chunk_tokens):
    """Return the most bytes that the tensors of a pass over 2,048 tokens take at once."""
    subject = TransformersModel(model, T, chunk_tokens=chunk_tokens)
    tokens = torch.zeros(1, 2048, dtype=torch.int64)
    with LiveTensors() as meter:
        subject.losses(tokens, tokens[:, -8:])
    return meter.peak


def test_a_wide_layer_takes_less_memory_in_chunks():
    model = hf_models.random_model("llama", **(hf_models.LLAMA | {"intermediate_size": 2048}))
    assert peak_of(model, 128) < peak_of(model, None) / 4


def gigabytes_needed(model, chunk_tokens, monkeypatch):
    """Return what the check before a pass over 2,048 tokens says that it needs."""
    subject = TransformersModel(model, T, chunk_tokens=chunk_tokens)
    context = passes.EvalContext(
        model=subject,
        context_length=T,
        seed=0,
        precision="fp32",
        device=torch.device("cpu"),
        store=None,
        split="test",
        batch_tokens=2048,
    )
    monkeypatch.setattr(passes, "free_memory", lambda: 0)
    with pytest.raises(OutOfMemoryError) as error:
        passes.check_memory(context, torch.arange(2048), subject.effective_encoding, n_targets=8)
    return float(re.search(r"needs about ([\d.e-]+) GB", str(error.value))[1])


def test_the_check_before_a_pass_knows_that_chunks_need_less(monkeypatch):
    model = hf_models.random_model("llama", **(hf_models.LLAMA | {"intermediate_size": 2048}))
    whole = gigabytes_needed(model, None, monkeypatch)
    assert whole * 1e9 == pytest.approx(peak_of(model, None), rel=0.1)
    assert gigabytes_needed(model, 128, monkeypatch) < whole / 4


def test_a_trial_of_a_shorter_pass_has_shorter_chunks():
    subject = TransformersModel(model_of("llama"), T, chunk_tokens=512)
    assert subject.for_trial(1 / 16).chunk_tokens == 32


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, 2 * 1000),
        ({"sliding_window": 50}, 2 * 60),
        ({"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 50}, 60 + 1000),
        ({"sliding_window": 5000}, 2 * 1000),
        ({"sliding_window": 50, "use_sliding_window": False}, 2 * 60),  # a key that Mistral does not read
    ],
    ids=["global", "local", "both", "a window beyond the text", "another class's key"],
)
def test_local_layers_keep_what_they_see(changes, expected):
    config = transformers.AutoConfig.for_model("mistral", num_hidden_layers=2, sliding_window=None)
    for name, value in changes.items():
        setattr(config, name, value)
    assert tokens_kept(config, window=1000, chunk_tokens=10) == expected
