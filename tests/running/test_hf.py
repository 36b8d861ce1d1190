"""Models of transformers as subjects, against loops over transformers itself; runs as its checkpoints."""

import shutil
from pathlib import Path

import hf_models
import numpy as np
import pytest
import safetensors
import tiny
import torch
import transformers
from fake_runs import edit_json, read_json

import posenc as px
from posenc.config.compose import compose_jobs
from posenc.config.overrides import parse
from posenc.core.errors import UserError
from posenc.data import prepare
from posenc.evaluation.extensions import extensions
from posenc.evaluation.lengths import EvalLengths
from posenc.evaluation.protocols.fixed_target import FixedTarget
from posenc.evaluation.request import EvalRequest
from posenc.running import export_hf
from posenc.running.jobs import check_jobs
from posenc.settings.tree import DataSettings, TokenizerSettings

T = hf_models.T
load = transformers.AutoModelForCausalLM.from_pretrained
YARN = {"beta_fast": 4.0, "beta_slow": 0.2}
DIVISORS, SHORT = [1.0, 1.5, 3.0, 4.5], {"short_factor": [1.0] * 4}  # one for each pair
# a configuration without the biases that qwen2's weights have
NO_BIAS = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "layer_types": None}
REFUSED = {"gptj", "mamba", "falcon", "gpt_oss"}


@pytest.fixture(scope="module")
def checkpoints(corpus, tmp_path_factory):
    """`checkpoints(name, bos=...)`: trained once a module, if its loss is looked at; never changed."""
    place = tmp_path_factory.mktemp("checkpoints")
    text = b"".join(path.read_bytes() for path in sorted(corpus.iterdir()))
    models = {}

    def made(name, *, bos=False):
        folder = place / f"{name}{'-bos' * bos}"
        if not folder.exists():
            if name not in models:
                models[name] = hf_models.trained(name, text, steps=1 if name in REFUSED else 100)
            hf_models.save(models[name], folder, bos=bos)
        return folder

    return made


@pytest.fixture
def asked(working_folder, corpus):
    evaluation = {"lengths": ["1x", "2x", "8x"], "max_targets": 200, "protocols": ["fixed-target"]}
    return {"data": "files", "data.paths": corpus, "eval": evaluation, "device": "cpu"}


def measured(path, asked, **more):
    run = px.evaluate("hf", **{"subject.path": path, "context_length": "auto", **asked, **more})
    return losses(run.records, more.get("extend"))


def losses(records, extend=None):
    """The loss of fixed targets by window."""
    own = [r for r in records if r["protocol"] == "fixed-target"]
    return {r["window"]: r["nats"] for r in own if (r["extend"] or {}).get("name") == extend}


def windows(path, asked, window):
    """The text of every fixed target: (N, window + 1) tokens, and how many of the last are targets."""
    tokenizer = {"name": "hf", "path": str(path), "revision": "main"}
    settings = px.evaluate("hf", **{"subject.path": path, "context_length": T, **asked}).config
    store = prepare(
        DataSettings.model_validate(settings["data"]), TokenizerSettings.model_validate(tokenizer)
    )
    lengths = EvalLengths.of([T, 2 * T, 8 * T], T)
    protocol = FixedTarget(FixedTarget.Settings(target_fraction=0.25))
    plan = protocol.plan(EvalRequest(store=store, split="test", lengths=lengths, max_targets=200))
    stops = store.splits["test"].starts[plan.documents] + plan.ends
    rows = np.stack([store.tokens[stop - window - 1 : stop] for stop in stops]).astype(np.int64)
    return torch.from_numpy(rows), plan.block


def by_hand(model, tokens, block, bos=None):
    """The mean loss of the targets; a scale may depend on the number of inputs, so no last token is given."""
    inputs = tokens[:, :-1].clone()
    if bos is not None:
        inputs[:, 0] = bos
    with torch.no_grad():
        logits = torch.cat([model(rows).logits[:, -block:].float() for rows in inputs.split(16)])
    return float(torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, -block:].flatten()))


