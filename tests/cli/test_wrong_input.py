"""Wrong input: exit 2, one screen that names key, value and the nearest choice, and nothing written."""

from __future__ import annotations

import gzip
import os
from collections.abc import Callable
from pathlib import Path

import pytest
import tiny

Posenc = Callable[..., tiny.Result]

# overrides, what stderr must say
WRONG: list[tuple[list[str], list[str]]] = [
    (["-m", "name=glob(*)"], ["no job in this sweep", "glob()"]),
    (["encoding=roppe"], ["encoding=roppe", "did you mean: rope"]),
    (["encoding=RoPE"], ["encoding=RoPE", "did you mean: rope"]),
    (["encoding.name=os"], ["encoding=os", "no such encoding"]),
    (["encoding.name=../rope"], ["encoding=../rope", "no such encoding"]),
    (["encoding.name=base"], ["encoding=base", "no such encoding"]),
    (["encoding=[alibi,rope]"], ["encoding=[alibi,rope]", "one choice"]),
    (["encoding=null"], ["encoding=null", "is no name of a choice", "alibi"]),
    (["encoding={a:1}"], ["encoding.a:", "no such setting", "encoding.base"]),
    (["encoding.base.x=3"], ["encoding.base.x=3", "no such setting", "encoding.base"]),
    (["x" * 300 + "=1"], ["xxx", "no such setting"]),
    (["train=null"], ["train=null", "group of settings"]),
    (["=[1]"], ["=[1]", "cannot be read as KEY=VALUE"]),
    (["encoding=" + "x" * 252], ["encoding=xxx", "alibi"]),
    (["model=nan"], ["model=nan", "is no name of a choice", "did you mean: nano"]),
    (["=1"], ["=1", "cannot be read as KEY=VALUE"]),
    (["a.b.c.d=1"], ["a.b.c.d=1", "no such setting", "encoding"]),
    (["train=1"], ["train=1", "group of settings", "train.tokens"]),
    (["encoding.bse=3"], ["encoding.bse=3", "did you mean: encoding.base"]),
    (["+encoding.bse=3"], ["encoding.bse=3", "did you mean: encoding.base"]),
    (["encoding.base=ten"], ["encoding.base=ten", "a number"]),
    (["encoding.layout=halff"], ["encoding.layout=halff", "did you mean: half"]),
    (["encoding.fraction=2"], ["fraction=2", "(0, 1]"]),
    (["encoding=learned", "encoding.beyond=clampp"], ["encoding.beyond=clampp", "did you mean: clamp"]),
    (["encodingg=rope"], ["encodingg=rope", "did you mean: encoding"]),
    (["model=nanoo"], ["model=nanoo", "did you mean: nano"]),
    (["model.n_heads=3"], ["model.n_heads=3", "model.d_model=32", "1, 2, 4, 8"]),
    (["model.d_model=6"], ["rope", "head_dim=3", "even"]),
    (["model.n_layers=0"], ["model.n_layers=0", "from 1"]),
    (["model.d_model=wide"], ["model.d_model=wide", "a whole number"]),
    (["data=simpy"], ["data=simpy", "did you mean: sympy"]),
    (["data.path=x"], ["data.path=x", "did you mean: data.paths"]),
    (["encoding=learned", "encoding.beyon=clamp"], ["encoding.beyon=clamp", "did you mean: encoding.beyond"]),
    (["data.text_field=3"], ["data.text_field=3", "text"]),
    (["data.split.test=0.95"], ["data.split", "0.95", "leaves nothing"]),
    (["tokenizer=bite"], ["tokenizer=bite", "did you mean: bytes"]),
    (["tokenizer=hf"], ["tokenizer.path", "no default"]),
    (["optim=sgd"], ["optim=sgd", "adamw"]),
    (["optim.beta1=1.5"], ["optim.beta1=1.5", "0 to 0.9999"]),
    (["-m", "experiment=headline,smoke"], ["experiment=headline,smoke", "one at a time"]),
    (["experiment=headlines"], ["experiment=headlines", "did you mean: headline"]),
    (["tracking=wandbb"], ["tracking=wandbb", "did you mean: wandb"]),
    (["tracking.name=comet"], ["tracking=comet", "none, several, tensorboard, trackio, wandb"]),
    (["eval.lengths=[0]"], ["eval.lengths=0", "multiples of context_length"]),
    (["eval.lengths=[-1x]"], ["eval.lengths=-1x", "multiples of context_length"]),
    (["eval.lengths=[1.5]"], ["eval.lengths=1.5", "multiples of context_length"]),
    (["eval.lengths=2x"], ["eval.lengths=2x", "[a,b]"]),
    (["eval.lengths=[1000x]"], ["eval.lengths=16000", "the longest that works is 3965"]),
    (["eval.lengths=[2]"], ["eval.lengths=2", "target block of 4"]),
    (["eval.protocols=[fixed]"], ["eval.protocols=fixed", "did you mean: fixed-target"]),
    (["eval.protocols=[]"], ["eval.protocols", "fixed-target"]),
    (["eval.split=train"], ["eval.split=train", "test, validation"]),
    (["eval.target_fraction=0"], ["eval.target_fraction=0", "above 0 to 1"]),
    (["eval.max_targets=0"], ["eval.max_targets=0", "from 1"]),
    (["context_length=0"], ["context_length=0", "from 2"]),
    (["context_length=9999", "train.batch_tokens=10000"], ["context_length=9999", "longest that works is"]),
    (["train.tokns=3"], ["train.tokns=3", "did you mean: train.tokens"]),
    (["train.tokens=many"], ["train.tokens=many", "a whole number"]),
    (["train.tokens=1.5"], ["train.tokens=1.5", "a whole number"]),
    (["train.tokens=nan"], ["train.tokens=nan", "a whole number"]),
    (["train.tokens=true"], ["train.tokens=True", "a whole number"]),
    (["train.lr=fast"], ["train.lr=fast", "a number"]),
    (["train.lr=0"], ["train.lr=0", "above 0"]),
    (["train.lr=nan"], ["train.lr=nan", "above 0"]),
    (["train.batch_tokens=1"], ["train.batch_tokens=1", "context_length=16"]),
    (["train.precision=fp16"], ["train.precision=fp16", "did you mean: bf16"]),
    (["train.compile=maybe"], ["train.compile=maybe", "auto, true, false"]),
    (["train.log_every=0"], ["train.log_every=0", "from 1"]),
    (["device=cuda:77"], ["device=cuda:77", "cpu"]),
    (["device=gpu"], ["device=gpu", "did you mean: cpu"]),
    (["seed=lucky"], ["seed=lucky", "a whole number"]),
    (["seed=-1"], ["seed=-1", "from 0"]),
    (["seed=1.5"], ["seed=1.5", "a whole number"]),
    (["seed=null"], ["seed=null"]),
    (["seed=0,1"], ["seed=0,1", "add -m"]),
    (["eval.lengths=1x,8x"], ["'eval.lengths=[1x,8x]'"]),
    (["encoding=sum", "encoding.parts=alibi,rope"], ["'encoding.parts=[alibi,rope]'"]),
    (["batch_size=32"], ["did you mean: train.batch_tokens or eval.batch_tokens"]),
    (["base=5e5"], ["did you mean: encoding.base"]),
    (["lr=3e-4"], ["did you mean: train.lr"]),
    (["hydra.sweper=1"], ["did you mean: hydra.sweeper"]),
    (["~encoding"], ["encoding.name", "is missing"]),
    (["plugins=[nowhere_to_be_found]"], ["ModuleNotFoundError", "on PYTHONPATH"]),
    (["plugins=[lr.py]"], ["plugins=[lr]"]),
    (["~seed"], ["seed", "is needed"]),
    (["+depth=3"], ["depth", "no such setting"]),
    (["+train.warmup=3"], ["train.warmup", "no such setting"]),
    (["name=../up"], ["name=../up", "letters, digits"]),
    (["name=a/b"], ["name=a/b", "letters, digits"]),
    (["name='a b'"], ["name=a b", "letters, digits"]),
    ([f"name={'a' * 300}"], ["name=aaa", "at most 100"]),
    (["name=.hidden"], ["name=.hidden"]),
    (["experiment_name=../../up"], ["experiment_name=../../up", "letters, digits"]),
    (["encoding=mine", "plugins=[nowhere_to_be_found]"], ["encoding=mine"]),
    (["encoding.name=mine", "plugins=[nowhere_to_be_found]"], ["plugins=nowhere_to_be_found", "PYTHONPATH"]),
    (["lonely"], ["lonely"]),
    (["-m", "--cfg", "job"], ["--cfg=job", "--multirun"]),
    (["--bogus"], ["--bogus"]),
    (["--config-dir", "nowhere"], ["--config-dir=nowhere", "no such folder"]),
    (["-m", "encoding=rope,alibi", "seed=0,-1"], ["seed=-1", "from 0", "in job 2 of 4"]),
    (["-m", "encoding=rope,alibi,roppe"], ["encoding=roppe", "did you mean: rope"]),
    (["runs_dir="], ["runs_dir=''", "not a folder"]),
    (["runs_dir={file}"], ["runs_dir=", "is not a folder"]),
    (["runs_dir={file}/below"], ["runs_dir=", "is not a folder"]),
    ([f"runs_dir={'n' * 300}"], ["runs_dir=nnn", "too long"]),
    (["encoding=r\x1b[31mope"], [r"r\x1b[31mope"]),
    ([f"seed={'x' * 5000}"], ["seed=xxx", " ... "]),
    (["-m", "encoding=nope,rope", "model.d_model=6"], ["even", "in job 2 of 2", "encoding=rope"]),
]


