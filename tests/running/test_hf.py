"""Models of transformers as subjects, against loops over transformers itself; runs as its checkpoints."""

import json
import re
import shutil
from pathlib import Path

import hf_models
import pytest
import safetensors
import tiny
import torch
import transformers
from fake_runs import edit_json, only_run, read_json
from hf_loops import loss_by_hand, target_windows
from in_process import called_in

import posenc as px
from posenc.api.loaded_subject import LoadedSubject
from posenc.config.compose import compose_jobs
from posenc.config.overrides import parse
from posenc.core.errors import UserError
from posenc.evaluation.extensions import extensions
from posenc.running import export_hf
from posenc.running.hf_checkpoint import read_hf_checkpoint
from posenc.running.jobs import check_jobs
from posenc.running.length_note import notes_on_trained_length

T = hf_models.T
YARN_KNOBS = {"beta_fast": 4.0, "beta_slow": 0.2}
DIVISORS = [1.0, 1.5, 3.0, 4.5]  # one for each pair of a head
# a configuration without the biases that qwen2's weights have
NO_BIAS = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "layer_types": None}
REFUSED = {"gptj", "mamba", "falcon"}
LEARNED_TABLES = {"bloom", "gpt2", "opt"}  # nothing in their configuration says what they were trained at


def load(path, **changes):
    """Return the model of a checkpoint, as transformers itself loads it."""
    return transformers.AutoModelForCausalLM.from_pretrained(path, **changes)


@pytest.fixture(scope="module")
def checkpoints(corpus, tmp_path_factory):
    """Return a function that gives the checkpoint of an architecture; never changed.

    Each is trained once a module, for one step if nothing looks at its loss.
    """
    root = tmp_path_factory.mktemp("checkpoints")
    text = b"".join(path.read_bytes() for path in sorted(corpus.iterdir()))
    models = {}

    def checkpoint(name, *, bos=False):
        folder = root / (f"{name}-bos" if bos else name)
        if not folder.exists():
            if name not in models:
                models[name] = hf_models.trained(name, text, steps=1 if name in REFUSED else 100)
            hf_models.save(models[name], folder, bos=bos)
        return folder

    return checkpoint


@pytest.fixture
def settings(working_folder, corpus):
    """The settings of an evaluation."""
    evaluation = {"lengths": ["1x", "2x", "8x"], "max_targets": 200, "protocols": ["fixed-target"]}
    return {"data": "files", "data.paths": corpus, "eval": evaluation, "device": "cpu"}


def evaluate(path, settings, **changes):
    """Evaluate a checkpoint; T is that of its configuration unless the settings have one."""
    return px.evaluate("hf", **{"subject.path": path, "context_length": "auto", **settings, **changes})


def losses(records, extend=None):
    """Return the loss of fixed targets by window, as trained or with an extension."""
    by_window = {}
    for record in records:
        extension = (record["extend"] or {}).get("name")
        if record["protocol"] == "fixed-target" and extension == extend:
            by_window[record["window"]] = record["nats"]
    return by_window


def measured(path, settings, **changes):
    """Evaluate a checkpoint and return its losses by window."""
    return losses(evaluate(path, settings, **changes).records, changes.get("extend"))


FAST_MODELS = {
    "gpt2",
    "llama",
}  # learned positions and a rotation: the other kinds are tried with the slow tests
MEASURED_MODELS = [
    name if name in FAST_MODELS else pytest.param(name, marks=pytest.mark.slow)
    for name in sorted(hf_models.CONFIGS.keys() - REFUSED)
]


@pytest.mark.parametrize("bos", [False, True], ids=["text", "bos"])
@pytest.mark.parametrize("name", MEASURED_MODELS)
def test_the_loss_is_that_of_a_loop_over_the_model(name, bos, checkpoints, settings, corpus):
    path = checkpoints(name, bos=bos)
    train_length = {"context_length": T} if name in LEARNED_TABLES else {}
    loss_by_window = measured(path, settings, **train_length)
    model = load(path)
    for window in (T, 8 * T):
        if name == "mpt":
            model.config.max_seq_len = window + 1
        expected = loss_by_hand(model, target_windows(path, corpus, window), 256 if bos else None)
        assert loss_by_window[window] == pytest.approx(expected, abs=1e-4), window


@pytest.mark.parametrize("attention", ["eager", pytest.param("flex_attention", marks=pytest.mark.slow)])
def test_the_loss_does_not_depend_on_how_transformers_attends(attention, checkpoints, settings):
    path = checkpoints("llama")
    chosen = measured(path, settings, **{"subject.attention": attention})
    assert chosen == pytest.approx(measured(path, settings), abs=1e-5)


