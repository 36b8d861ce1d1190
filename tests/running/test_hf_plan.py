"""The plan of a model of transformers: made before its weights are read, and fitted to text and machine."""

import dataclasses
import re
import shlex
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace

import hf_models
import pytest
import torch
import transformers

from posenc.config.compose import ComposedJob, compose_jobs
from posenc.config.overrides import parse
from posenc.core.atomic_files import read_sealed, write_sealed
from posenc.core.errors import UserError
from posenc.core.paths import cache_dir
from posenc.data.tokenizers import EncodedText, Tokenizer
from posenc.evaluation.models.transformers import TransformersModel
from posenc.evaluation.protocols.fixed_target import FixedTarget
from posenc.running import (
    checkpoint_identity,
    estimate,
    fit_evaluation,
    hf_checkpoint,
    machine_rates,
    pass_costs,
    room,
    stored_tensors,
    subject_hf,
    unloaded_model,
)
from posenc.running.fit_evaluation import Fit, FitLimits
from posenc.running.jobs import CheckedJob, check_jobs, plan_job
from posenc.running.plain_checkpoint import read_plainly
from posenc.running.stored_tensors import StoredTensor
from posenc.running.sweep.task import PROCESS_BYTES, make_tasks
from posenc.running.unloaded_model import model_sizes, products_with
from posenc.running.weight_types import WEIGHT_TYPES
from posenc.training.memory import peak_bytes

T = hf_models.T


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    """A Llama that was not trained: nothing here looks at its loss."""
    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model("llama", **(hf_models.SIZES | hf_models.LLAMA))
    model = transformers.AutoModelForCausalLM.from_config(config)
    return hf_models.save(model, tmp_path_factory.mktemp("checkpoint") / "llama")


@pytest.fixture
def plan(checkpoint, corpus, working_folder, monkeypatch):
    """Return a function that plans an evaluation; reading weights, or the tokens of the text, is an error."""

    def refuse(*_, **__):
        raise AssertionError("too early")

    monkeypatch.setattr(subject_hf, "load_hf_model", refuse)
    monkeypatch.setattr("posenc.running.evaluate.prepare", refuse)
    monkeypatch.setattr(machine_rates, "CALIBRATION_SECONDS", 0.01)

    def planned(*overrides, only_estimate=False):
        fixed = [
            "subject=hf",
            f"subject.path={checkpoint}",
            "data=files",
            f"data.paths={corpus}",
            "device=cpu",
        ]
        (composed,) = compose_jobs("eval", parse([*fixed, *overrides])).jobs
        return plan_job(composed.settings, only_estimate=only_estimate)

    return planned


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["extend=longrope"], "its divisors must be given"),
        (["eval.protocols=[recall]"], "planted in the training text"),
        (["eval.lengths=[100000]"], "no document of the test split is that long"),
    ],
)
def test_what_cannot_be_measured_is_refused_before_weights_are_read(plan, overrides, message):
    with pytest.raises(UserError) as caught:
        plan(*overrides)
    assert message in str(caught.value)


