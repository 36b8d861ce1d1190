"""Extensions in models of transformers whose rotation is scaled, or differs from layer to layer.

Each number is computed a second way: frequencies by a formula that is written into transformers' own module,
distances by a product of every query with every key.
"""

import functools
import math

import hf_models
import numpy as np
import pytest
import torch
import transformers
from hf_models import LONG, LONGROPE, T

from posenc.core.errors import UserError
from posenc.evaluation.errors import NotApplicableError
from posenc.evaluation.extensions import build_extension
from posenc.evaluation.models.obstacles import KNOWN_ATTENTIONS
from posenc.evaluation.models.transformers import TransformersModel
from posenc.model.kernels import changed_limits

WINDOW = 2 * LONG
DIVISORS = [1.0, 1.5, 3.0, 4.5]
GLOBAL = "full_attention_"  # how the names of global layers' frequencies begin in Gemma's module


@functools.cache
def model(kind):
    """Return the model of a kind of checkpoint; never changed."""
    return hf_models.scaled(kind)


@pytest.fixture
def subject(kind):
    """The model as a subject, T being the length that its rotation was scaled to."""
    return TransformersModel(model(kind), LONG)


def tokens(length):
    """Return two texts of so many tokens."""
    return torch.randint(250, (2, length), generator=torch.Generator().manual_seed(1))


def extended_logits(subject, length=WINDOW, **settings):
    """Return the logits of two texts with an extension, which is checked first as a plan does."""
    subject.check(settings, length, tune=False)
    extension = build_extension(settings, subject)
    return subject(tokens(length), length, extension.effective_encoding(length))


@torch.no_grad()
def logits_of(model, window=WINDOW):
    """Return the logits of two texts by transformers alone."""
    return model(tokens(window), use_cache=False).logits


# --- frequencies
def by_parts(theta, s, truncate=True):
    """Return YaRN's frequencies, its ramp between the pairs that turn 32 times and once within T."""
    logs = np.log(LONG * theta[theta > 0] / (2 * np.pi))  # of turns
    step = math.log(500) / len(theta)
    # the pair, with a fraction, that turns so often: between neighbours, or as far beyond as the base says
    logs = np.concatenate(([logs[0] + 50 * step], logs, [logs[-1] - 50 * step]))
    index = np.concatenate(([-50], np.arange(len(logs) - 2), [len(logs) - 3 + 50]))
    first = np.interp(-math.log(32), -logs, index)
    last = np.interp(-math.log(1), -logs, index)
    if truncate:
        first = math.floor(first)
        last = math.ceil(last)
    first = max(first, 0)
    last = max(first, min(last, 2 * len(theta) - 1))
    share = np.clip((np.arange(len(theta)) - first) / max(last - first, 0.001), 0, 1)
    return theta / s * share + theta * (1 - share)


def clip(theta, s):
    """Return the frequencies with the three lowest faded that turn."""
    changed = theta.copy()
    last = np.count_nonzero(theta)
    changed[last - 3 : last] *= [1, 0.5, 0]
    return changed


def llama3(theta, s):
    """Return Llama 3's frequencies, by the turns within T."""
    turns = LONG * theta / (2 * np.pi)
    share = np.clip((turns - 1) / (4 - 1), 0, 1)
    return theta * share + theta / s * (1 - share)


# extension: (knobs, frequencies by those that the model has and by the factor s, factor of cos and sin)
FREQUENCIES = {
    "pi": ({}, lambda theta, s: theta / s, 1),
    "ntk": ({}, lambda theta, s: theta * s ** (-np.arange(4) / 3), 1),
    "dynamic_ntk": ({"factor": 2.0}, lambda theta, s: theta * (2 * s - 1) ** (-np.arange(4) / 3), 1),
    "yarn": ({}, by_parts, 0.1 * math.log(2) + 1),
    "llama3": ({}, llama3, 1),
    "clip": ({"pairs": 3}, clip, 1),
    "drop": ({}, lambda theta, s: 0 * theta, 1),
}