@pytest.mark.parametrize("bos", [False, True], ids=["text", "bos"])
@pytest.mark.parametrize("name", sorted(hf_models.CONFIGS.keys() - REFUSED))
def test_the_loss_is_that_of_a_loop_over_the_model(name, bos, checkpoints, asked):
    path = checkpoints(name, bos=bos)
    found = measured(path, asked, **({"context_length": T} if name in ("bloom", "gpt2") else {}))
    model = load(path)
    for window in (T, 8 * T):
        tokens, block = windows(path, asked, window)
        if name == "mpt":
            model.config.max_seq_len = window + 1
        want = by_hand(model, tokens, block, 256 if bos else None)
        assert found[window] == pytest.approx(want, abs=1e-4), window


@pytest.mark.parametrize("name", ["gpt2", "gptj"])
def test_a_table_of_positions_ends_with_a_reason(name, checkpoints, asked):
    asked["eval"] |= {"lengths": ["1x", "16x"]}
    path = checkpoints(name)
    run = px.evaluate("hf", **{"subject.path": path, "context_length": T, **asked})
    assert [record["nats"] is None for record in run.records] == [False, True]
    said = f"n/a: no encoding of positions from {8 * T + 1} on" if name == "gpt2" else "out of bounds"
    assert said in str(run.records[1]["note"])


@pytest.mark.parametrize(
    ("name", "knobs", "scaled"),
    [
        ("pi", {}, {"rope_type": "linear"}),
        ("yarn", {}, {"rope_type": "yarn"}),
        ("yarn", YARN, {"rope_type": "yarn", **YARN}),
        ("dynamic_ntk", {"factor": 1.0}, {"rope_type": "dynamic", "factor": 1.0}),
        ("llama3", {}, {"rope_type": "llama3", "low_freq_factor": 1.0, "high_freq_factor": 4.0}),
        ("longrope", {"factors": DIVISORS}, {"rope_type": "longrope", "long_factor": DIVISORS, **SHORT}),
    ],
    ids=str,
)
def test_an_extension_is_what_transformers_makes_of_it(name, knobs, scaled, checkpoints, asked):
    path = checkpoints("llama")
    rope = {"factor": 8.0, **scaled, "rope_theta": 500.0, "original_max_position_embeddings": T}
    tokens, block = windows(path, asked, 8 * T)
    found = measured(path, asked, extend=name, **{f"extend.{key}": knobs[key] for key in knobs})[8 * T]
    assert found == pytest.approx(by_hand(load(path, rope_parameters=rope), tokens, block), abs=1e-4)
    naive = load(
        path, rope_parameters={**rope, "rope_theta": 1e4}
    )  # settings that are replaced lose the base
    assert abs(found - by_hand(naive, tokens, block)) > 1e-3


def test_a_dynamic_rotation_begins_anew_with_each_pass(checkpoints, asked, tmp_path):
    """Between T and the longest text seen, transformers goes on with the longest one's scale."""
    rope = {"rope_type": "dynamic", "factor": 4.0, "rope_theta": 500.0}
    path = hf_models.save(load(checkpoints("llama"), rope_parameters=rope), tmp_path / "dynamic")
    long, _ = windows(path, asked, 8 * T)
    short, block = windows(path, asked, 2 * T)
    fresh, used = load(path), load(path)
    with torch.no_grad():
        used(long[:1])
    longest_first = {**asked, "eval": asked["eval"] | {"lengths": ["8x", "1x", "2x"]}}
    found = measured(path, longest_first)[2 * T]
    want, naive = (by_hand(one, short, block) for one in (fresh, used))
    assert found == pytest.approx(want, abs=1e-4) and abs(naive - want) > 1e-3