@pytest.mark.parametrize("name", ["gpt2", "gptj"])
def test_a_table_of_positions_ends_with_a_reason(name, checkpoints, settings):
    settings["eval"] |= {"lengths": ["1x", "16x"]}
    run = evaluate(checkpoints(name), settings, context_length=T)
    assert [loss is None for loss in losses(run.records).values()] == [False, True]
    assert run.records[1]["note"] == f"n/a: no encoding of positions from {8 * T + 1} on"


# --- Extensions beside those of transformers
LLAMA3 = {"rope_type": "llama3", "low_freq_factor": 1.0, "high_freq_factor": 4.0}
LONGROPE = {"rope_type": "longrope", "long_factor": DIVISORS, "short_factor": [1.0] * 4}


@pytest.mark.parametrize(
    ("name", "knobs", "of_transformers"),
    [
        pytest.param("pi", {}, {"rope_type": "linear"}, id="pi"),
        pytest.param("yarn", {}, {"rope_type": "yarn"}, id="yarn"),
        pytest.param("yarn", YARN_KNOBS, {"rope_type": "yarn", **YARN_KNOBS}, id="yarn with knobs"),
        pytest.param("dynamic_ntk", {"factor": 1.0}, {"rope_type": "dynamic", "factor": 1.0}, id="dynamic"),
        pytest.param("llama3", {}, LLAMA3, id="llama3"),
        pytest.param("longrope", {"factors": DIVISORS}, LONGROPE, id="longrope"),
    ],
)
def test_an_extension_is_what_transformers_makes_of_it(
    name, knobs, of_transformers, checkpoints, settings, corpus
):
    path = checkpoints("llama")
    rope = {"factor": 8.0, **of_transformers, "rope_theta": 500.0, "original_max_position_embeddings": T}
    windows = target_windows(path, corpus, 8 * T)
    extend = {f"extend.{knob}": value for knob, value in knobs.items()}
    loss = measured(path, settings, extend=name, **extend)[8 * T]
    assert loss == pytest.approx(loss_by_hand(load(path, rope_parameters=rope), windows), abs=1e-4)
    # transformers replaces these settings as a whole, so that the base is easily lost: another loss
    with_lost_base = load(path, rope_parameters={**rope, "rope_theta": 1e4})
    assert abs(loss - loss_by_hand(with_lost_base, windows)) > 1e-3


def test_a_dynamic_rotation_begins_anew_with_each_pass(checkpoints, settings, corpus, tmp_path):
    """Between T and the longest text seen, transformers goes on with the longest one's scale."""
    rope = {"rope_type": "dynamic", "factor": 4.0, "rope_theta": 500.0}
    path = hf_models.save(load(checkpoints("llama"), rope_parameters=rope), tmp_path / "dynamic")
    windows = target_windows(path, corpus, 2 * T)
    after_long_text = load(path)
    with torch.no_grad():
        after_long_text(target_windows(path, corpus, 8 * T).tokens[:1])
    longest_first = {**settings, "eval": settings["eval"] | {"lengths": ["8x", "1x", "2x"]}}
    loss = measured(path, longest_first)[2 * T]
    expected = loss_by_hand(load(path), windows)
    assert loss == pytest.approx(expected, abs=1e-4)
    assert abs(loss_by_hand(after_long_text, windows) - expected) > 1e-3


# --- Biases in bf16
def test_the_bias_of_bloom_is_not_rounded(checkpoints, settings, corpus):
    path = checkpoints("bloom")
    rounded = loss_by_hand(load(path, dtype=torch.bfloat16), target_windows(path, corpus, 8 * T))
    assert abs(rounded - measured(path, settings, context_length=T)[8 * T]) > 1e-4


@pytest.mark.slow
def test_the_bias_of_mpt_is_not_rounded(checkpoints, settings, corpus):
    path = checkpoints("mpt")
    windows = target_windows(path, corpus, 8 * T)
    model = load(path, dtype=torch.bfloat16)
    with pytest.raises(RuntimeError, match="size"):  # in transformers its bias ends at T
        loss_by_hand(model, windows)
    model.config.max_seq_len = 8 * T + 1
    rounded = loss_by_hand(model, windows)
    assert abs(rounded - measured(path, settings, context_length=T)[8 * T]) > 1e-4


