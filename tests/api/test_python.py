"""`import posenc`: a run as an object, collections of runs, and the jobs of the commands as functions."""

import shutil
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest
import tiny
import torch
from fake_runs import only_run, stamps
from in_process import working_in

import posenc as px
from posenc.api.runs import CompareOptions
from posenc.core.errors import UserError
from posenc.results.drafts import CompareRequest

TEXT = "the tale of the sea and the stone is that of the tide " * 2


@pytest.fixture(scope="module")
def run(trained_once):
    """A trained run; never changed."""
    return px.load(only_run(trained_once))


# --- The package
IMPORTED_PACKAGES = """
import sys
before = {*sys.modules}
import posenc
dir(posenc)
packages = {name.partition('.')[0] for name in sys.modules.keys() - before}
print(packages - sys.stdlib_module_names)
"""


def test_import_reads_posenc_and_the_standard_library_alone():
    result = tiny.python("-c", IMPORTED_PACKAGES)
    assert result.out == "{'posenc'}\n", result


@pytest.mark.parametrize("name", px.__all__)
def test_a_public_name_is_there_and_listed(name):
    assert getattr(px, name)
    assert name in dir(px)


def test_a_name_that_is_not_there_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'lode'"):
        px.lode  # noqa: B018


# --- A run
def test_a_run_is_found_by_its_path(run_copy):
    assert px.load(run_copy).path.resolve() == run_copy.resolve()
    assert px.load(run_copy / ".").path.resolve() == run_copy.resolve()
    assert px.load(str(run_copy)).path.resolve() == run_copy.resolve()


def test_a_run_is_found_by_its_name(run_copy):
    assert px.load(run_copy.name).path.resolve() == run_copy.resolve()


def test_a_run_is_found_by_its_hash(run_copy):
    settings_hash = run_copy.name[-8:]
    assert px.load(settings_hash).path.resolve() == run_copy.resolve()


def test_a_run_has_its_state_settings_and_records(run):
    assert run.state == "finished"
    assert run.config["context_length"] == 16
    assert run.train_length == 16
    assert {record["protocol"] for record in run.records} >= {"fixed-target", "nonoverlapping"}


def test_a_run_has_its_tokenizer(run):
    assert run.tokenizer.decode(run.tokenizer.encode("läuft\n")) == "läuft\n"


@pytest.fixture
def with_damaged_weights(run_copy):
    """A run with one other bit in its weights."""
    (weights,) = run_copy.glob("checkpoints/*/model.safetensors")
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1
    weights.write_bytes(data)
    return px.load(run_copy)


def test_settings_and_records_need_no_weights(with_damaged_weights):
    assert with_damaged_weights.records


def test_damaged_weights_are_refused(with_damaged_weights):
    with pytest.raises(px.RunError, match="differs from its sha256"):
        _ = with_damaged_weights.model


# --- Losses and continuations of a text
@pytest.mark.parametrize("context", [None, 1, 16, 40, 10_000])
def test_a_context_crops_every_token(run, context):
    ids = torch.tensor(run.tokenizer.encode(TEXT))
    nll = run.nll(TEXT, context)
    longest = context or len(ids)
    for target in (1, 2, 16, 17, 39, 41, len(ids) - 1):
        cropped = ids[max(0, target - longest) : target]
        with torch.no_grad():
            logits = run.model(cropped[None])[0, -1]  # at the model's default positions
        expected = -logits.log_softmax(-1)[ids[target]]
        assert nll[target - 1] == pytest.approx(float(expected), abs=1e-5)


def test_there_is_a_loss_for_every_token_but_the_first(run):
    nll = run.nll(TEXT)
    assert nll.shape == (len(run.tokenizer.encode(TEXT)) - 1,)
    assert nll.dtype == np.float64


def test_a_continuation_is_the_same_with_the_same_seed(run):
    continuation = run.generate(TEXT, tokens=20, seed=1)
    assert run.generate(TEXT, tokens=2e1, seed=1) == continuation
    assert run.generate(TEXT, tokens=20, seed=2) != continuation


