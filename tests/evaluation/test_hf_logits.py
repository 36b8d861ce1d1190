"""Logits of models of transformers are made a block at a time: the same losses in less memory."""

import hf_models
import pytest
import torch
import transformers

from posenc.core.errors import UserError
from posenc.evaluation.extensions import build_extension
from posenc.evaluation.models import callables, hidden_states
from posenc.evaluation.models import transformers as measured_model
from posenc.evaluation.models.chunks import pass_in_chunks
from posenc.evaluation.models.scoring import ModelPass, scorer_of
from posenc.evaluation.models.transformers import TransformersModel
from posenc.training.memory import LiveTensors

T = hf_models.T


def model_of(name, **changes):
    """Return an untrained model of an architecture as a subject."""
    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model(name, **(hf_models.SIZES | hf_models.CONFIGS[name] | changes))
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    return TransformersModel(model, T)


def windows(vocab_size, length, count=2):
    """Return inputs (B, W) and their next tokens as targets (B, W)."""
    tokens = torch.randint(vocab_size, (count, length + 1), generator=torch.Generator().manual_seed(1))
    return tokens[:, :-1], tokens[:, 1:]


@pytest.mark.parametrize("name", [*sorted(hf_models.CONFIGS)])
def test_losses_by_blocks_are_those_of_all_logits(name, monkeypatch):
    subject = model_of(name)
    tokens, targets = windows(250, T)
    targets = targets[:, -11:]
    with torch.no_grad():
        logits = subject.model(tokens).logits[:, -11:]
    expected = torch.nn.functional.cross_entropy(logits.transpose(1, 2), targets, reduction="none")
    monkeypatch.setattr(callables, "LOGITS_AT_ONCE", 2 * 257 * 3)  # three targets of two windows
    scored = subject.losses(tokens, targets, with_best=True)
    torch.testing.assert_close(scored.nats, expected, atol=1e-6, rtol=0)
    assert torch.equal(scored.is_best, logits.argmax(-1) == targets)


@pytest.mark.parametrize("name", [*sorted(hf_models.CONFIGS)])
def test_the_next_token_is_as_likely_with_kept_keys_as_after_a_whole_pass(name):
    subject = model_of(name)
    tokens, _ = windows(250, T)
    step = subject.next_logits(tokens[:, :20])
    for column in range(20, T):
        step = subject.next_logits(tokens[:, column : column + 1], step.past)
        whole = subject(tokens[:, : column + 1], 1)[:, -1]
        torch.testing.assert_close(step.logits, whole, atol=1e-5, rtol=0)


@pytest.mark.parametrize("settings", [{"name": "pi"}, {"name": "window", "window": 8}], ids=str)
def test_an_extension_acts_on_the_next_token(settings):
    subject = model_of("llama")
    extension = build_extension(settings, subject)
    encoding = extension.effective_encoding(2 * T)
    tokens, _ = windows(250, 2 * T)
    step = subject.next_logits(tokens[:, :-1], None, encoding)
    step = subject.next_logits(tokens[:, -1:], step.past, encoding)
    torch.testing.assert_close(step.logits, subject(tokens, 1, encoding)[:, -1], atol=1e-6, rtol=0)
    assert (step.logits - subject(tokens, 1)[:, -1]).abs().max() > 1e-4


def test_a_factor_and_a_cap_of_the_logits_are_the_models_own():
    """Gemma 2 caps its logits, which its head alone does not show."""
    subject = model_of("gemma2", final_logit_softcapping=0.01)
    tokens, targets = windows(250, T)
    losses = subject.losses(tokens, targets).nats
    assert (losses - torch.log(torch.tensor(257.0))).abs().max() < 0.03


def test_the_model_is_as_before_after_a_pass():
    subject = model_of("llama")
    tokens, targets = windows(250, T)
    before = subject.model(tokens).logits
    subject.losses(tokens, targets)
    torch.testing.assert_close(subject.model(tokens).logits, before)


def test_memory_does_not_grow_with_the_vocabulary_times_the_targets():
    """All logits of 2048 targets would take 403 MB, and their softmax again."""
    subject = model_of("llama", vocab_size=49_152)
    tokens, targets = windows(49_152, 2048, count=1)
    with LiveTensors() as meter:
        subject.losses(tokens, targets)
    assert meter.peak < 4 * 4 * callables.LOGITS_AT_ONCE


def test_a_function_gives_its_losses_by_blocks(monkeypatch):
    logits = torch.randn(2, 9, 17, generator=torch.Generator().manual_seed(0))
    subject = callables.CallableModel(lambda tokens: logits, 17, 9)
    tokens, targets = windows(17, 9)
    whole = subject.losses(tokens, targets).nats
    monkeypatch.setattr(callables, "LOGITS_AT_ONCE", 2 * 17 * 2)
    assert torch.equal(subject.losses(tokens, targets).nats, whole)


def test_layers_tell_how_far_a_pass_is():
    subject = model_of("llama")
    tokens, targets = windows(250, T)
    shares = []
    subject.losses(tokens, targets, on_layer=shares.append)
    assert shares == [0.5, 1.0]
    assert not any(module._forward_hooks for module in subject.modules())


# --- a model whose forward makes all logits
class WithoutLimit(transformers.LlamaForCausalLM):
    """A Llama as older code on the hub has it: its forward knows no `logits_to_keep`."""

    def forward(self, input_ids=None, past_key_values=None, use_cache=None):
        return super().forward(input_ids, past_key_values=past_key_values, use_cache=use_cache)