@pytest.mark.parametrize("name", ["bloom", "mpt"])
def test_a_bias_is_not_rounded(name, checkpoints, asked):
    path = checkpoints(name)
    asked |= {"context_length": T}
    tokens, block = windows(path, asked, 8 * T)
    model = load(path, dtype=torch.bfloat16)
    if name == "mpt":
        with pytest.raises(RuntimeError, match="size"):  # its bias ends at T
            by_hand(model, tokens, block)
        model.config.max_seq_len = 8 * T + 1
    assert abs(by_hand(model, tokens, block) - measured(path, asked)[8 * T]) > 1e-4
    with pytest.raises(UserError, match="256 and 257 are one"):
        px.evaluate("hf", **{"subject.path": path, **asked, "eval.precision": "bf16"})


def test_t_is_that_before_a_rotation_was_scaled(checkpoints, asked, tmp_path):
    rope = {"rope_type": "yarn", "factor": 4.0, "rope_theta": 500.0, "original_max_position_embeddings": T}
    model = load(checkpoints("llama"), rope_parameters=rope, max_position_embeddings=4 * T)
    path = hf_models.save(model, tmp_path / "long")
    assert sorted(measured(path, asked)) == [T, 2 * T, 8 * T]
    assert sorted(measured(path, asked | {"context_length": 4 * T, "eval.lengths": ["1x"]})) == [4 * T]
    with pytest.raises(UserError, match=r"encoding=llama: its rotation is scaled already \(yarn\)"):
        measured(path, asked, extend="ntk")


def test_bos_stands_for_a_windows_first_token(checkpoints, asked):
    path = checkpoints("llama", bos=True)
    own = measured(path, asked)
    assert own == measured(path, asked, **{"subject.bos": True})
    assert own != measured(path, asked, **{"subject.bos": False})
    run = px.evaluate("hf", **{"subject.path": path, **asked, "context_length": T})
    assert run.config["subject"]["bos"] == 256


def changed(folder, source, config, cut=None):
    """Copy a checkpoint with other values in its config.json, or its weights cut short."""
    shutil.copytree(source, folder)
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:cut])
    edit_json(folder / "config.json", **config)
    return folder


@pytest.mark.parametrize(
    ("name", "more", "words"),
    [
        ("llama", {"extend": "rerope"}, "before their rotation, which transformers does not show"),
        ("mamba", {"extend": "logn"}, "lets nothing into the attention"),
        ("falcon", {"extend": "yarn", "context_length": T}, "does not apply to encoding=falcon"),
        ("falcon", {"context_length": T, "eval.precision": "bf16"}, "256 and 257 are one"),
        ("gpt_oss", {"extend": "window", "context_length": T}, "has learned sinks"),
        ("llama", {"subject.path": "./nowhere"}, "there is no such folder"),
        ("llama", {"subject.path": Path(__file__)}, "is a file"),
        ("gpt2", {"extend": "yarn"}, "does not apply to encoding=gpt2"),
        ("bloom", {"extend": "logn", "context_length": T}, "lets nothing into the attention"),
        ("llama", {"eval.protocols": ["recall"]}, "planted in the training text"),
        ("llama", {"eval.protocols": ["key-tokens"]}, "a reference with this model's tokenizer"),
        ("llama", {"context_length": "aut"}, "context_length=aut"),
        ("llama", {"subject.bos": "maybe"}, "subject.bos=maybe"),
        ("llama", {"subject.tokenizer": "nowhere.json"}, "nowhere.json"),
        ("bloom", {}, "context_length=2048, or what the model was trained at"),
        ("llama", {"tracking": "wandb"}, "for runs that posenc trains"),
        ("llama", {"run": "x"}, "has a model of its own"),
        ("llama", {"config": {"auto_map": {"AutoConfig": "own.Config"}, "model_type": "own"}}, "code=true"),
        ("llama", {"config": {"num_hidden_layers": 3}}, "random: model.layers.2.input_layernorm.weight"),
        ("llama", {"config": {"num_hidden_layers": 1}}, "dropped: model.layers.1.input_layernorm.weight"),
        ("llama", {"config": {"num_hidden_layers": 0}}, "num_hidden_layers=0"),
        ("llama", {"config": {"num_hidden_layers": -1}}, "num_hidden_layers=-1"),
        (
            "llama",
            {"config": {"intermediate_size": 32}},
            "another shape than in the model: model.layers.0.mlp",
        ),
        ("llama", {"config": {"rope_parameters": {"rope_type": "default", "rope_theta": 0}}}, "rope_theta=0"),
        ("qwen2", {"config": NO_BIAS}, "dropped: model.layers.0.self_attn.k_proj.bias"),
        ("qwen2", {"config": NO_BIAS | {"num_hidden_layers": 3}}, "would be random: "),
        ("qwen2", {"config": NO_BIAS | {"num_hidden_layers": 3}}, "would be dropped: "),
        ("llama", {"cut": 3000}, "its weights cannot be read"),
        ("llama", {"config": {"model_type": "bert", "architectures": ["BertModel"]}}, "subject.path"),
    ],
)
def test_what_cannot_be_measured_is_said(name, more, words, checkpoints, asked, tmp_path):
    path, damage = checkpoints(name), (more.pop("config", {}), more.pop("cut", None))
    if any(damage):
        path = changed(tmp_path / "changed", path, *damage)
    with pytest.raises(UserError) as caught:
        measured(path, asked, **more)
    assert words in str(caught.value) and caught.value.exit_code == 2