@pytest.mark.parametrize("context", [16, None])
def test_at_temperature_zero_the_likeliest_token_follows(run, context):
    prompt = run.tokenizer.encode(TEXT)
    ids = list(prompt)
    for _ in range(12):
        window = ids if context is None else ids[-context:]
        ids.append(int(run.model(torch.tensor([window]))[0, -1].argmax()))
    expected = run.tokenizer.decode(ids[len(prompt) :])
    assert run.generate(TEXT, context, tokens=12, temperature=0) == expected


def test_at_the_smallest_temperature_too(run):
    assert run.generate(TEXT, tokens=5, temperature=1e-40) == run.generate(TEXT, tokens=5, temperature=0)


@pytest.mark.parametrize("temperature", [None, "hot", True, float("nan"), -1])
def test_what_is_no_temperature_is_refused(run, temperature):
    with pytest.raises(UserError, match="temperature"):
        run.generate(TEXT, tokens=5, temperature=temperature)


# --- Overrides
def test_a_mapping_with_a_name_is_the_choice_of_a_group(run_copy):
    run = px.evaluate(run_copy, extend={"name": "yarn", "factor": 4}, eval={"lengths": ["1x", "2x"]})
    extended = [record["extend"] for record in run.records if record["extend"] is not None]
    assert {extension["name"] for extension in extended} == {"yarn"}
    assert {extension["factor"] for extension in extended} == {4.0}


def test_a_run_of_a_table_is_measured_by_its_path(run_copy):
    (found,) = px.load_runs(run_copy)
    assert px.evaluate(found, eval={"lengths": ["1x"]}).path == px.load(run_copy).path


# --- Training
def test_training_with_the_same_settings_finds_the_finished_run(run_copy, corpus, capsys):
    before = stamps(run_copy)
    trained = px.train(encoding="rope", **tiny.keywords(corpus))
    assert trained.path.resolve() == run_copy.resolve()
    assert "already finished" in capsys.readouterr().err
    assert stamps(run_copy) == before


def test_training_with_other_settings_makes_another_run(run_copy, corpus):
    trained = px.train(encoding="alibi", **tiny.keywords(corpus))
    assert trained.state == "finished"
    assert trained.name.startswith("alibi-")
    assert len(px.load_runs()) == 2
    assert len(px.load_runs(where=["encoding=alibi"])) == 1


# --- An encoding that ends: beyond=truncate sees its T tokens, beyond=refuse none more
def train_learned(corpus, beyond):
    return px.train(encoding="learned", **tiny.keywords(corpus), **{"encoding.beyond": beyond})


def test_an_encoding_that_truncates_sees_its_training_length(working_folder, corpus):
    run = train_learned(corpus, "truncate")
    assert np.array_equal(run.nll(TEXT), run.nll(TEXT, context=16))


def test_an_encoding_that_refuses_more_tokens_says_so(working_folder, corpus):
    run = train_learned(corpus, "refuse")
    with pytest.raises(UserError, match="up to 16 tokens"):
        run.nll(TEXT)


# --- Frames
@pytest.fixture(scope="module")
def extended_folder(tmp_path_factory, trained_once, shared_cache):
    """A working folder with a run that was evaluated again with an extension; never changed."""
    folder = tmp_path_factory.mktemp("extended")
    shutil.copytree(trained_once, folder / "runs")
    with working_in(folder, shared_cache):
        px.evaluate(only_run(folder / "runs"), extend="yarn", eval={"protocols": ["fixed-target"]})
    return folder


@pytest.fixture(scope="module")
def extended_runs(extended_folder):
    return px.load_runs(str(extended_folder / "runs"))


def test_runs_are_loaded_from_a_list_of_paths(extended_folder):
    folder = extended_folder / "runs"
    assert [run.path for run in px.load_runs([folder])] == [run.path for run in px.load_runs(folder)]


