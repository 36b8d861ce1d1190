"""`import posenc`: a run as an object, collections, and the jobs of the commands as functions."""

import numpy as np
import pytest
import tiny
import torch
from fake_runs import stamps

import posenc as px
from posenc.core.errors import UserError

TEXT = "the tale of the sea and the stone is that of the tide " * 2


@pytest.fixture
def run(run_copy):
    return px.load(run_copy)


def test_import_reads_posenc_and_the_standard_library_alone():
    code = "import sys; before = {*sys.modules}; import posenc; dir(posenc)\n"
    code += "found = {name.partition('.')[0] for name in sys.modules.keys() - before}\n"
    done = tiny.python("-c", code + "print(found - sys.stdlib_module_names)")
    assert done.out == "{'posenc'}\n", done
    assert {*px.__all__} <= {*dir(px)} and all(getattr(px, name) for name in px.__all__)
    with pytest.raises(AttributeError, match="no attribute 'lode'"):
        px.lode  # noqa: B018


def test_a_run_by_path_name_and_hash_and_no_damaged_weights(run_copy):
    for name in (run_copy, str(run_copy), run_copy.name, run_copy.name[-8:], run_copy / "."):
        found = px.load(name)
        assert found.path.resolve() == run_copy.resolve() and found.state == "finished"
    assert found.config["context_length"] == found.train_length == 16
    assert {record["protocol"] for record in found.records} >= {"fixed-target", "nonoverlapping"}
    assert found.tokenizer.decode(found.tokenizer.encode("läuft\n")) == "läuft\n"
    (weights,) = run_copy.glob("checkpoints/*/model.safetensors")
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1
    weights.write_bytes(data)
    run = px.load(run_copy)  # settings and records need no weights
    assert run.records
    with pytest.raises(px.RunError, match="differs from its sha256"):
        _ = run.model


@pytest.mark.parametrize("context", [None, 1, 16, 40, 10_000])
def test_a_context_crops_every_token(run, context):
    ids = torch.tensor(run.tokenizer.encode(TEXT))
    found, most = run.nll(TEXT, context), context or len(ids)
    assert found.shape == (len(ids) - 1,) and found.dtype == np.float64
    for i in (1, 2, 16, 17, 39, 41, len(ids) - 1):
        given = ids[max(0, i - most) : i][None]
        with torch.no_grad():
            want = -run.model(given)[0, -1].log_softmax(-1)[ids[i]]  # positions by default
        assert found[i - 1] == pytest.approx(float(want), abs=1e-5)


def test_a_continuation(run):
    first = run.generate(TEXT, tokens=20, seed=1)
    assert first == run.generate(TEXT, tokens=2e1, seed=1) != run.generate(TEXT, tokens=20, seed=2)
    ids = run.tokenizer.encode(TEXT)
    for context in (16, None):
        said = list(ids)
        for _ in range(12):
            said.append(int(run.model(torch.tensor([said[-(context or 0) :]]))[0, -1].argmax()))
        want = run.tokenizer.decode(said[len(ids) :])
        assert run.generate(TEXT, context, tokens=12, temperature=0) == want


def test_train_is_the_command(run_copy, corpus, capsys):
    """The same settings are the same run, found finished; other ones are trained."""
    before = stamps(run_copy)
    assert px.train(encoding="rope", **tiny.keywords(corpus)).path.resolve() == run_copy.resolve()
    assert "already finished" in capsys.readouterr().err and stamps(run_copy) == before
    other = px.train(encoding="alibi", **tiny.keywords(corpus))
    assert other.state == "finished" and other.name.startswith("alibi-")
    assert len(px.load_runs()) == 2 and len(px.load_runs(where=["encoding=alibi"])) == 1