@pytest.mark.parametrize(
    ("folder", "problem"),
    [
        ("", "is not the name of a folder"),
        (".", "is the current folder"),
        ("link", "link is a link to nothing"),
        ("link/below", "link is a link to nothing"),
        ("full", "exists already"),
        ("full/file/below", "file is not a folder"),
    ],
)
def test_an_export_needs_a_new_folder(folder, problem, run_copy, working_folder, posenc):
    Path("link").symlink_to("nowhere")
    tiny.write(Path("full"), {"file": ""})
    before = sorted(working_folder.rglob("*"))
    done = posenc("export", f"run={run_copy}", "--hf", folder)
    assert done.code == 2
    assert problem in done.err
    assert sorted(working_folder.rglob("*")) == before


def test_an_export_to_a_folder_that_cannot_be_written_says_so(run_copy, posenc, monkeypatch):
    monkeypatch.setattr(export_hf.os, "access", lambda *_: False)
    done = posenc("export", f"run={run_copy}", "--hf", "out")
    assert done.code == 2
    assert "cannot be written" in done.err


def test_an_export_to_a_full_disk_leaves_nothing_and_works_once_there_is_room(run_copy, posenc, monkeypatch):
    def save_half(model, folder):
        (folder / "config.json").write_text("{}")
        raise safetensors.SafetensorError("Error while serializing: No space left on device (os error 28)")

    with monkeypatch.context() as patch:
        patch.setattr(transformers.ArceeForCausalLM, "save_pretrained", save_half)
        refused = posenc("export", f"run={run_copy}", "--hf", "deep/out")
    assert refused.code == 1
    assert "cannot write" in refused.err
    assert "No space left on device" in refused.err
    assert not list(Path("deep").iterdir())
    assert posenc("export", f"run={run_copy}", "--hf", "deep/out").code == 0


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


def test_edited_code_of_a_model_is_another_model(with_remote_code, asked):
    asked |= {"subject.path": with_remote_code, "context_length": T, "subject.trust_remote_code": True}
    before = px.evaluate("hf", **asked)
    (with_remote_code / "scale.py").write_text("SCALE = 3.0\n")
    after = px.evaluate("hf", **asked)
    assert after.path != before.path
    assert losses(after.records)[T] != losses(before.records)[T]