@pytest.fixture
def without_limit():
    """A subject of such a model. All logits of 1024 tokens take 201 MB."""
    torch.manual_seed(0)
    sizes = hf_models.SIZES | hf_models.LLAMA | {"vocab_size": 49_152}
    return TransformersModel(WithoutLimit(transformers.LlamaConfig(**sizes)).eval(), T)


@pytest.mark.parametrize(
    "ask",
    [
        lambda subject, tokens: subject(tokens, 1),
        lambda subject, tokens: subject.next_logits(tokens).logits,
        lambda subject, tokens: subject.losses(tokens, tokens[:, -1:]).nats,
    ],
    ids=["first choice", "next token", "losses"],
)
def test_logits_that_nobody_asked_for_are_not_made_by_a_model_without_a_limit(without_limit, ask):
    tokens, _ = windows(250, 1024, count=1)
    with LiveTensors() as meter:
        ask(without_limit, tokens)
    assert meter.peak < 1024 * 49_152 * 4 / 4


def test_a_model_without_a_limit_gives_the_logits_of_its_own_forward(without_limit):
    tokens, _ = windows(250, T)
    with torch.no_grad():
        expected = without_limit.model(tokens).logits
    torch.testing.assert_close(without_limit(tokens, 3), expected[:, -3:], atol=1e-6, rtol=0)
    step = without_limit.next_logits(tokens[:, :-1])
    step = without_limit.next_logits(tokens[:, -1:], step.past)
    torch.testing.assert_close(step.logits, expected[:, -1], atol=1e-5, rtol=0)


def test_the_first_choice_makes_logits_of_one_target():
    """A text that is written by passes over whole windows has as many outputs as tokens follow."""
    subject = model_of("llama", vocab_size=49_152)
    scorer = scorer_of(subject, "fp32", torch.device("cpu"))
    tokens, _ = windows(250, 1024, count=1)
    encoding = subject.effective_encoding
    model_pass = ModelPass(inputs=tokens, pos=torch.arange(1024), encoding=encoding, n_targets=1024)
    with LiveTensors() as meter:
        choice = scorer.first_choice(model_pass)
    assert meter.peak < 1024 * 49_152 * 4 / 4
    assert choice.tolist() == subject(tokens[:, :1], 1)[:, 0].argmax(-1).tolist()


# --- precision
def test_products_in_bf16_are_those_of_autocast():
    """Losses of the same operations: rounding is the same, too."""
    subject = model_of("llama")
    scorer = scorer_of(subject, "bf16", torch.device("cpu"))
    tokens, targets = windows(250, T)
    model_pass = ModelPass(
        inputs=tokens, pos=torch.arange(T), encoding=subject.effective_encoding, n_targets=T
    )
    scored = scorer.losses(model_pass, targets, with_best=False).nats
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        logits = subject.model(tokens, use_cache=False).logits
    expected = torch.nn.functional.cross_entropy(logits.float().transpose(1, 2), targets, reduction="none")
    torch.testing.assert_close(scored, expected, atol=1e-6, rtol=0)
    in_fp32 = subject.losses(tokens, targets).nats
    assert 1e-4 < (scored - in_fp32).abs().max() < 0.02


# --- which module makes the hidden states
def test_the_hidden_states_are_those_that_the_model_makes_logits_of():
    """The model OPT calls a part of its base model, so that another one would not be asked."""
    subject = model_of("opt")
    tokens, _ = windows(250, T)
    expected = subject.model(tokens).logits
    torch.testing.assert_close(subject.target_logits(tokens, T)(slice(None)), expected, atol=1e-6, rtol=0)
    assert expected.std() > 0.01


def test_a_model_without_such_a_module_makes_all_logits(monkeypatch):
    subject = model_of("llama")
    monkeypatch.setattr(hidden_states, "_makes_logits_of", lambda *_: False)
    tokens, _ = windows(250, T)
    logits = subject.target_logits(tokens, T)(slice(None))
    torch.testing.assert_close(logits, subject.model(tokens).logits, atol=1e-6, rtol=0)


def test_chunks_that_give_other_logits_are_refused(monkeypatch):
    subject = model_of("llama")
    subject.chunk_tokens = 8
    subject.check_chunks()

    def without_keys(decoder, inputs, n_targets, chunk_tokens, progress):
        """Forget the chunks before the last one."""
        return pass_in_chunks(decoder, inputs[:, -chunk_tokens:], chunk_tokens, chunk_tokens, progress)

    monkeypatch.setattr(measured_model, "pass_in_chunks", without_keys)
    with pytest.raises(UserError, match=r"subject\.chunk_tokens=8: would give other numbers"):
        subject.check_chunks()


# --- an attention that transformers calls in other ways: a mask by name (Doge), outputs as a view (JetMoe)
SIZES_OF_RARE_MODELS = {
    "doge": {"hidden_size": 32, "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 64},
    "jetmoe": {
        "hidden_size": 32,
        "num_key_value_heads": 2,
        "kv_channels": 8,
        "intermediate_size": 64,
        "num_local_experts": 2,
        "num_experts_per_tok": 2,
    },
}


@pytest.mark.parametrize("name", sorted(SIZES_OF_RARE_MODELS))
def test_a_window_as_wide_as_the_text_leaves_the_logits_alone(name):
    subject = TransformersModel(
        hf_models.random_model(name, **SIZES_OF_RARE_MODELS[name], num_hidden_layers=2), T
    )
    tokens, _ = windows(250, T)
    expected = subject(tokens, T)
    for width, is_same in ((2 * T, True), (4, False)):
        extension = build_extension({"name": "window", "window": width}, subject)
        logits = subject(tokens, T, extension.effective_encoding(T))
        assert torch.allclose(logits, expected, atol=1e-5) == is_same