@pytest.mark.parametrize("name", ["bloom", "mpt"])
def test_a_bias_that_would_be_rounded_is_refused(name, checkpoints, settings):
    with pytest.raises(UserError, match="256 and 257 are equal"):
        evaluate(checkpoints(name), settings, context_length=T, **{"eval.precision": "bf16"})


# --- The type of the weights
@pytest.mark.parametrize("dtype", ["bf16", "auto"])
def test_weights_in_bf16_are_what_transformers_makes_of_them(dtype, checkpoints, settings, corpus, tmp_path):
    model = load(checkpoints("llama"), dtype=torch.bfloat16)
    path = hf_models.save(model, tmp_path / "rounded")
    run = evaluate(path, settings, **{"subject.dtype": dtype})
    expected = loss_by_hand(model, target_windows(path, corpus, 2 * T))
    assert losses(run.records)[2 * T] == pytest.approx(expected, abs=1e-4)
    assert run.config["precision"] == "bf16"


def test_another_type_of_weights_is_another_run(checkpoints, settings):
    paths = [
        evaluate(checkpoints("llama"), settings, **{"subject.dtype": name}).path for name in ("bf16", "fp32")
    ]
    assert paths[0] != paths[1]


def test_quantised_weights_take_no_other_type(checkpoints, settings, tmp_path):
    quantised = {"quantization_config": {"quant_method": "gptq", "bits": 4}}
    path = changed(tmp_path / "quantised", checkpoints("llama"), quantised)
    with pytest.raises(UserError, match="are loaded as transformers loads them"):
        evaluate(path, settings, **{"subject.dtype": "bf16"})


# --- T, and the first token of a window
@pytest.fixture
def with_yarn(checkpoints, tmp_path):
    """A checkpoint whose rotation is scaled already, from T to 4T."""
    rope = {"rope_type": "yarn", "factor": 4.0, "rope_theta": 500.0, "original_max_position_embeddings": T}
    model = load(checkpoints("llama"), rope_parameters=rope, max_position_embeddings=4 * T)
    return hf_models.save(model, tmp_path / "long")


def test_t_is_that_before_a_rotation_was_scaled(with_yarn, settings):
    assert sorted(measured(with_yarn, settings)) == [T, 2 * T, 8 * T]


def test_t_may_be_set(with_yarn, settings):
    losses_at_4t = measured(with_yarn, settings, context_length=4 * T, **{"eval.lengths": ["1x"]})
    assert sorted(losses_at_4t) == [4 * T]


@pytest.mark.parametrize("name", ["llama", "gptj"])
def test_a_length_that_a_checkpoint_states_needs_no_note(name, checkpoints):
    checkpoint = read_hf_checkpoint(str(checkpoints(name)), "main", trust_remote_code=False)
    assert notes_on_trained_length(checkpoint) == ()


def test_a_length_that_is_the_default_of_a_class_is_said_to_be(checkpoints, tmp_path):
    path = shutil.copytree(checkpoints("llama"), tmp_path / "silent")
    values = read_json(path / "config.json")
    del values["max_position_embeddings"]
    (path / "config.json").write_text(json.dumps(values))
    (note,) = notes_on_trained_length(read_hf_checkpoint(str(path), "main", trust_remote_code=False))
    assert "T = 2,048 is the default of LlamaConfig: config.json states none" in note


def test_from_the_length_before_its_scaling_a_rotation_is_not_scaled_twice(with_yarn, settings):
    with pytest.raises(UserError, match=r"scaled already \(yarn\), from 32 to 128 tokens"):
        measured(with_yarn, settings, extend="ntk")


@pytest.fixture
def without_scaling(settings):
    """The settings of an evaluation of a scaled checkpoint without its scaling."""
    return settings | {"subject.rope_scaling": False}


@pytest.mark.parametrize("extend", [None, "yarn"])
def test_without_its_scaling_a_checkpoint_is_the_one_before(
    extend, with_yarn, without_scaling, checkpoints, settings
):
    changes = {} if extend is None else {"extend": extend}
    before = measured(checkpoints("llama"), settings, **changes)
    assert measured(with_yarn, without_scaling, **changes) == pytest.approx(before, abs=1e-6)


def test_without_its_scaling_a_checkpoint_has_another_name(with_yarn, without_scaling):
    assert evaluate(with_yarn, without_scaling).path.name.startswith("long-unscaled-T32-")


def test_a_rotation_without_scaling_has_none_to_take_away(checkpoints, without_scaling):
    with pytest.raises(UserError, match="its rotation is not scaled"):
        evaluate(checkpoints("llama"), without_scaling)