def test_an_evaluation_adds_its_records_to_the_run(extended_folder, run):
    extended = px.load(only_run(extended_folder / "runs"))
    assert len(extended.records) == len(run.records) + 3


def test_a_frame_has_the_main_protocol_without_extensions(extended_runs):
    frame = extended_runs.to_frame()
    assert frame["extend"].isna().all()
    assert set(frame["protocol"]) == {"fixed-target"}


def test_a_frame_has_the_losses_of_the_records(extended_runs, run):
    frame = extended_runs.to_frame()
    losses = frame.pivot_table(index="row", columns="multiple", values="loss_nats").loc["rope"]
    of_records = {
        record["multiple"]: record["nats"] for record in run.records if record["protocol"] == "fixed-target"
    }
    assert losses.to_dict() == pytest.approx(of_records)


def test_a_frame_has_extensions_and_all_protocols_on_request(extended_runs):
    frame = extended_runs.to_frame(extended=True, protocol="all")
    assert set(frame["extend"].dropna()) == {"yarn"}
    assert set(frame["protocol"]) == {"fixed-target", "nonoverlapping", "positions"}


@pytest.mark.parametrize(("per", "column"), [("cell", "seeds"), ("seed", "seed")])
def test_a_frame_has_a_line_a_cell_or_a_line_a_seed(extended_runs, per, column):
    frame = extended_runs.to_frame(per)
    assert len(frame)
    assert column in frame
    assert frame["extend"].isna().all()


RECORDS = Path(__file__).parents[2] / "docs/records"


def test_a_frame_of_tasks_alone_has_their_protocol():
    frame = px.load_runs(RECORDS / "tasks-randomized").to_frame()
    assert set(frame["protocol"]) == {"exact"}