def set_frequencies(module, prefix, change, gain):
    """Give transformers' own module other frequencies."""
    theta = getattr(module, f"{prefix}inv_freq")
    setattr(module, f"{prefix}inv_freq", torch.tensor(change(theta.double().numpy()), dtype=torch.float32))
    setattr(module, f"{prefix}attention_scaling", getattr(module, f"{prefix}attention_scaling") * gain)


@pytest.mark.parametrize("name", FREQUENCIES)
@pytest.mark.parametrize(
    "kind", ["llama 3.1", "qwen yarn", "deepseek", "gpt-oss", "gemma 3", "gemma 4", "linear", "proportional"]
)
def test_an_extension_acts_on_the_frequencies_that_a_checkpoint_has(kind, name, subject):
    knobs, formula, gain = FREQUENCIES[name]
    changed = hf_models.scaled(kind)
    prefix = GLOBAL if kind in ("gemma 3", "gemma 4") else ""
    set_frequencies(changed.model.rotary_emb, prefix, lambda theta: formula(theta, 2), gain)
    logits = extended_logits(subject, name=name, **knobs)
    torch.testing.assert_close(logits, logits_of(changed), atol=1e-5, rtol=0)
    assert (logits - logits_of(model(kind))).abs().max() > 1e-3


def with_long_factors(divisors, gain):
    """Return the model with LongRoPE whose long factors are these times its own."""
    factors = [own * other for own, other in zip(LONGROPE["long_factor"], divisors, strict=True)]
    own_gain = math.sqrt(1 + math.log(4) / math.log(T))
    rope = LONGROPE | {"long_factor": factors, "attention_factor": own_gain * gain}
    config = model("phi-3").config.to_dict() | {"rope_parameters": rope}
    changed = transformers.Phi3ForCausalLM(transformers.Phi3Config(**config)).eval()
    changed.load_state_dict(model("phi-3").state_dict())
    return changed