def is_one_screen(result: tiny.Result, place: Path, says: list[str]) -> None:
    assert result.code == 2, result
    assert result.out == ""
    for text in says:
        assert text in result.err, result.err
    assert len(result.err.splitlines()) <= 24
    assert "Traceback" not in result.err and "fault of posenc" not in result.err
    assert not (place / "runs").exists()


@pytest.mark.parametrize(("overrides", "says"), WRONG, ids=[" ".join(w[0])[:60] for w in WRONG])
def test_wrong_overrides(train: Posenc, place: Path, overrides: list[str], says: list[str]) -> None:
    is_one_screen(train(*(o.replace("{file}", __file__) for o in overrides)), place, says)
    assert not list(place.iterdir())


def broken_files(folder: Path) -> dict[str, tuple[str, list[str]]]:
    """Name -> (data.paths, what stderr must say)."""
    folder.mkdir()
    (folder / "empty.txt").write_bytes(b"")
    (folder / "latin.txt").write_bytes(b"good until h\xe9re")
    (folder / "short").mkdir()
    for i in range(60):
        (folder / "short" / f"{i}.txt").write_text(f"{i} " * 15)
    (folder / "one.txt").write_text("all alone " * 100)
    (folder / "same").mkdir()
    for i in range(60):
        (folder / "same" / f"{i}.txt").write_text("the same text in every one " * 99)
    (folder / "rows.jsonl").write_text('{"text": "fine"}\n{"text": \n')
    (folder / "other.jsonl").write_text('{"body": "fine"}\n')
    (folder / "cut.txt.gz").write_bytes(gzip.compress(b"text " * 1000)[:-20])
    (folder / "nothing").mkdir()
    (folder / "[red]x.txt").write_bytes(b"\xff")
    at = str(folder)
    return {
        "missing": (f"{at}/latn.txt", ["latn.txt", "no such file", "did you mean", "latin.txt"]),
        "empty": (f"{at}/empty.txt", ["empty.txt", "is empty"]),
        "undecodable": (f"{at}/latin.txt", ["latin.txt", "0xe9 at offset 12"]),
        "too short": (f"{at}/short", ["eval.lengths", "longest that works is"]),
        "one document": (f"{at}/one.txt", ["data=files", "split is empty"]),
        "copies": (f"{at}/same", ["data=files", "same text"]),
        "bad line": (f"{at}/rows.jsonl", ["rows.jsonl:2", "not JSON"]),
        "other field": (f"{at}/other.jsonl", ["data.text_field=text", "body"]),
        "cut gzip": (f"{at}/cut.txt.gz", ["cut.txt.gz", "gzip"]),
        "nothing there": (f"{at}/nothing", ["no text was found"]),
        "no hit": (f"'{at}/*.md'", ["no text was found"]),
        "markup": (f"'{at}/[[]red]x.txt'", ["[red]x.txt", "0xff"]),
    }