def test_a_length_that_only_bytes_have_is_refused_before_the_text_is_tokenised(plan, corpus, monkeypatch):
    longest = max(path.stat().st_size for path in corpus.iterdir())

    def encode_all(self, texts):
        """Encode texts as tokens of five bytes."""
        return [EncodedText([0] * (len(text) // 5), None) for text in texts]

    monkeypatch.setattr(Tokenizer, "encode_all", encode_all)
    with pytest.raises(UserError, match="the longest that works is"):
        plan(f"eval.lengths=[{longest // 4}]")


def test_parameters_are_counted_by_the_headers_of_the_files(plan, checkpoint):
    model = transformers.AutoModelForCausalLM.from_pretrained(checkpoint)
    sizes = plan().given_model.sizes
    assert sizes.parameters == sum(parameter.numel() for parameter in model.parameters())
    layers = [p for name, p in model.named_parameters() if ".layers." in name and p.ndim == 2]
    assert sizes.products == sum(parameter.numel() for parameter in layers)


def test_parameters_without_headers_are_those_of_an_outline(plan, monkeypatch):
    """Files of torch have no header, and a model of the hub may not be loaded yet."""
    sizes = plan().given_model.sizes
    monkeypatch.setattr(subject_hf, "stored_tensors", lambda checkpoint: None)
    assert plan().given_model.sizes == sizes


def test_layers_as_wide_as_the_vocabulary_are_counted(plan, tmp_path):
    sizes = {"vocab_size": 256, "hidden_size": 256, "bos_token_id": 1, "eos_token_id": 1, "pad_token_id": 1}
    model = hf_models.random_model("llama", **(hf_models.LLAMA | sizes))
    layers = [weight for name, weight in model.named_parameters() if ".layers." in name and weight.ndim == 2]
    folder = hf_models.save(model, tmp_path / "wide")
    products = plan(f"subject.path={folder}").given_model.sizes.products
    assert products == sum(weight.numel() for weight in layers)


@pytest.mark.parametrize(
    "name",
    [
        "model.embed_tokens.weight",
        "wte.weight",
        "lm_head.weight",
        "model.layers.61.embed_tokens.weight",
        "model.layers.61.shared_head.head.weight",
    ],
)
def test_tables_of_the_vocabulary_make_no_products(name):
    assert products_with(name, (100, 16), SimpleNamespace(vocab_size=100)) == 0


def test_of_experts_those_count_that_a_token_is_sent_to():
    config = SimpleNamespace(vocab_size=100, num_local_experts=8, num_experts_per_tok=2)
    assert products_with("layers.0.mlp.experts.up", (8, 4, 16), config) == 2 * 4 * 16
    assert products_with("layers.0.mlp.shared_experts.up", (4, 16), config) == 4 * 16


@pytest.mark.parametrize("header", [b" no json", b"[]", b'{"a": 1}', b'{"a": {"shape": [2]}}'])
def test_a_file_with_a_damaged_header_is_not_whole(tmp_path, header):
    file = tmp_path / "model.safetensors"
    file.write_bytes(len(header).to_bytes(8, "little") + header)
    assert not stored_tensors.is_whole(file)


def test_weights_that_a_folder_holds_twice_count_once(plan, checkpoint, tmp_path):
    """Repositories of Mistral have consolidated.safetensors beside the files that transformers reads."""
    sizes = plan().given_model.sizes
    folder = shutil.copytree(checkpoint, tmp_path / "twice")
    shutil.copy(folder / "model.safetensors", folder / "consolidated.safetensors")
    assert plan(f"subject.path={folder}").given_model.sizes == sizes


def test_of_a_download_that_stopped_the_sizes_are_unknown(checkpoint, tmp_path):
    folder = shutil.copytree(checkpoint, tmp_path / "parts")
    model = transformers.AutoModelForCausalLM.from_pretrained(folder)
    (folder / "model.safetensors").unlink()
    model.save_pretrained(folder, max_shard_size="20KB")
    parts = sorted(folder.glob("model-*.safetensors"))
    assert len(parts) > 1
    assert stored_tensors.stored_tensors(read_plainly(str(folder))) is not None
    parts[0].unlink()
    assert stored_tensors.stored_tensors(read_plainly(str(folder))) is None


def test_a_job_of_a_sweep_gets_what_its_checkpoint_needs(plan, monkeypatch):
    """Not what a tiny decoder would need, which is there for runs alone."""
    monkeypatch.setattr("posenc.running.sweep.task.usable_cores", lambda: 6)
    job = plan()
    composed = ComposedJob(["subject=hf"], job.settings)
    (task,) = make_tasks("eval", parse(["-m", "subject=hf"]), [CheckedJob(composed, job)])
    assert task.weights == job.given_model.sizes.parameters
    assert task.threads == 6
    assert task.memory > PROCESS_BYTES + job.given_model.sizes.weight_bytes
    assert task.lock == job.lock == "run"


def test_weights_are_read_once_for_their_digest(checkpoint, working_folder, monkeypatch):
    read = hf_checkpoint.read_hf_checkpoint(str(checkpoint), "main", False)
    first = checkpoint_identity.id_of_weights(read)
    monkeypatch.setattr(checkpoint_identity, "sha256_of_file", None)
    assert checkpoint_identity.id_of_weights(read) == first


def test_weights_that_were_written_again_have_another_digest(checkpoint, working_folder, tmp_path):
    folder = shutil.copytree(checkpoint, tmp_path / "copy")
    first = checkpoint_identity.id_of_weights(hf_checkpoint.read_hf_checkpoint(str(folder), "main", False))
    weights = folder / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    again = checkpoint_identity.id_of_weights(hf_checkpoint.read_hf_checkpoint(str(folder), "main", False))
    assert again != first


# --- a dry run


@pytest.fixture
def without_transformers(monkeypatch):
    """Make the use of transformers an error."""

    def refuse(key):
        raise AssertionError("a dry run does not need transformers")

    monkeypatch.setattr(hf_checkpoint, "import_transformers", refuse)


def test_a_dry_run_needs_no_transformers(plan, without_transformers):
    assert plan(only_estimate=True).given_model.sizes.parameters > 0


@pytest.fixture
def unread(checkpoint, tmp_path, monkeypatch):
    """A copy of the checkpoint, of which the cache has no digest. Reading its weights for one is an error."""
    monkeypatch.setattr(checkpoint_identity, "_digest_of_weights", None)
    return shutil.copytree(checkpoint, tmp_path / "unread")


@pytest.mark.parametrize(
    "override",
    [
        "eval.max_targets=500",
        "extend=yarn",
        "subject.tokenizer=bytes",
        "subject.bos=true",
        "subject.chunk_tokens=16",
        "subject.dtype=bf16",
    ],
)
def test_a_dry_run_reads_no_weights_for_their_digest(plan, unread, override):
    job = plan(f"subject.path={unread}", override, only_estimate=True)
    assert job.directory.name == f"unread-T{T}-*"


def test_a_dry_run_without_a_scaling_reads_no_weights(plan, tmp_path, monkeypatch):
    folder = hf_models.save(hf_models.scaled("llama 3.1"), tmp_path / "scaled")
    monkeypatch.setattr(checkpoint_identity, "_digest_of_weights", None)
    job = plan(f"subject.path={folder}", "subject.rope_scaling=false", only_estimate=True)
    assert job.directory.name == f"scaled-unscaled-T{T}-*"


def test_a_dry_run_of_a_sweep_reads_no_weights(unread, corpus, working_folder, monkeypatch):
    monkeypatch.setattr(machine_rates, "CALIBRATION_SECONDS", 0.01)
    texts = ["data=files", f"data.paths={corpus}", "device=cpu"]
    line = ["-m", "subject=hf", f"subject.path={unread}", *texts, "extend=none,yarn"]
    jobs = check_jobs(compose_jobs("eval", parse(line)), only_estimate=True)
    assert [checked.job.directory.name for checked in jobs] == [f"unread-T{T}-*"] * 2


def test_a_dry_run_plans_what_an_evaluation_plans(plan):
    estimated = plan("eval.max_targets=500", only_estimate=True)
    planned = plan("eval.max_targets=500")
    assert estimated.evaluation.settings == planned.evaluation.settings
    assert estimated.given_model.sizes == planned.given_model.sizes
    assert estimated.notes == planned.notes


def test_what_a_dry_run_chose_is_measured(plan, monkeypatch):
    chosen = plan("eval.max_minutes=0.01", only_estimate=True).evaluation.settings
    monkeypatch.setattr(pass_costs, "MULTIPLICATIONS_A_LOGIT", 10**6)
    assert plan("eval.max_minutes=0.01").evaluation.settings == chosen


def test_a_dry_run_asks_transformers_for_the_sizes_of_other_weights(plan, monkeypatch):
    """Weights of another format than safetensors are counted in an outline of the model."""
    counted = plan(only_estimate=True).given_model.sizes
    monkeypatch.setattr(subject_hf, "stored_tensors", lambda checkpoint: None)
    sizes = plan(only_estimate=True).given_model.sizes
    assert sizes.products == counted.products


@pytest.mark.parametrize("override", ["extend=yarn", "subject.tokenizer=bytes"])
def test_a_dry_run_names_the_directory_of_weights_that_were_read_before(plan, override):
    directory = plan(override).directory
    assert plan(override, only_estimate=True).directory == directory


@pytest.mark.parametrize("only_estimate", [False, True], ids=["run", "dry run"])
def test_records_of_this_folder_are_called_like_the_folder(plan, checkpoint, monkeypatch, only_estimate):
    stored = plan().directory
    monkeypatch.chdir(checkpoint)
    runs_dir = stored.parents[1].resolve()
    job = plan("subject.path=.", f"subject.runs_dir={runs_dir}", only_estimate=only_estimate)
    assert job.directory.name.startswith(f"llama-T{T}-")


@pytest.mark.parametrize(
    ("path", "name"),
    [
        (".", "inner"),
        ("./", "inner"),
        ("..", "models"),
        ("../inner/../link", "link"),
        ("owner/inner", "inner"),
    ],
)
def test_a_checkpoint_is_called_like_its_folder_or_its_name_on_the_hub(tmp_path, monkeypatch, path, name):
    folder = tmp_path / "models" / "inner"
    folder.mkdir(parents=True)
    (tmp_path / "models" / "link").symlink_to(folder)
    monkeypatch.chdir(folder)
    assert hf_checkpoint.name_of_checkpoint(path) == name


# --- lengths that documents have


def test_default_lengths_are_those_that_documents_have(plan):
    job = plan("context_length=1024")
    lengths = job.evaluation.lengths
    assert lengths.windows[0] == 512
    assert lengths.longest < 8192
    assert any(note.startswith("lengths    without") for note in job.notes)


def test_lengths_that_were_asked_for_are_measured(plan):
    job = plan("eval.lengths=[1x,4x]")
    assert job.evaluation.lengths.windows == (T, 4 * T)
    assert not any(note.startswith("lengths") for note in job.notes)


def test_without_other_wishes_the_headline_alone_is_measured(plan):
    assert plan().evaluation.protocol_names == ["fixed-target"]


def test_products_in_bf16_take_a_copy_of_the_weights(plan):
    plain = estimate.estimate_evaluation(plan("eval.precision=fp32", "eval.max_targets=100"), 0)
    in_bf16 = estimate.estimate_evaluation(plan("eval.precision=bf16", "eval.max_targets=100"), 0)
    assert in_bf16.memory - plain.memory == pytest.approx(2 * plain.parameters)


# --- the attention that transformers chooses
EIGHT_HEADS = {"num_attention_heads": 8, "num_key_value_heads": 8, "hidden_size": 64}
LONG = 1024  # tokens of a window in which scores take more memory than all else
WITH_SCORES = {
    "gpt_oss": hf_models.CONFIGS["gpt_oss"] | EIGHT_HEADS,
    "gemma2": hf_models.CONFIGS["gemma2"] | EIGHT_HEADS,
    "bloom": {"hidden_size": 64, "n_layer": 2, "n_head": 8},
    "falcon": {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 8, "alibi": True},
    "gptj": {"n_embd": 64, "n_layer": 2, "n_head": 8, "rotary_dim": 4, "n_positions": LONG},
    "mpt": {"d_model": 64, "n_layers": 2, "n_heads": 8},
}
BY_DTYPE = [(name, "fp32") for name in WITH_SCORES]
BY_DTYPE += [
    (name, "bf16") for name in ("gpt_oss", "gemma2", "gptj")
]  # the others have a bias, refused there


@pytest.mark.parametrize(("architecture", "dtype"), BY_DTYPE)
def test_planned_memory_is_that_of_the_attention_that_transformers_chooses(
    plan, tmp_path, architecture, dtype
):
    """Planned bytes are compared with those of all tensors of a pass, which are scores for the most part."""
    model = hf_models.random_model(architecture, **WITH_SCORES[architecture]).to(WEIGHT_TYPES[dtype])
    folder = hf_models.save(model, tmp_path / "model")
    overrides = [f"subject.path={folder}", f"subject.dtype={dtype}", f"context_length={LONG}"]
    unloaded = plan(*overrides, "eval.max_targets=500", "eval.lengths=[1x]", only_estimate=True).given_model
    subject = TransformersModel(model, LONG)

    def make_pass(length):
        tokens = torch.zeros((1, length), dtype=torch.int64)
        subject.losses(tokens, tokens[:, -16:])

    make_pass(16)
    peak = unloaded.sizes.weight_bytes + peak_bytes(make_pass, LONG)
    assert 1 / 1.5 < unloaded.memory(LONG, LONG, 16) / peak < 1.5


@pytest.mark.parametrize("architecture", ["llama", "gpt2"])
def test_sdpa_keeps_no_scores(plan, tmp_path, architecture):
    model = hf_models.random_model(architecture, **hf_models.CONFIGS[architecture])
    folder = hf_models.save(model, tmp_path / "model")
    sizes = plan(f"subject.path={folder}", f"context_length={T}").given_model.sizes
    assert sizes.attention.name == "sdpa"
    assert sizes.attention.numbers_a_pair(8, LONG) == 0


def test_a_local_window_takes_a_mask(plan, tmp_path):
    """All heads share it. Up to the window there is none."""
    model = hf_models.random_model("mistral", **(hf_models.LLAMA | {"sliding_window": 24}))
    folder = hf_models.save(model, tmp_path / "model")
    attention = plan(f"subject.path={folder}", only_estimate=True).given_model.sizes.attention
    assert attention.numbers_a_pair(8, 24) == 0
    assert 1 <= attention.numbers_a_pair(8, LONG) < 2


def test_an_extension_in_the_attention_keeps_no_scores_of_all_pairs(plan, tmp_path):
    """posenc's attention, which takes the place of the model's, makes scores block by block."""
    model = hf_models.random_model("gpt_oss", **WITH_SCORES["gpt_oss"])
    folder = hf_models.save(model, tmp_path / "model")
    overrides = [f"subject.path={folder}", "eval.lengths=[16x]", "eval.max_targets=100"]
    as_trained = estimate.estimate_evaluation(plan(*overrides), 0).memory
    extended = estimate.estimate_evaluation(plan(*overrides, "extend=window"), 0).memory
    assert extended < as_trained / 1.5


# --- the attention that the user chooses
def test_a_chosen_attention_decides_the_planned_memory(plan):
    """A dry run knows it without transformers."""
    overrides = ["eval.lengths=[32x]", "eval.max_targets=100"]
    sdpa = estimate.estimate_evaluation(plan(*overrides, only_estimate=True), 0).memory
    eager = plan(*overrides, "subject.attention=eager", only_estimate=True)
    assert eager.given_model.sizes.attention.name == "eager"
    assert estimate.estimate_evaluation(eager, 0).memory > 3 * sdpa


def test_records_of_another_attention_have_a_directory_of_their_own(plan):
    """It changes losses by rounding, as the type of the weights does."""
    assert plan("subject.attention=eager").directory != plan().directory


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("eagre", "(?s)transformers has no such attention.*eager"),
        ("flash_attention_2", "subject.attention=flash_attention_2: "),
    ],
)
@pytest.mark.parametrize("only_estimate", [True, False], ids=["dry run", "evaluation"])
def test_an_attention_that_cannot_be_is_refused_before_weights_are_read(plan, name, message, only_estimate):
    with pytest.raises(UserError, match=message) as caught:
        plan(f"subject.attention={name}", only_estimate=only_estimate)
    assert caught.value.key == "subject.attention"


def test_an_attention_that_a_model_does_not_support_is_refused(plan, tmp_path):
    folder = hf_models.save(hf_models.random_model("gpt_oss", **hf_models.CONFIGS["gpt_oss"]), tmp_path / "m")
    with pytest.raises(UserError, match=r"subject.attention=sdpa: .*does not support"):
        plan(f"subject.path={folder}", "subject.attention=sdpa")


def test_weights_are_loaded_with_the_chosen_attention(checkpoint):
    read = hf_checkpoint.read_hf_checkpoint(str(checkpoint), "main", False)
    chosen = dataclasses.replace(read, attention="eager")
    loaded = hf_checkpoint.load_hf_model(chosen, torch.float32, None)
    assert loaded.config._attn_implementation == "eager"


def test_records_of_the_usual_attention_say_nothing_of_it(plan):
    """So that they stand beside records from before it could be chosen."""
    assert "attention" not in plan().settings.subject.parameters
    assert plan("subject.attention=eager").settings.subject.parameters["attention"] == "eager"


def test_scores_of_all_pairs_take_time():
    """eager attention makes twice the products of SDPA, and a softmax over numbers in memory."""
    cpu = torch.device("cpu")
    sdpa = unloaded_model.attention_seconds_a_flop(cpu, 8, 16, torch.float32)
    eager = unloaded_model.attention_seconds_a_flop(cpu, 8, 16, torch.float32, makes_scores=True)
    assert eager > 1.5 * sdpa


# --- what cannot be measured
@pytest.mark.parametrize("architecture", ["gpt2", "gptj"])
@pytest.mark.parametrize("only_estimate", [True, False], ids=["dry run", "evaluation"])
def test_the_end_of_a_table_of_positions_is_planned(plan, tmp_path, architecture, only_estimate):
    model = hf_models.random_model(architecture, **hf_models.CONFIGS[architecture])
    folder = hf_models.save(model, tmp_path / "model")
    overrides = [
        f"subject.path={folder}",
        f"context_length={T}",
        "eval.lengths=[8x,16x]",
        "eval.max_targets=100",
    ]
    job = plan(*overrides, "eval.lengths=[8x,16x]", only_estimate=only_estimate)
    planned = estimate.estimate_evaluation(job, 0)
    at_8t, at_16t = planned.cells[1:]
    assert at_8t.problem is None
    assert at_16t.problem == f"n/a: no encoding of positions from {8 * T + 1} on"
    assert at_16t.passes == 0
    assert at_16t.seconds == 0


def test_a_window_beyond_the_end_of_positions_takes_no_memory(plan, tmp_path):
    folder = hf_models.save(hf_models.random_model("gptj", **hf_models.CONFIGS["gptj"]), tmp_path / "model")
    overrides = [f"subject.path={folder}", f"context_length={T}", "eval.max_targets=100"]
    within = estimate.estimate_evaluation(plan(*overrides, "eval.lengths=[8x]"), 0)
    beyond = estimate.estimate_evaluation(plan(*overrides, "eval.lengths=[8x,64x]"), 0)
    assert beyond.memory == within.memory


@pytest.mark.parametrize(
    ("protocol", "window", "reason"),
    [
        ("needle", T, "no sentence of eval.needle fits into 32 tokens of a text"),
        ("ruler", T, "no prompt of niah_single_1 leaves 128 of 32 tokens"),
        ("ruler", 8 * T, "no prompt of niah_single_1 leaves 128 of 256 tokens"),
        ("memory", T // 4, "no window of eval.memory.shorter is below 8"),
        ("induction", T // 4, "two copies of 8 tokens do not fit into 8"),
    ],
)
def test_a_window_in_which_nothing_can_be_asked_has_a_reason(plan, protocol, window, reason):
    overrides = [f"eval.protocols=[{protocol}]", f"eval.lengths=[{window},32x]", "eval.target_fraction=0.125"]
    planned = estimate.estimate_evaluation(plan(*overrides, only_estimate=True), 0)
    problems = {cell.window: cell.problem for cell in planned.cells}
    assert problems[window] == f"n/a: {reason}"
    assert problems[32 * T] is None


# --- extensions that act in the attention
@pytest.fixture
def seconds(plan, monkeypatch):
    """Return a function from an extension to the planned seconds, on a machine whose speed is fixed."""
    monkeypatch.setattr(estimate, "measure_rates", lambda *_, **__: machine_rates.Rates(1e-9, 1e-9, 1e-6))
    monkeypatch.setattr(pass_costs, "attention_seconds_a_flop", lambda *_: 1e-9)

    def planned_seconds(name, *overrides):
        job = plan("eval.lengths=[1x,4x]", "eval.max_targets=100", f"extend={name}", *overrides)
        return estimate.estimate_evaluation(job, 0).seconds

    return planned_seconds


def test_each_product_that_an_extension_adds_takes_as_much_time(seconds):
    one_product = seconds("self_extend") - seconds("window")
    assert one_product > 0.2 * seconds("window")
    assert seconds("dca") - seconds("self_extend") == pytest.approx(one_product)


def test_products_with_the_first_keys_alone_take_little_time(seconds):
    assert 1 < seconds("sinks", "extend.sinks=1") / seconds("window") < 1.1


# --- targets that the machine has time for
def test_fewer_minutes_are_fewer_targets(plan):
    many = plan("eval.max_minutes=1000").evaluation.settings.max_targets
    few = plan("eval.max_minutes=0.0001").evaluation.settings.max_targets
    assert few < many == 32000


def test_targets_that_were_chosen_once_stay(plan, monkeypatch):
    """A machine under load would choose fewer, and an extension would be measured on other targets."""
    first = plan("eval.max_minutes=0.01").evaluation.settings
    monkeypatch.setattr(pass_costs, "MULTIPLICATIONS_A_LOGIT", 10**6)
    again = plan("eval.max_minutes=0.01", "extend=yarn").evaluation.settings
    assert again.max_targets == first.max_targets
    assert again.lengths == first.lengths


def test_a_choice_by_earlier_rules_is_not_read(plan, monkeypatch):
    many = plan("eval.max_minutes=1000").evaluation.settings.max_targets
    monkeypatch.setattr(
        fit_evaluation, "_estimated", lambda job, windows, counts: Fit(windows, counts, minutes=1e9)
    )
    assert plan("eval.max_minutes=1000").evaluation.settings.max_targets == many
    monkeypatch.setattr(fit_evaluation, "REVISION", fit_evaluation.REVISION + 1)
    assert plan("eval.max_minutes=1000").evaluation.settings.max_targets < many


def test_a_number_of_targets_is_taken_as_it_is(plan):
    job = plan("eval.max_targets=5000", "eval.max_minutes=0.0001")
    assert job.evaluation.settings.max_targets == 5000


def test_one_length_beyond_t_is_always_left(plan):
    windows = plan("eval.max_minutes=0.000001").evaluation.lengths.windows
    assert [window for window in windows if window > T] == [2 * T]


def test_where_no_block_fits_the_targets_are_as_many_as_without_a_limit(plan, monkeypatch):
    """With T = 131,072 a block has 65,536 targets, more than all that are measured by default."""
    job = plan("eval.max_targets=100")
    monkeypatch.setattr(FixedTarget, "block", lambda self, lengths: 1000)
    monkeypatch.setattr(
        fit_evaluation, "_estimated", lambda job, windows, counts: Fit(windows, counts, minutes=1e9)
    )
    limits = FitLimits(has_open_lengths=True, open_counts=("max_targets",), max_minutes=1.0)
    assert fit_evaluation._fit(job, limits).counts == {"max_targets": 100}


# --- windows of needle that the machine has time for
NEEDLE = ("eval.protocols=[needle]", "eval.lengths=[8x,16x]")


def test_lengths_that_there_is_no_time_for_are_said(plan, monkeypatch):
    def estimated(job, windows, counts):
        """Take no time up to 2T, and no end beyond."""
        return Fit(windows, counts, minutes=0.0 if windows[-1] <= 2 * T else 1e9)

    monkeypatch.setattr(fit_evaluation, "_estimated", estimated)
    assert plan("eval.max_minutes=7").notes[-1].endswith("up to 2x, by eval.max_minutes=7")


def test_fewer_minutes_are_fewer_windows_of_needle(plan):
    job = plan(*NEEDLE, "eval.max_minutes=0.001")
    windows = job.evaluation.settings.protocol_parameters["needle"]["windows"]
    assert 1 <= windows < 64
    assert f"chosen     eval.needle.windows={windows}, up to 16x, by eval.max_minutes=0.001" in job.notes


def test_a_limit_that_the_least_exceeds_is_said(plan):
    note = plan(*NEEDLE, "eval.max_minutes=1e-7").notes[-1]
    assert re.fullmatch(r"time       the least takes about \S.*: ask for fewer lengths or protocols", note)


def test_the_time_of_needle_is_about_what_was_asked_for(plan):
    job = plan(*NEEDLE, "eval.max_minutes=0.02")
    assert estimate.estimate_evaluation(job, 0).seconds < 2 * 60 * 0.02


def test_a_number_of_windows_is_taken_as_it_is(plan):
    job = plan(*NEEDLE, "eval.needle.windows=5", "eval.max_minutes=0.0001")
    assert job.evaluation.settings.protocol_parameters["needle"]["windows"] == 5


def test_targets_and_windows_are_lowered_together(plan):
    job = plan(*NEEDLE, "eval.protocols=[fixed-target,needle]", "eval.max_minutes=0.001")
    settings = job.evaluation.settings
    assert settings.max_targets < 32000
    assert settings.protocol_parameters["needle"]["windows"] < 64


# --- passes in chunks
def test_chunks_leave_the_plan_as_it_is(plan):
    whole = plan("eval.max_targets=500")
    in_chunks = plan("eval.max_targets=500", "subject.chunk_tokens=16")
    assert in_chunks.directory == whole.directory
    assert in_chunks.evaluation.settings == whole.evaluation.settings


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["extend=window", "subject.chunk_tokens=16"], "acts in the attention"),
        (["subject.chunk_tokens=0"], "a whole number from 1"),
    ],
    ids=str,
)
def test_chunks_that_would_change_numbers_are_refused_before_weights_are_read(plan, overrides, message):
    with pytest.raises(UserError, match=message):
        plan("eval.max_targets=500", *overrides)