def test_the_command(checkpoints, working_folder, corpus, posenc, capsys):
    words = [f"subject.path={checkpoints('llama')}", "data=files", f"data.paths={corpus}", "device=cpu"]
    words += ["eval.max_targets=200", "eval.lengths=[1x,2x]", "eval.protocols=[fixed-target]"]
    done = posenc("eval", "subject=hf", "context_length=auto", *words)
    assert done.code == 0 and "llama | llama 0.0" in done.out and "T = 32 tokens" in done.out
    swept = compose_jobs("eval", parse(["-m", "subject=hf", "extend=pi,rerope", *words]))
    (entry,) = check_jobs(swept)
    assert entry.composed.settings.extend.name == "pi" and "left out: rerope" in capsys.readouterr().err
    assert posenc("eval", "subject=hf", "extend=pi", *words).code == 0
    (run,) = Path("runs/subjects").glob("llama-T32-*")
    records = read_json(run / "results.json")["records"]
    assert [bool(r["extend"]) for r in records].count(True) == 2
    searched = posenc("eval", "subject=hf", "extend=longrope", "extend.tune=true", "extend.tries=2", *words)
    assert searched.code == 0 and "the best of 2 on validation documents" in searched.err, searched.err
    assert "llama" in posenc("compare").out
    assert posenc("eval").code == 2 and posenc("eval", "subject=hg").code == 2
    assert posenc("eval", f"run={run}", "context_length=8").code == 2
    again = posenc("eval", f"run={run}")
    assert again.code == 2 and "not a run that was trained" in again.err


def test_a_run_is_the_same_in_transformers_with_every_extension(run_copy, corpus, asked, posenc):
    assert posenc("export", f"run={run_copy}", "--hf", "out").code == 0
    asked["eval"] |= {"lengths": ["1x", "2x", "4x"], "max_targets": 400}
    plain = losses(px.load(run_copy).records)
    assert measured(Path("out"), asked, context_length=16) == pytest.approx(plain, abs=1e-5)
    acted = []
    for name in extensions():
        knobs = {"extend.factors": [1.0, 1.5, 2.0, 2.5, 3.0, 3.5, 4.0, 4.5]} if name == "longrope" else {}
        try:
            found = measured(Path("out"), asked, context_length=16, extend=name, **knobs)
        except UserError as error:
            assert "before their rotation" in str(error), name
            continue
        run = px.evaluate(run_copy, eval=asked["eval"], extend=name, **knobs)
        assert found == pytest.approx(losses(run.records, name), abs=1e-4), name
        acted.append(name)
    assert {"pi", "ntk", "yarn", "llama3", "longrope", "logn", "scale", "window", "drop"} <= {*acted}


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"encoding": "nope"}, None),
        ({"encoding": "rope", "encoding.layout": "half", "encoding.base": 300}, None),
        ({"encoding": "rope", "tokenizer": "bpe", "tokenizer.vocab_size": 300}, None),
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
def test_what_transformers_has_is_exported_the_rest_refused(
    changes, reason, working_folder, corpus, asked, posenc
):
    every = tiny.keywords(corpus) | changes
    every["train"] = every["train"] | {"tokens": 4 * 128}
    run = px.train(**every)
    done = posenc("export", str(run.path), "--hf", "out")
    if reason is not None:
        assert done.code == 2 and reason in done.err and not Path("out").exists()
        return
    assert done.code == 0 and posenc("export", str(run.path), "--hf", "out").code == 2
    assert "config.json is not a folder" in posenc("export", str(run.path), "--hf", "out/config.json/x").err
    assert posenc("eval", "subject=hf", f"subject.path={run.path}").err.count("posenc eval run=") == 1
    asked["eval"] = {**every["eval"], "protocols": ["fixed-target"]}
    found = measured(Path("out"), asked, context_length=16)
    assert found == pytest.approx(losses(run.records), abs=1e-5)
    ids = transformers.AutoTokenizer.from_pretrained("out")("läuft def f(x):\n")["input_ids"]
    assert ids == run.tokenizer.encode("läuft def f(x):\n")