KINDS = ["missing", "empty", "undecodable", "too short", "one document", "bad line", "other field"]


@pytest.mark.parametrize("kind", [*KINDS, "copies", "cut gzip", "nothing there", "no hit", "markup"])
def test_wrong_files(posenc: Posenc, place: Path, tmp_path: Path, kind: str) -> None:
    paths, says = broken_files(tmp_path / "broken")[kind]
    is_one_screen(posenc("train", *tiny.TINY, f"data.paths={paths}"), place, says)


def test_a_runs_dir_that_cannot_be_written(
    train: Posenc, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder of somebody else; as root every folder can be written, so the system's answer is replaced."""
    (place / "theirs").mkdir()
    real = os.access
    monkeypatch.setattr(os, "access", lambda path, mode: "theirs" not in str(path) and real(path, mode))
    result = train("runs_dir=theirs/deep/er")
    is_one_screen(result, place, ["runs_dir=theirs/deep/er", "theirs cannot be written", "runs_dir=FOLDER"])
    assert not list((place / "theirs").iterdir())


def test_lengths_are_checked_on_the_split_that_is_measured(posenc: Posenc, place: Path, corpus: Path) -> None:
    """Validation documents too short for a length that the test documents would hold."""
    from posenc.data.documents import split_of

    texts = place / "texts"
    texts.mkdir()
    for source in corpus.iterdir():
        short = split_of(source.name, {"validation": 0.1, "test": 0.2}) == "validation"
        (texts / source.name).write_text(source.read_text()[: 40 if short else None])
    arguments = ["train", *tiny.TINY, f"data.paths={texts}"]
    is_one_screen(
        posenc(*arguments, "eval.split=validation"), place, ["eval.lengths=64", "validation", "works is 39"]
    )
    assert posenc(*arguments, "eval.split=validation", "eval.lengths=[2x]", "train.tokens=256").code == 0


def test_lengths_in_tokens_are_checked_before_the_run_directory_exists(
    posenc: Posenc, place: Path, corpus: Path
) -> None:
    """With a tokenizer of several bytes a token the exact length is known only after tokenising."""
    bpe = ["tokenizer=bpe", "tokenizer.vocab_size=400", "eval.lengths=[3900]"]
    is_one_screen(
        posenc("train", *tiny.TINY, f"data.paths={corpus}", *bpe), place, ["eval.lengths=3900", "tokens"]
    )


def test_a_fault_of_our_own_is_one_line_and_a_traceback_with_debug(
    posenc: Posenc, monkeypatch: pytest.MonkeyPatch, place: Path
) -> None:
    from posenc.cli import compare

    def broken(*_: object, **__: object) -> None:
        raise KeyError("surprise")

    monkeypatch.setattr(compare, "load_runs", broken)
    result = posenc("compare")
    assert (result.code, len(result.err.splitlines())) == (1, 2)
    assert "KeyError: 'surprise'" in result.err and "--debug" in result.err
    with pytest.raises(KeyError, match="surprise"):
        posenc("compare", "--debug")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["compare", "nowhere"], ["nowhere", "no such run directory"]),
        (["compare"], ["runs", "no such run directory", "posenc train"]),
        (["compare", "{runs}", "--format", "tabel"], ["tabel", "did you mean: table"]),
        (["compare", "{runs}", "--metric", "bits"], ["bits", "bpb"]),
        (["compare", "{runs}", "--protocol", "fixed"], ["fixed", "did you mean: fixed-target"]),
        (["compare", "--formt", "json"], ["--formt"]),
        (["eval"], ["run", "no default"]),
        (["eval", "run=nowhere"], ["run=nowhere", "no such folder"]),
        (["eval", "run={runs}", "bogus=1"], ["bogus=1", "no such setting"]),
        (["eval", "run=deadbeef"], ["run=deadbeef", "the hash at its end"]),
        (["eval", "run={runs}", "model=tiny"], ["model: is the run's own"]),
        (["eval", "run={runs}", "train.lr=3"], ["train.lr=3", "is the run's own"]),
        (["bench", "--repeat", "3"], ["did you mean: --repeats"]),
        (["compare", "{runs}", "--rows", "rope", "--baseline", "alibi"], ["alibi", "--rows and --where"]),
        (["encodings", "ropee"], ["ropee", "did you mean: rope"]),
        (["trian"], ["trian"]),
        (["train", "rope"], ["did you mean: encoding=rope"]),
        (["train", "data.paths=caf\udce9"], ["not UTF-8"]),
        (["check", "encoding=rope", "train.lr=7"], ["train.lr", "nothing that the laws look at"]),
        (["check", "encoding=rope", "--al"], ["--al", "--config-dir"]),
        (["check", "encoding=rope", "context_length=8"], ["context_length=8", "from 16"]),
        (["show", "encoding=rope", "--ot"], ["--ot", "--config-dir"]),
        (["data", "info", "device=cuda"], ["device", "nothing that the corpus depends on"]),
        (["compare", "{runs}", "--html", "x" * 300 + ".html"], ["--html", "too long"]),
        (["compare", "x" * 300], ["no such run directory"]),
    ],
)
def test_other_commands(
    posenc: Posenc, place: Path, trained_once: Path, arguments: list[str], says: list[str]
) -> None:
    result = posenc(*(a.format(runs=trained_once) for a in arguments))
    is_one_screen(result, place, says)


def test_a_letter_that_hydra_cannot_read_is_answered_by_the_cure(posenc: Posenc, place: Path) -> None:
    refused = posenc("train", "runs_dir=läufe", "--cfg", "job")
    assert refused.code == 2 and "\"runs_dir='läufe'\"" in refused.err, refused.err
    assert posenc("train", "runs_dir='läufe'", "--cfg", "job").code == 0