# --- Comparisons and plots
def test_a_comparison_prints_what_the_command_prints(run_copy, posenc, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    assert str(px.load_runs().compare()) == posenc("compare").out.rstrip()


def test_a_comparison_has_the_formats_of_the_command(run):
    assert run.runs().compare(protocol="nonoverlapping").text("csv").startswith("protocol,")


def test_a_comparison_as_a_pandas_table_has_a_line_for_each_row_and_length(run):
    comparison = run.runs().compare()
    frame = comparison.to_frame()
    (table,) = comparison.tables
    assert list(frame["multiple"]) == [column.multiple for column in table.columns]
    assert list(frame["loss_nats"]) == [cell.mean for cell in table.rows[0].cells]


@pytest.mark.parametrize(("columns", "multiples"), [([1, "4x"], [1, 4]), ("4x", [4])])
def test_columns_of_a_comparison_are_numbers_or_texts(run, columns, multiples):
    (table,) = run.runs().compare(columns=columns, rows="rope").tables
    assert [column.multiple for column in table.columns] == multiples


@pytest.mark.parametrize("method", ["compare", "to_frame", "plot"])
def test_a_misspelt_protocol_suggests_the_nearest_one_of_posenc(run, method):
    with pytest.raises(UserError, match="did you mean: needle"):
        getattr(run.runs(), method)(protocol="neddle")


@pytest.fixture(scope="module")
def plot(run):
    return run.runs().plot("change")


def test_a_plot_shows_itself_in_a_notebook(plot):
    data, size = plot._repr_png_()
    assert data.startswith(b"\x89PNG")
    assert size == {"width": 550}


def test_a_plot_has_the_options_of_the_command(run):
    plot = run.runs().plot("change", size="3.25x2.4", labels={"rope": "Ours"}, caption="All of it.")
    svg = plot.data("svg").decode()
    assert "Ours" in svg
    assert "All of it." in svg
    assert plot._repr_png_()[1] == {"width": 325}


def test_a_plot_without_a_kind_is_that_of_its_protocol():
    runs = px.load_runs(RECORDS / "study-controls")
    assert runs.plot().kind == "context"
    assert runs.plot(protocol="recall").kind == "recall"


def test_the_legend_is_a_truth_value_or_what_the_command_takes(run):
    runs = run.runs()
    assert runs.plot(legend="off").data("svg") == runs.plot(legend=False).data("svg")


def test_a_plot_knows_its_caption(plot):
    assert "T = " in plot.caption


def test_a_plot_is_saved_as_it_is_shown(plot, tmp_path):
    data, _ = plot._repr_png_()
    assert plot.save(tmp_path / "a.png").read_bytes() == data


def test_a_plot_is_saved_in_the_format_of_the_file(plot, tmp_path):
    assert b"<svg" in plot.save(tmp_path / "a.svg").read_bytes()


# --- Wrong input
@pytest.mark.parametrize(
    ("call", "message"),
    [
        pytest.param(lambda: px.load("nowhere"), "run=nowhere: there is no such folder", id="load"),
        pytest.param(lambda: px.load_runs("nowhere"), "no such run directory", id="load_runs"),
        pytest.param(lambda: px.evaluate("hf", subject={"pth": "x"}), "did you mean: subject.path", id="key"),
        pytest.param(
            lambda: px.evaluate(len, context_length=8, tokenizer={"path": "x"}),
            "tokenizer.name",
            id="tokenizer",
        ),
    ],
)
def test_a_wrong_name_is_refused(working_folder, call, message):
    with pytest.raises(UserError) as caught:
        call()
    assert message in str(caught.value)
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"encoding": "ropee"}, "did you mean: rope"),
        ({"encoding": ["rope", "alibi"]}, "takes one choice"),
        ({"train": {"tokens": "6e6"}}, "train.tokens=6e6: wrong type"),
        ({"seed": object()}, "cannot be a setting"),
        ({"seed": np.int64(-1)}, "seed=-1: too small"),
        ({"train": {"lr": np.float32(-1)}}, "train.lr=-1"),
        ({"train": {"lr": True}}, "train.lr"),
        ({"train": {"lr": None}}, "train.lr"),
        ({"train": {"lr": [1]}}, "train.lr"),
        ({"data": {"plant": {"kind": "token"}}}, "data.plant.share: is needed"),
    ],
)
def test_wrong_settings_of_a_training_are_refused(working_folder, settings, message):
    with pytest.raises(UserError) as caught:
        px.train(**settings)
    assert message in str(caught.value)
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(
    ("call", "message"),
    [
        pytest.param(lambda run: run.nll("x"), "no second token", id="one token"),
        pytest.param(lambda run: run.nll([1, 2]), "text=list: is no text", id="no text"),
        pytest.param(lambda run: run.nll("xyz", context=0), "context=0: too small", id="context"),
        pytest.param(
            lambda run: run.generate("x", tokens=1.5), "tokens=1.5: not a whole number", id="tokens"
        ),
        pytest.param(lambda run: run.runs().to_frame("run"), "allowed: cell, seed", id="frame"),
        pytest.param(
            lambda run: run.runs().compare(sorted="8x"), "sorted: there is no such option", id="option"
        ),
        pytest.param(lambda run: run.runs().plot("contexts"), "did you mean: context", id="plot"),
        pytest.param(lambda run: run.runs().plot(legend="of"), "allowed: True, False, on, off", id="legend"),
        pytest.param(
            lambda run: run.runs().compare(metric="ppl", baseline="rope"),
            "are not compared",
            id="perplexities",
        ),
    ],
)
def test_wrong_arguments_of_a_run_are_refused(run, call, message):
    with pytest.raises(UserError) as caught:
        call(run)
    assert message in str(caught.value)
    assert caught.value.exit_code == 2


def test_a_condition_that_no_run_fulfils_is_refused(run_copy):
    with pytest.raises(UserError, match="encoding=zzz"):
        px.load_runs("runs", where="encoding=zzz").compare()


def test_a_comparison_in_python_has_the_options_of_a_request():
    assert list(CompareOptions.__annotations__) == [field.name for field in fields(CompareRequest)]