@pytest.mark.parametrize(("bos", "is_same"), [(True, True), (False, False)])
def test_bos_stands_for_a_windows_first_token_where_the_tokenizer_has_it(checkpoints, settings, bos, is_same):
    path = checkpoints("llama", bos=True)
    by_default = measured(path, settings)
    assert (measured(path, settings, **{"subject.bos": bos}) == by_default) == is_same


def test_the_number_of_bos_is_stored(checkpoints, settings):
    run = evaluate(checkpoints("llama", bos=True), settings, context_length=T)
    assert run.config["subject"]["bos"] == 256


# --- What cannot be measured
@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("mamba", {"extend": "logn"}, "lets nothing into the attention"),
        ("falcon", {"extend": "yarn", "context_length": T}, "does not apply to encoding=falcon"),
        ("falcon", {"context_length": T, "eval.precision": "bf16"}, "256 and 257 are equal"),
        ("llama", {"subject.path": "./nowhere"}, "there is no such folder"),
        ("llama", {"subject.path": Path(__file__)}, "is a file"),
        ("gpt2", {"extend": "yarn"}, "does not apply to encoding=gpt2"),
        ("bloom", {"extend": "logn", "context_length": T}, "lets nothing into the attention"),
        ("llama", {"eval.protocols": ["recall"]}, "planted in the training text"),
        ("llama", {"eval.protocols": ["key-tokens"]}, "a reference with this model's tokenizer"),
        ("llama", {"subject.dtype": "fp8"}, "subject.dtype=fp8"),
        ("llama", {"subject.device_map": "auto"}, "needs the package accelerate"),
        ("bloom", {"subject.dtype": "bf16", "context_length": T}, "256 and 257 are equal"),
        ("bloom", {"subject.dtype": "fp16", "context_length": T}, "2048 and 2049 are equal"),
        ("llama", {"subject.dtype": "bf16", "eval.precision": "fp32"}, "its weights are loaded in bf16"),
        ("llama", {"context_length": "aut"}, "context_length=aut"),
        ("llama", {"subject.bos": "maybe"}, "subject.bos=maybe"),
        ("llama", {"subject.tokenizer": "nowhere.json"}, "nowhere.json"),
        ("bloom", {}, "context_length=2048, or what the model was trained at"),
        ("llama", {"tracking": "wandb"}, "for runs that posenc trains"),
        ("llama", {"run": "x"}, "has a model of its own"),
    ],
)
def test_what_cannot_be_measured_is_said(name, changes, message, checkpoints, settings):
    with pytest.raises(UserError) as caught:
        evaluate(checkpoints(name), settings, **changes)
    assert message in str(caught.value)
    assert caught.value.exit_code == 2


def changed(folder, source, config):
    """Copy a checkpoint with other values in its config.json."""
    shutil.copytree(source, folder)
    edit_json(folder / "config.json", **config)
    return folder


FOREIGN_CODE = {"auto_map": {"AutoConfig": "own.Config"}, "model_type": "own"}
NO_DECODER = {"model_type": "bert", "architectures": ["BertModel"]}
NO_BASE = {"rope_parameters": {"rope_type": "default", "rope_theta": 0}}


@pytest.mark.parametrize(
    ("name", "config", "message"),
    [
        ("llama", FOREIGN_CODE, "code=true"),
        ("llama", {"num_hidden_layers": 3}, "random: model.layers.2.input_layernorm.weight"),
        ("llama", {"num_hidden_layers": 1}, "dropped: model.layers.1.input_layernorm.weight"),
        ("llama", {"num_hidden_layers": 0}, "num_hidden_layers=0"),
        ("llama", {"num_hidden_layers": -1}, "num_hidden_layers=-1"),
        ("llama", {"intermediate_size": 32}, "another shape than in the model: model.layers.0.mlp"),
        ("llama", NO_BASE, "rope_theta=0"),
        ("qwen2", NO_BIAS, "dropped: model.layers.0.self_attn.k_proj.bias"),
        ("qwen2", NO_BIAS | {"num_hidden_layers": 3}, "would be random: "),
        ("qwen2", NO_BIAS | {"num_hidden_layers": 3}, "would be dropped: "),
        ("llama", NO_DECODER, "subject.path"),
    ],
)
def test_a_configuration_that_does_not_fit_is_refused(name, config, message, checkpoints, settings, tmp_path):
    path = changed(tmp_path / "changed", checkpoints(name), config)
    with pytest.raises(UserError) as caught:
        evaluate(path, settings)
    assert message in str(caught.value)
    assert caught.value.exit_code == 2