# --- a model that writes
@pytest.mark.parametrize("attention", ["sdpa", pytest.param("eager", marks=pytest.mark.slow)])
def test_the_memory_of_ruler_is_that_of_a_pass_which_keeps_its_keys(plan, tmp_path, attention):
    """With many narrow layers keys and values are most of what it holds."""
    sizes = {"num_hidden_layers": 24, "num_key_value_heads": 4, "intermediate_size": 16}
    model = hf_models.random_model("llama", **(hf_models.LLAMA | sizes))
    folder = hf_models.save(model, tmp_path / "model")
    overrides = ["eval.protocols=[ruler]", "eval.ruler.tasks=[niah_multikey_3]", f"eval.lengths=[{3 * LONG}]"]
    job = plan(f"subject.path={folder}", f"subject.attention={attention}", *overrides)
    model.set_attn_implementation(attention)
    subject = TransformersModel(model, T)
    peak = peak_bytes(lambda length: subject.next_logits(torch.zeros(1, length, dtype=torch.int64)), 3 * LONG)
    planned = estimate.memory_by_window(job, 1)[3 * LONG]
    assert 1 / 1.5 < planned / (job.given_model.sizes.weight_bytes + peak) < 1.5


@pytest.mark.parametrize(("bytes_a_weight", "bytes_a_key"), [(0.5, 2), (1.0, 2), (2.0, 2), (4.0, 4)])
def test_kept_keys_of_packed_weights_are_halves(checkpoint, bytes_a_weight, bytes_a_key):
    config = transformers.AutoConfig.from_pretrained(checkpoint)
    weight = StoredTensor("weight", shape=(64, 64), bytes=4096)
    assert model_sizes(config, [weight], bytes_a_weight).bytes_a_key == bytes_a_key