def test_extensions_stay_out_of_the_frame_unless_asked_for(run):
    again = px.evaluate(run, extend="yarn", eval={"protocols": ["fixed-target"]})
    assert len(again.records) == len(run.records) + 3
    runs = px.load_runs("runs")
    frame = runs.to_frame()
    assert frame["extend"].isna().all() and set(frame["protocol"]) == {"fixed-target"}
    pivot = frame.pivot_table(index="encoding", columns="multiple", values="loss_nats")
    plain = {r["multiple"]: r["nats"] for r in run.records if r["protocol"] == "fixed-target"}
    assert pivot.loc["rope"].to_dict() == pytest.approx(plain)
    every = runs.to_frame(extended=True, protocol="all")
    assert set(every["extend"].dropna()) == {"yarn"}
    assert set(every["protocol"]) == {"fixed-target", "nonoverlapping", "positions"}
    for per, column in (("cell", "seeds"), ("seed", "seed")):
        table = runs.to_frame(per)
        assert column in table and table["extend"].isna().all() and len(table)


def test_the_comparison_is_the_commands_and_a_plot_shows_itself(run, posenc, monkeypatch, tmp_path):
    monkeypatch.setenv("COLUMNS", "100")
    runs = run.runs()
    assert str(runs.compare()) == posenc("compare").out.rstrip()
    assert runs.compare(protocol="nonoverlapping").text("csv").startswith("protocol,")
    for columns, want in (([1, "4x"], [1, 4]), ("4x", [4])):
        found = runs.compare(columns=columns, rows="rope").tables[0].columns
        assert [column.multiple for column in found] == want
    plot = runs.plot("change")
    data, size = plot._repr_png_()
    assert data.startswith(b"\x89PNG") and size == {"width": 550}
    assert plot.save(tmp_path / "a.png").read_bytes() == data
    assert b"<svg" in plot.save(tmp_path / "a.svg").read_bytes()


def test_wrong_input_raises(run):
    for call, words in (
        (lambda run: px.load("nowhere"), "run=nowhere: there is no such folder"),
        (lambda run: px.train(encoding="ropee"), "did you mean: rope"),
        (lambda run: px.train(train={"tokens": "6e6"}), "train.tokens=6e6: wrong type"),
        (lambda run: px.train(seed=object()), "cannot be a setting"),
        (lambda run: px.train(encoding=["rope", "alibi"]), "takes one choice"),
        (lambda run: run.nll("x"), "no second token"),
        (lambda run: run.nll([1, 2]), "text=list: is no text"),
        (lambda run: px.train(seed=np.int64(-1)), "seed=-1: too small"),
        (lambda run: px.train(train={"lr": np.float32(-1)}), "train.lr=-1"),
        *((lambda run, lr=lr: px.train(train={"lr": lr}), "train.lr") for lr in (True, None, [1])),
        (lambda run: run.nll("xyz", context=0), "context=0: too small"),
        (lambda run: run.generate("x", tokens=1.5), "tokens=1.5: not a whole number"),
        (lambda run: px.load_runs("runs", where="encoding=zzz").compare(), "encoding=zzz"),
        (lambda run: px.evaluate("hf", subject={"pth": "x"}), "did you mean: subject.path"),
        (lambda run: px.load_runs("nowhere"), "no such run directory"),
        (lambda run: run.runs().to_frame("run"), "allowed: cell, seed"),
        (lambda run: run.runs().compare(sorted="8x"), "sorted: there is no such option"),
        (lambda run: run.runs().plot("contexts"), "did you mean: context"),
    ):
        with pytest.raises(UserError) as caught:
            call(run)
        assert words in str(caught.value) and caught.value.exit_code == 2


def test_an_encoding_that_ends(working_folder, corpus):
    """beyond=truncate sees its T tokens, beyond=refuse none more."""
    given = {"encoding": "learned", **tiny.keywords(corpus)}
    cropped, refused = (px.train(**given, **{"encoding.beyond": one}) for one in ("truncate", "refuse"))
    assert np.array_equal(cropped.nll(TEXT), cropped.nll(TEXT, context=16))
    with pytest.raises(UserError, match="up to 16 tokens"):
        refused.nll(TEXT)