def test_weights_that_are_cut_are_refused(checkpoints, settings, tmp_path):
    path = tmp_path / "cut"
    shutil.copytree(checkpoints("llama"), path)
    weights = path / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:3000])
    with pytest.raises(UserError, match=r"model\.safetensors is cut or damaged"):
        evaluate(path, settings)


REMOTE_CODE = {
    "configuration_mine.py": "from transformers import LlamaConfig\n"
    "class MineConfig(LlamaConfig):\n    model_type = 'mine'\n",
    "scale.py": "SCALE = 1.0\n",
    "modeling_mine.py": "from transformers import LlamaForCausalLM\n"
    "from .configuration_mine import MineConfig\nfrom .scale import SCALE\n"
    "class Mine(LlamaForCausalLM):\n    config_class = MineConfig\n"
    "    def forward(self, *inputs, **options):\n"
    "        output = super().forward(*inputs, **options)\n"
    "        output.logits = output.logits * SCALE\n        return output\n",
}
AUTO_MAP = {"AutoConfig": "configuration_mine.MineConfig", "AutoModelForCausalLM": "modeling_mine.Mine"}


@pytest.fixture
def with_remote_code(checkpoints, tmp_path, monkeypatch):
    """A checkpoint whose code lies beside it."""
    copies = tmp_path / "modules"  # not in the user's cache
    monkeypatch.setattr(transformers.dynamic_module_utils, "HF_MODULES_CACHE", str(copies))
    monkeypatch.syspath_prepend(copies)
    folder = changed(tmp_path / "mine", checkpoints("llama"), {"model_type": "mine", "auto_map": AUTO_MAP})
    return tiny.write(folder, REMOTE_CODE)


def test_edited_code_of_a_model_is_another_model(with_remote_code, settings):
    settings |= {"context_length": T, "subject.trust_remote_code": True}
    before = evaluate(with_remote_code, settings)
    (with_remote_code / "scale.py").write_text("SCALE = 3.0\n")
    after = evaluate(with_remote_code, settings)
    assert after.path != before.path
    assert losses(after.records)[T] != losses(before.records)[T]


# --- The command
@pytest.fixture
def arguments(checkpoints, corpus):
    """The arguments of an evaluation of a checkpoint."""
    small = ["eval.max_targets=200", "eval.lengths=[1x,2x]", "eval.protocols=[fixed-target]"]
    path = checkpoints("llama")
    return ["subject=hf", f"subject.path={path}", "data=files", f"data.paths={corpus}", "device=cpu", *small]


def test_the_command_shows_the_model_and_its_t(posenc, working_folder, arguments):
    result = posenc("eval", "context_length=auto", *arguments)
    assert result.code == 0, result.err
    assert "llama | llama 0.0" in result.out
    assert "T = 32 tokens" in result.out


def test_facts_that_are_found_have_a_table_by_depth_and_window(posenc, working_folder, arguments):
    asked = [
        "eval.protocols=[needle]",
        "eval.lengths=[8x,16x]",
        "eval.needle.windows=3",
        "eval.needle.keys=[1]",
    ]
    result = posenc("eval", "context_length=auto", *arguments, *asked)
    assert result.code == 0, result.err
    assert "% of facts found, by depth in the text and window" in result.out
    assert re.search(r"^ *0\.25 .*\[0, 56\]", result.out, re.M)


def test_values_of_ruler_have_a_table_by_task_and_window(posenc, working_folder, arguments):
    asked = [
        "eval.protocols=[ruler]",
        "eval.lengths=[1x,32x]",
        "eval.ruler.tasks=[niah_multikey_3]",
        "eval.ruler.samples=1",
    ]
    result = posenc("eval", "context_length=auto", *arguments, *asked)
    assert result.code == 0, result.err
    assert "% of values found in tasks of RULER, by window" in result.out
    assert re.search(r"^niah_multikey_3 +0 \[0, 79\]", result.out, re.M)


def sample(posenc, checkpoint, *arguments):
    """Return what `posenc sample` prints of a checkpoint."""
    return posenc("sample", "subject=hf", f"subject.path={checkpoint}", *arguments)