# --- what fits into memory
LARGE = ["context_length=256", "eval.max_targets=100", "subject.attention=eager"]


@pytest.fixture
def free(monkeypatch, tmp_path):
    """Return a function that sets how much a model may take, and forgets what was chosen before."""

    def set_free(size):
        monkeypatch.setenv("POSENC_CACHE", str(tmp_path / f"cache of {size} bytes"))
        monkeypatch.setattr(room, "free_memory", lambda: size)

    return set_free


def memory_notes(job):
    """Return the notes on memory."""
    return [note for note in job.notes if note.startswith("memory")]


def test_default_lengths_that_do_not_fit_into_memory_are_left_out(plan, free):
    whole = plan(*LARGE)
    *others, longest = whole.evaluation.lengths.windows
    needed = estimate.memory_by_window(whole, 1)
    free((needed[longest] + needed[others[-1]]) / 2)
    job = plan(*LARGE)
    assert job.evaluation.lengths.windows == tuple(others)
    (note,) = memory_notes(job)
    pattern = r"memory     without lengths that do not fit: \S+x needs \S+ GB, and \S+ GB are free"
    assert re.fullmatch(pattern, note)


def test_a_dry_run_leaves_room_for_the_libraries_that_it_has_not_loaded(plan, free, monkeypatch):
    whole = plan(*LARGE, only_estimate=True)
    longest = whole.evaluation.lengths.longest
    needed = estimate.memory_by_window(whole, 1)[longest]
    monkeypatch.delitem(sys.modules, "transformers")
    free(needed + room.TRANSFORMERS_BYTES + 1)
    assert plan(*LARGE, only_estimate=True).evaluation.lengths.longest == longest
    free(needed + room.TRANSFORMERS_BYTES - 1)
    assert plan(*LARGE, only_estimate=True).evaluation.lengths.longest < longest