@pytest.mark.parametrize("kind", ["phi-3"])
@pytest.mark.parametrize(
    ("settings", "divisors"),
    [
        ({"name": "pi"}, [2.0] * 4),
        ({"name": "ntk"}, [2 ** (k / 3) for k in range(4)]),
    ],
)
def test_an_extension_of_longrope_divides_its_long_factors(kind, settings, divisors, subject):
    logits = extended_logits(subject, **settings)
    expected = logits_of(with_long_factors(divisors, gain=1))
    torch.testing.assert_close(logits, expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize("kind", ["phi-3"])
def test_within_its_first_length_longrope_is_extended_by_its_short_factors(kind, subject):
    changed = hf_models.scaled(kind)
    module = changed.model.rotary_emb
    module.original_inv_freq = module.original_inv_freq / 2
    logits = extended_logits(subject, length=T, name="pi", factor=2.0)
    torch.testing.assert_close(logits, logits_of(changed, T), atol=1e-5, rtol=0)


@pytest.mark.parametrize("kind", ["gemma 3"])
def test_a_temperature_is_for_the_layers_that_are_extended(kind, subject):
    logits = extended_logits(subject, name="yarn", mscale_all_dim=1.0)
    changed = hf_models.scaled(kind)
    set_frequencies(changed.model.rotary_emb, GLOBAL, lambda theta: by_parts(theta, 2), 1)
    changed.model.layers[1].self_attn.scaling *= (0.1 * math.log(2) + 1) ** 2
    torch.testing.assert_close(logits, logits_of(changed), atol=1e-5, rtol=0)


# --- distances
def attention_by_distance(subject, distance, is_seen):
    """Return an attention function that turns each pair of a query and a key by a distance of its own (W, W).

    Where `is_seen` (W, W) is false a query does not see a key.

    It takes queries and keys that are rotated already, as pairs of numbers, complex ones in float64.
    """
    rotation = subject.rotation
    theta = rotation.theta
    width = 2 * len(theta)
    positions = torch.arange(len(distance))
    true_distance = positions[:, None] - positions

    def pairs_of(x):
        return torch.complex(x[..., : width // 2].double(), x[..., width // 2 : width].double())

    def attend(module, q, k, v, mask, **options):
        heads = q.shape[1] // k.shape[1]
        k = k.repeat_interleave(heads, 1)
        v = v.repeat_interleave(heads, 1)
        acts = rotation.acts_in(module.layer_idx, module.config)
        further = (distance - true_distance).double() * acts  # (W, W)
        turned = torch.exp(1j * further[..., None] * theta)  # (W, W, pairs)
        s = torch.einsum("bhip,bhjp,ijp->bhij", pairs_of(q), pairs_of(k).conj(), turned).real
        s = s + q[..., width:].double() @ k[..., width:].double().mT
        s = s * options["scaling"]
        softcap = options.get("softcap")
        if softcap is not None:
            s = torch.tanh(s / softcap) * softcap
        if mask is not None:
            s = s + mask
        s = s.masked_fill(~is_seen | (true_distance < 0), -torch.inf)
        sinks = options.get("s_aux")
        if sinks is not None:
            s = torch.cat((s, sinks.double().view(1, -1, 1, 1).expand(*s.shape[:3], 1)), dim=-1)
        p = s.softmax(-1)[..., : len(distance)]
        return (p.float() @ v).transpose(1, 2), None

    return attend


def logits_by_distance(model, subject, distance, is_seen=None):
    """Return the logits of two texts with distances (W, W) of their own."""
    if is_seen is None:
        is_seen = torch.ones_like(distance, dtype=torch.bool)
    eager_mask = transformers.masking_utils.eager_mask
    attend = attention_by_distance(subject, distance, is_seen)
    transformers.AttentionInterface.register("by distance", attend)
    transformers.AttentionMaskInterface.register("by distance", eager_mask)
    implementation = model.config._attn_implementation
    model.set_attn_implementation("by distance")
    logits = logits_of(model, len(distance))
    model.set_attn_implementation(implementation)
    return logits


def grouped_distances(window, train_length):
    """Return Self-Extend's distances (W, W): true ones near, those of groups of tokens far."""
    near = train_length // 2
    group = 1
    while (window - 1) // group + near - near // group >= train_length:
        group += 1
    i = torch.arange(window)
    true_distance = i[:, None] - i
    return torch.where(
        true_distance < near, true_distance, (i // group)[:, None] - i // group + near - near // group
    )


@pytest.mark.parametrize("queries", [7, WINDOW], ids=["blocks", "one block"])
@pytest.mark.parametrize("kind", ["llama 3.1", "qwen yarn", "phi-3", "gpt-oss", "gemma 3", "proportional"])
def test_distances_are_counted_in_groups(kind, queries, subject):
    scores_a_query = 2 * subject.shape.n_heads * WINDOW  # of two texts
    with changed_limits(max_scores=queries * scores_a_query):
        logits = extended_logits(subject, name="self_extend")
    expected = logits_by_distance(model(kind), subject, grouped_distances(WINDOW, LONG))
    torch.testing.assert_close(logits, expected, atol=2e-5, rtol=0)  # angles in float32 beside float64
    assert (logits - logits_of(model(kind))).abs().max() > 1e-3


def true_distances(window):
    """Return the distance of each query and key, (W, W)."""
    i = torch.arange(window)
    return i[:, None] - i


def capped_distances(window):
    """Return ReRoPE's distances: from 40 on all are 40."""
    return true_distances(window).clamp(max=40)


def shifted_distances(window):
    """Return STRING's distances: those from 64 on begin anew at 16."""
    distance = true_distances(window)
    return torch.where(distance < 64, distance, distance - 64 + 16)


def chunked_distances(window):
    """Return the distances of dual chunk attention, section 3 of its paper, for chunks of 96 at T = 128."""
    chunk = 96
    i = torch.arange(window)
    in_chunk = i % chunk
    of_successor = (in_chunk + chunk).clamp(max=LONG - 1)
    chunks_between = (i // chunk)[:, None] - i // chunk
    far = torch.full_like(chunks_between, LONG - 1) - in_chunk  # (W, W), the query at the last position
    near = of_successor[:, None] - in_chunk
    inside = in_chunk[:, None] - in_chunk
    return torch.where(chunks_between == 0, inside, torch.where(chunks_between == 1, near, far))


def kept_distances(window):
    """Return the distances in a list of two first keys and the latest 60, which is all that is kept."""
    distance = true_distances(window)
    key = torch.arange(window)
    n_dropped = (key - 60 + 1 - 2).clamp(min=0)[:, None]  # by query: keys between the first and the latest
    return torch.where(key < 2, distance - n_dropped, distance)


DISTANCES = {
    "dca": ({"chunk": 96}, chunked_distances),
    "rerope": ({"window": 40}, capped_distances),
    "string": ({"shift": 64, "near": 16}, shifted_distances),
    "sinks": ({"sinks": 2, "window": 60}, kept_distances),
}


@pytest.mark.parametrize("name", DISTANCES)
@pytest.mark.parametrize("kind", ["llama 3.1", "qwen yarn", "gpt-oss", "proportional"])
def test_distances_of_other_extensions_are_turned_by_the_frequencies_of_the_checkpoint(kind, name, subject):
    knobs, distances = DISTANCES[name]
    is_seen = None
    if name == "sinks":
        is_seen = (torch.arange(WINDOW) < 2) | (true_distances(WINDOW) < 60)
    logits = extended_logits(subject, name=name, **knobs)
    expected = logits_by_distance(model(kind), subject, distances(WINDOW), is_seen)
    torch.testing.assert_close(logits, expected, atol=2e-5, rtol=0)  # angles in float32 beside float64
    assert (logits - logits_of(model(kind))).abs().max() > 1e-3


OTHER_SIZES = {
    "gemma": {"head_dim": 8},
    "gemma2": hf_models.CONFIGS["gemma2"],
    "gemma3_text": hf_models.SCALED["gemma 3"][1],
    "gpt_neox": hf_models.GPT_NEOX,
    "gpt_oss": hf_models.CONFIGS["gpt_oss"],
    "olmo3": hf_models.BY_LAYER,
    "qwen3": {"head_dim": 8},
    "qwen3_moe": {"head_dim": 8},
}


@pytest.mark.slow
@pytest.mark.parametrize("architecture", KNOWN_ATTENTIONS)
def test_the_rotation_of_an_architecture_is_the_one_that_is_known(architecture):
    sizes = hf_models.LLAMA | OTHER_SIZES.get(architecture, {})
    known = hf_models.random_model(architecture, **sizes)
    subject = TransformersModel(known, T)
    logits = extended_logits(subject, length=2 * T, name="self_extend")
    expected = logits_by_distance(known, subject, grouped_distances(2 * T, T))
    torch.testing.assert_close(logits, expected, atol=2e-5, rtol=0)


# --- learned sinks
@pytest.mark.parametrize("kind", ["gpt-oss"])
def test_learned_sinks_stay_where_the_attention_is_replaced(kind, subject):
    changed = hf_models.scaled(kind)
    for layer in changed.model.layers:
        layer.self_attn.scaling /= 0.8
    logits = extended_logits(subject, name="scale", temperature=0.8)
    torch.testing.assert_close(logits, logits_of(changed), atol=1e-5, rtol=0)


# --- a text token by token
@pytest.mark.parametrize("kind", ["llama 3.1", "phi-3", "gemma 3", "dynamic"])
def test_behind_a_text_that_grows_beyond_its_first_length_the_next_token_is_as_likely_as_at_once(
    kind, subject
):
    """Keys that were rotated by the frequencies of a shorter text would be others."""
    text = tokens(T + 5)
    step = subject.next_logits(text[:, : T - 5])
    for column in range(T - 5, T + 5):
        step = subject.next_logits(text[:, column : column + 1], step.past)
    torch.testing.assert_close(step.logits, logits_of(model(kind), T + 5)[:, -1], atol=1e-5, rtol=0)


# --- what is refused
@pytest.mark.parametrize("extension", ["pi", "yarn", "self_extend", "sinks"])
@pytest.mark.parametrize(
    ("kind", "lengths"),
    [("llama 3.1", "llama3.*32 to 128"), ("qwen yarn", "yarn.*32 to 128"), ("phi-3", "longrope.*32 to 128")],
)
def test_from_the_length_before_its_scaling_a_checkpoint_is_not_extended(kind, lengths, extension):
    subject = TransformersModel(model(kind), T)
    with pytest.raises(UserError, match=lengths) as caught:
        extended_logits(subject, name=extension)
    assert "context_length=128" in str(caught.value)
    assert "subject.rope_scaling=false" in str(caught.value)


@pytest.mark.parametrize("extension", ["logn", "window"])
def test_what_leaves_the_rotation_alone_acts_from_any_length(extension):
    subject = TransformersModel(model("llama 3.1"), T)
    assert extended_logits(subject, name=extension).isfinite().all()


@pytest.mark.parametrize(
    ("kind", "settings", "message"),
    [
        ("dynamic", {"name": "yarn"}, "dynamic.*for each window by its length"),
        ("dynamic", {"name": "dca"}, "dynamic.*for each window by its length"),
        ("deepseek", {"name": "self_extend"}, "out of reach in this architecture"),
        ("phimoe", {"name": "pi"}, "makes its frequencies anew in each pass"),
        ("phi-3", {"name": "string", "shift": T // 2}, "up to 32 tokens are others"),
        ("chosen keys", {"name": "window"}, "choose which keys a query sees"),
    ],
)
def test_what_cannot_act_is_refused(kind, settings, message, subject):
    with pytest.raises(UserError, match=message):
        extended_logits(subject, **settings)


def test_what_the_layers_of_an_unknown_architecture_choose_is_never_ignored(monkeypatch):
    """It may have another setting for that, or none."""
    monkeypatch.setattr("posenc.evaluation.models.obstacles.SETTINGS_OF_CHOSEN_KEYS", ())
    subject = TransformersModel(model("chosen keys"), LONG)
    with pytest.raises(NotApplicableError, match="takes indices"):
        extended_logits(subject, name="window")


def mistral(**changes):
    """Return a Mistral, each layer of which sees a window of 24 tokens."""
    sizes = hf_models.LLAMA | {"sliding_window": 24, "max_position_embeddings": LONG} | changes
    return hf_models.random_model("mistral", **sizes)


@pytest.mark.parametrize("name", ["yarn", "sinks"])
@pytest.mark.parametrize("layer_types", [None, ["sliding_attention"] * 2], ids=["unnamed", "named"])
def test_layers_that_all_see_a_window_within_t_are_refused(name, layer_types):
    subject = TransformersModel(mistral(layer_types=layer_types), T)
    with pytest.raises(UserError, match="all its layers see 24 tokens only"):
        extended_logits(subject, name=name)


def test_layers_that_all_see_a_window_beyond_t_are_extended():
    subject = TransformersModel(mistral(), 16)
    assert extended_logits(subject, name="yarn").isfinite().all()


def test_what_leaves_the_rotation_alone_acts_in_local_layers():
    subject = TransformersModel(mistral(), T)
    assert extended_logits(subject, name="logn").isfinite().all()


def test_layers_without_a_global_rotation_are_refused():
    """All layers see a window: none is to be extended."""
    local = model("gemma 3").config.to_dict() | {"layer_types": ["sliding_attention"] * 2}
    local["rope_parameters"] = {"sliding_attention": {"rope_type": "default", "rope_theta": 100.0}}
    subject = TransformersModel(transformers.Gemma3ForCausalLM(transformers.Gemma3TextConfig(**local)), LONG)
    with pytest.raises(UserError, match="none for full_attention"):
        extended_logits(subject, name="pi")