def test_at_temperature_zero_a_text_goes_on_as_transformers_writes_it(working_folder, checkpoints):
    path = checkpoints("llama")
    (composed,) = compose_jobs("eval", parse(["subject=hf", f"subject.path={path}"])).jobs
    subject = LoadedSubject(composed.eval_settings)
    written = subject.generate("the tale", tokens=12, temperature=0)
    ids = torch.tensor([subject.tokenizer.encode("the tale")])
    text = load(path).generate(ids, max_new_tokens=12, do_sample=False, eos_token_id=None)
    assert written == subject.tokenizer.decode(text[0, ids.shape[1] :].tolist())


def test_before_a_prompt_stands_bos_and_no_token_of_it_is_lost(working_folder, checkpoints):
    path = checkpoints("llama", bos=True)
    (composed,) = compose_jobs("eval", parse(["subject=hf", f"subject.path={path}"])).jobs
    subject = LoadedSubject(composed.eval_settings)
    written = subject.generate("the tale", tokens=12, temperature=0)
    ids = torch.tensor([[256, *subject.tokenizer.encode("the tale")]])
    text = load(path).generate(ids, max_new_tokens=12, do_sample=False, eos_token_id=None)
    assert written == subject.tokenizer.decode(text[0, ids.shape[1] :].tolist())


def test_a_text_ends_before_an_end_token_of_the_model(working_folder, checkpoints, tmp_path):
    path = shutil.copytree(checkpoints("llama"), tmp_path / "ends early")
    (composed,) = compose_jobs("eval", parse(["subject=hf", f"subject.path={path}"])).jobs
    tokenizer = LoadedSubject(composed.eval_settings).tokenizer
    ids = torch.tensor([tokenizer.encode("the tale")])
    whole_text = load(path).generate(ids, max_new_tokens=12, do_sample=False, eos_token_id=None)
    written = whole_text[0, ids.shape[1] :].tolist()
    end_token = written[-1]
    edit_json(path / "generation_config.json", eos_token_id=[end_token])
    text = LoadedSubject(composed.eval_settings).generate("the tale", tokens=12, temperature=0)
    assert text == tokenizer.decode(written[: written.index(end_token)])


def test_knobs_are_not_tuned_without_a_length_beyond_t(checkpoints, settings):
    with pytest.raises(UserError, match="no length beyond context_length to choose by"):
        evaluate(
            checkpoints("llama"), settings, extend={"name": "yarn", "tune": True}, **{"eval.lengths": ["1x"]}
        )


def test_beyond_t_a_sample_stands_beside_that_of_the_last_t_tokens(posenc, working_folder, checkpoints):
    prompt = "the tale of the sea and of the stone that it took"
    plain = sample(posenc, checkpoints("llama"), f"prompt={prompt}", "tokens=16", "temperature=0").out
    extended = sample(
        posenc, checkpoints("llama"), f"prompt={prompt}", "tokens=16", "temperature=0", "extend=pi"
    ).out
    assert "the last 16 tokens (T = 32)" in plain
    assert extended.startswith("llama +pi, given the end of a text of 49 tokens")
    assert plain.splitlines()[-1] != extended.splitlines()[-1]


def test_without_a_prompt_a_sample_goes_on_with_a_test_document(posenc, working_folder, checkpoints, corpus):
    result = sample(posenc, checkpoints("llama"), "data=files", f"data.paths={corpus}", "tokens=4")
    assert "given the end of a text of 256 tokens" in result.out


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("extend=longrope", "its divisors must be given"),
        ("extend=pi,yarn", "several values"),
        ("extend.tune=true", "chooses by losses"),
        ("eval.lengths=[1x]", "there is no such setting"),
    ],
)
def test_a_sample_refuses_what_it_cannot_do(posenc, working_folder, checkpoints, argument, message):
    result = sample(posenc, checkpoints("llama"), argument, "prompt=the")
    assert result.code == 2
    assert message in result.err


def test_in_a_sweep_an_extension_that_does_not_apply_is_left_out(working_folder, arguments, capsys):
    composed = compose_jobs("eval", parse(["-m", "extend=pi,longrope", *arguments]))
    (entry,) = check_jobs(composed)
    assert entry.composed.settings.extend.name == "pi"
    assert "left out: longrope" in capsys.readouterr().err


@pytest.fixture
def extended_subject(posenc, arguments):
    """The directory of a model that was measured with an extension."""
    result = posenc("eval", "extend=pi", *arguments)
    assert result.code == 0, result.err
    (run,) = Path("runs/subjects").glob("llama-T32-*")
    return run


def test_an_extension_is_measured_beside_the_model(extended_subject):
    records = read_json(extended_subject / "results.json")["records"]
    assert [bool(record["extend"]) for record in records].count(True) == 2