def test_t_is_measured_even_if_it_does_not_fit(plan, free):
    free(1)
    job = plan(*LARGE)
    assert job.evaluation.lengths.windows == (128, 256)
    assert memory_notes(job)[-1].startswith("memory     T = 256 does not fit: it needs ")


def test_lengths_that_the_user_named_stay_whether_they_fit_or_not(plan, free):
    free(1)
    assert plan(*LARGE, "eval.lengths=[1x,4x]").evaluation.lengths.windows == (256, 1024)


def test_passes_are_made_smaller_before_a_length_is_left_out(plan, free):
    many_windows = (*LARGE, "eval.max_targets=4000")
    whole = plan(*many_windows)
    least = max(estimate.memory_by_window(whole, 1).values())
    most = max(estimate.memory_by_window(whole, 8192).values())
    limit = (least + most) / 2
    free(limit)
    job = plan(*many_windows)
    assert job.evaluation.lengths == whole.evaluation.lengths
    batch_tokens = job.evaluation.settings.batch_tokens
    assert 1 < batch_tokens < 8192
    assert max(estimate.memory_by_window(job, batch_tokens).values()) <= limit
    assert memory_notes(job)[0].startswith(f"memory     eval.batch_tokens={batch_tokens}: 8192 need ")


def test_passes_that_the_user_named_stay_and_lengths_are_left_out_for_them(plan, free):
    whole = plan(*LARGE)
    memory = estimate.memory_by_window(whole, 8192)
    free(memory[256])
    job = plan(*LARGE, "eval.batch_tokens=8192")
    assert job.evaluation.settings.batch_tokens == 8192
    assert all(memory[window] <= memory[256] for window in job.evaluation.lengths.beyond_training)