def test_a_model_is_compared_as_runs_are(extended_subject, posenc):
    assert "llama" in posenc("compare").out


def test_knobs_of_an_extension_are_searched(posenc, working_folder, arguments):
    result = posenc("eval", "extend=longrope", "extend.tune=true", "extend.tries=2", *arguments)
    assert result.code == 0, result.err
    assert "the best of 2 on validation documents" in result.err


def test_a_measured_model_is_no_run_that_was_trained(extended_subject, posenc):
    result = posenc("eval", f"run={extended_subject}")
    assert result.code == 2
    assert "not a run that was trained" in result.err


def test_a_measured_model_takes_no_other_t(extended_subject, posenc):
    assert posenc("eval", f"run={extended_subject}", "context_length=8").code == 2


@pytest.mark.parametrize("arguments", [[], ["subject=hg"]], ids=["nothing", "unknown subject"])
def test_an_evaluation_without_a_subject_is_refused(posenc, arguments):
    assert posenc("eval", *arguments).code == 2


# --- Runs as checkpoints of transformers
EIGHT_DIVISORS = [1.0, 1.5, 2.0, 2.5, 3.0, 3.5, 4.0, 4.5]


@pytest.fixture(scope="module")
def exported(tmp_path_factory, trained_once, shared_cache):
    """A working folder with the trained run, and a checkpoint of it."""
    folder = tmp_path_factory.mktemp("exported")
    shutil.copytree(trained_once, folder / "runs")
    result = called_in(folder, shared_cache, "export", f"run={only_run(folder / 'runs')}", "--hf", "out")
    assert result.code == 0, result.err
    return folder


@pytest.fixture
def settings_of_run(settings):
    """The settings by which the trained run was evaluated."""
    settings["eval"] |= {"lengths": ["1x", "2x", "4x"], "max_targets": 400}
    return settings | {"context_length": 16}


def test_a_run_is_the_same_in_transformers(exported, settings_of_run):
    run = px.load(only_run(exported / "runs"))
    loss_by_window = measured(exported / "out", settings_of_run)
    assert loss_by_window == pytest.approx(losses(run.records), abs=1e-5)


def test_the_memory_of_a_run_is_the_same_in_transformers(exported, settings_of_run):
    settings_of_run["eval"] |= {"protocols": ["memory"]}
    run = px.evaluate(only_run(exported / "runs"), eval=settings_of_run["eval"])
    in_transformers = evaluate(exported / "out", settings_of_run)
    variations = []
    for measured_run in (run, in_transformers):
        memories = [record["memory"] for record in measured_run.records if record["protocol"] == "memory"]
        variations.append([memory["variation"] for memory in memories])
    assert len(variations[0]) == 3
    for of_run, of_transformers in zip(*variations, strict=True):
        assert of_transformers == pytest.approx(of_run, abs=1e-5)


EXTENSIONS_BY_DEFAULT = ("yarn", "self_extend", "window")  # of frequencies, of distances, of what is seen
OTHER_EXTENSIONS = [name for name in extensions() if name not in EXTENSIONS_BY_DEFAULT]


@pytest.mark.parametrize(
    "name",
    [*EXTENSIONS_BY_DEFAULT, *(pytest.param(name, marks=pytest.mark.slow) for name in OTHER_EXTENSIONS)],
)
def test_an_extended_run_is_the_same_in_transformers(name, exported, settings_of_run):
    knobs = {"extend.factors": EIGHT_DIVISORS} if name == "longrope" else {}
    loss_by_window = measured(exported / "out", settings_of_run, extend=name, **knobs)
    run = px.evaluate(only_run(exported / "runs"), eval=settings_of_run["eval"], extend=name, **knobs)
    assert loss_by_window == pytest.approx(losses(run.records, name), abs=1e-4)


@pytest.fixture
def train_for_export(working_folder, corpus):
    """Return a function that trains a run of four steps with other settings."""

    def train(changes):
        arguments = tiny.keywords(corpus) | changes
        arguments["train"] = arguments["train"] | {"tokens": 4 * 128}
        return px.train(**arguments)

    return train


EXPORTED = [
    pytest.param({"encoding": "nope"}, id="nope"),
    pytest.param({"encoding": "rope", "encoding.layout": "half", "encoding.base": 300}, id="half"),
    pytest.param({"encoding": "rope", "tokenizer": "bpe", "tokenizer.vocab_size": 300}, id="bpe"),
]


@pytest.mark.parametrize("changes", EXPORTED)
def test_an_export_is_the_same_model_with_the_same_tokenizer(
    changes, train_for_export, settings_of_run, posenc
):
    run = train_for_export(changes)
    assert posenc("export", str(run.path), "--hf", "out").code == 0
    loss_by_window = measured(Path("out"), settings_of_run)
    assert loss_by_window == pytest.approx(losses(run.records), abs=1e-5)
    text = "läuft def f(x):\n"
    ids = transformers.AutoTokenizer.from_pretrained("out")(text)["input_ids"]
    assert ids == run.tokenizer.encode(text)


def test_an_export_is_not_replaced(exported, shared_cache):
    run = only_run(exported / "runs")
    assert called_in(exported, shared_cache, "export", str(run), "--hf", "out").code == 2


@pytest.mark.parametrize(
    ("folder", "problem"),
    [
        ("", "is not the name of a folder"),
        (".", "is the current folder"),
        ("link", "link is a link to nothing"),
        ("link/below", "link is a link to nothing"),
        ("full", "exists already"),
        ("/", "exists already"),
        ("full/file/below", "file is not a folder"),
    ],
)
def test_an_export_needs_a_new_folder(folder, problem, run_copy, working_folder, posenc):
    Path("link").symlink_to("nowhere")
    tiny.write(Path("full"), {"file": ""})
    before = sorted(working_folder.rglob("*"))
    result = posenc("export", f"run={run_copy}", "--hf", folder)
    assert result.code == 2
    assert problem in result.err
    assert sorted(working_folder.rglob("*")) == before


def test_an_export_to_a_folder_that_cannot_be_written_says_so(run_copy, posenc, monkeypatch):
    monkeypatch.setattr(export_hf, "why_not_writable", lambda folder: "Read-only file system")
    result = posenc("export", f"run={run_copy}", "--hf", "out")
    assert result.code == 2
    assert "cannot be written (Read-only file system)" in result.err


def test_an_export_to_a_full_disk_leaves_nothing_and_works_once_there_is_room(run_copy, posenc, monkeypatch):
    def save_half(model, folder):
        (folder / "config.json").write_text("{}")
        raise safetensors.SafetensorError("Error while serializing: No space left on device (os error 28)")

    with monkeypatch.context() as patch:
        patch.setattr(transformers.ArceeForCausalLM, "save_pretrained", save_half)
        refusal = posenc("export", f"run={run_copy}", "--hf", "deep/out")
    assert refusal.code == 1
    assert "cannot write" in refusal.err
    assert "No space left on device" in refusal.err
    assert not list(Path("deep").iterdir())
    assert posenc("export", f"run={run_copy}", "--hf", "deep/out").code == 0


def test_a_run_of_posenc_is_no_checkpoint_of_transformers(run_copy, posenc):
    result = posenc("eval", "subject=hf", f"subject.path={run_copy}")
    assert result.err.count("posenc eval run=") == 1


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"encoding": "alibi"}, "encoding=alibi is not in it"),
        ({"encoding": "learned"}, "encoding=learned is not in it"),
        ({"encoding": "rope", "encoding.fraction": 0.5}, "encoding=rope is not in it"),
        ({"encoding": "rope", "attention.window": 8}, "has no window in its attention"),
        ({"encoding": "rope", "attention": "mla"}, "not the multi-head attention"),
        ({"encoding": "nope", "+model.short_conv": 4}, "has no model.short_conv"),
        (
            {"encoding": "nope", "attention.qk_norm": True},
            "no place for the weights blocks.0.attention.q_norm",
        ),
    ],
)
def test_what_transformers_does_not_have_is_not_exported(changes, reason, train_for_export, posenc):
    run = train_for_export(changes)
    result = posenc("export", str(run.path), "--hf", "out")
    assert result.code == 2
    assert reason in result.err
    assert not Path("out").exists()


def test_a_finished_measurement_stays_finished_if_a_further_one_fails(
    checkpoints, settings, working_folder, monkeypatch
):
    path = checkpoints("llama")
    evaluate(path, settings)
    (directory,) = (working_folder / "runs" / "subjects").glob("llama-*")
    config = (directory / "config.yaml").read_bytes()

    def fail(*_, **__):
        raise RuntimeError("no")

    monkeypatch.setattr("posenc.running.evaluate.evaluate", fail)
    with pytest.raises(RuntimeError):
        evaluate(path, settings, extend="pi")
    assert read_json(directory / "status.json")["status"] == "finished"
    assert (directory / "config.yaml").read_bytes() == config