def test_lengths_that_were_left_out_once_stay_so(plan, free, monkeypatch):
    """An extension has to be measured on the targets of the model as trained."""
    free(1)
    first = plan(*LARGE).evaluation.lengths
    monkeypatch.setattr(room, "free_memory", lambda: 1e12)
    assert plan(*LARGE, "extend=window").evaluation.lengths == first


@pytest.fixture
def chosen_with_little_memory(plan, free, monkeypatch):
    """The job that was planned where nothing fits. Since then all memory is free."""
    free(1)
    job = plan(*LARGE)
    monkeypatch.setattr(room, "free_memory", lambda: 1e12)
    return job


def test_a_choice_of_earlier_does_not_say_that_its_memory_is_what_is_free_now(
    plan, chosen_with_little_memory
):
    first = memory_notes(chosen_with_little_memory)
    again = memory_notes(plan(*LARGE))
    earlier = [note.replace("are free", "were free when this was chosen") for note in first]
    assert again[:-1] == earlier
    assert "to choose again: rm " in again[-1]


def test_a_choice_of_earlier_is_made_again_as_its_note_says(plan, chosen_with_little_memory):
    _, command = memory_notes(plan(*LARGE))[-1].split("to choose again: ")
    _, file = shlex.split(command)
    Path(file).unlink()
    job = plan(*LARGE)
    assert job.evaluation.lengths.longest > chosen_with_little_memory.evaluation.lengths.longest
    assert not memory_notes(job)


def test_a_choice_that_was_stored_as_sentences_is_made_again(plan, chosen_with_little_memory):
    for file in (cache_dir() / "fits").iterdir():
        if "batch_tokens" in read_sealed(file):
            write_sealed(file, {"lengths": [128, 256], "batch_tokens": 1, "notes": ["memory     little"]})
    assert not memory_notes(plan(*LARGE))


def test_layers_that_are_spread_over_devices_are_not_compared_with_the_memory_of_one(plan, free, monkeypatch):
    monkeypatch.setattr(subject_hf.importlib.util, "find_spec", lambda name: name)
    free(1)
    assert not memory_notes(plan(*LARGE, "subject.device_map=auto"))
