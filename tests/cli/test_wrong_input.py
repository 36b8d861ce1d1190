"""Wrong input: exit 2, one screen that names key, value and the nearest choice, and nothing written."""

import errno
import os
import resource
import shlex
import shutil
from pathlib import Path

import pytest
import tiny
from fake_runs import only_run

from posenc.data.documents import split_of

# a command line, then what stderr must say
WRONG = [
    # choices of groups
    ("train encoding.name=os", "encoding=os", "no such encoding"),
    ("train 'encoding=[alibi,rope]'", "encoding=[alibi,rope]", "one choice"),
    ("train encoding=null", "encoding=null: needs one of its choices", "allowed: alibi, "),
    ("train tracking.name=comet", "tracking=comet", "none, tensorboard, trackio, wandb"),
    # keys
    ("train encoding.base.x=3", "encoding.base.x=3", "no such setting", "encoding.base"),
    ("train encoding=RoPPE", "encoding=RoPPE", "did you mean: rope"),
    ("train data.paths=nowhere_at_all", "nowhere_at_all", "no such file"),
    ("train rope", "did you mean: encoding=rope"),
    ("train encoding.bse=3", "encoding.bse=3", "did you mean: encoding.base"),
    ("train train.tokns=3", "train.tokns=3", "did you mean: train.tokens"),
    ("train batch_size=32", "did you mean: train.batch_tokens=2048, which counts tokens"),
    ("train batch_tokens=32", "did you mean: train.batch_tokens or eval.batch_tokens"),
    ("train optim.epochs=3", "did you mean: train.tokens=4e6, which counts tokens instead of epochs"),
    ("train trian.lr=1", "did you mean: train.lr=1"),
    ("train foo=bar", "posenc train --help all says what each setting means"),
    ("train hydra.sweper=1", "did you mean: hydra.sweeper"),
    ("train ~seed", "seed", "is needed"),
    # values
    ("train encoding.base=ten", "encoding.base=ten", "a number"),
    ("train model.n_heads=3", "model.n_heads=3", "model.d_model=32", "1, 2, 4, 8"),
    ("train model.d_model=6", "rope", "head_dim=3", "even"),
    ("train data.split.test=0.95", "data.split", "0.95", "a sum below 1"),
    ("train tokenizer=hf", "tokenizer.path", "no default"),
    ("train optim.beta1=1.5", "optim.beta1=1.5", "0 to 0.9999"),
    ("train eval.lengths=[-1x]", "eval.lengths=-1x", "multiples of T such as"),
    ("train eval.lengths=2x", "eval.lengths=2x", "[a,b]"),
    ("train eval.recall=5", "eval.recall=5", "a mapping {distances, pairs, windows, draw, kind}"),
    ("train 'eval.recall=[1]'", "eval.recall=[1]: wrong type", "a mapping {distances, pairs, windows, draw"),
    ("train 'eval.lengths={a:1}'", "eval.lengths={a:1}: wrong type", "a list [a,b]"),
    ("train data.plant=5", "a mapping {kind, share, pairs, cue, alphabet, weight}, or null"),
    ("train eval.lengths=1x,8x", "'eval.lengths=[1x,8x]'"),
    ("train eval.lengths=[1000x]", "eval.lengths=16000", "the longest that works is 3965"),
    ("train eval.protocols=[fixed]", "eval.protocols=fixed", "did you mean: fixed-target"),
    ("train eval.protocols=[key-tokens]", "eval.key_tokens", "no reference for this corpus", "RUN_DIR"),
    ("train eval.protocols=[key-tokens] eval.key_tokens=nowhere", "eval.key_tokens", "key-tokens.json"),
    ("train eval.base_length=0", "eval.base_length=0", "from 2"),
    ("train context_length=5000 train.batch_tokens=5000", "context_length=5000", "longest that works is"),
    ("train train.lr=nan", "train.lr=nan", "above 0"),
    ("train train.precision=fp16", "train.precision=fp16", "did you mean: bf16"),
    ("train device=cuda:77", "device=cuda:77", "cpu"),
    ("train seed=null", "seed=null"),
    ("train seed=0,1", "seed=0,1", "for a sweep: posenc train -m "),
    (
        "eval subject=hf subject.path=llama data=files 'data.paths=[texts,a b]' 'extend=glob(*)'",
        "-m subject=hf subject.path=llama data=files 'data.paths=[texts,a b]' 'extend=glob(*)'",
    ),
    ("train seed=1 encoding=rope encoding=alibi", "encoding=alibi", "-m encoding=rope,alibi"),
    ("train model.d_model=30", "even head_dim", "model.n_heads=2 and model.d_model=30 give head_dim=15"),
    ("train model.d_model=18", "even head_dim", "model.n_heads=2 and model.d_model=18 give head_dim=9"),
    ("train encoding.base=10k", "did you mean: 10e3"),
    ("train encoding.name=rotary", "did you mean: rope"),
    ("train encoding=mine.py", "there is no such file", "add-an-encoding"),
    ("train encoding=none", "did you mean: encoding=nope"),
    ("train tokenizer=bytess", "did you mean: bytes"),
    ("train texts", "cannot be read as KEY=VALUE"),
    ("train roppe", "did you mean: encoding=rope"),
    ("train rotary", "did you mean: encoding=rope"),
    ("train headlin", "did you mean: experiment=headline"),
    ("train nano", "did you mean: model=nano"),
    ("train encoding = rope", "without spaces: encoding=..."),
    (
        "train extend=pi",
        "extend=pi: extends a trained run",
        "posenc eval run=RUN extend=pi",
        "train.init=RUN",
    ),
    ("train encoding=sum encoding.parts=[rope,xpos]", "rope and xpos cannot act together", "rotate"),
    # options of any encoding
    ("train positions=randomized positions.max=60", "positions.max", "64 positions", "eval.lengths"),
    ("train attention.window=0", "window=0"),
    ("train attention.normalizer=null", "attention.normalizer=null", "softmax, entmax, off_by_one, sink"),
    ("train attention.normalizer=[sink]", "not one of its choices", "did you mean: sink"),
    ("train attention.gate=true", "attention.gate=true", "none, element, head"),
    ("train positions=offset positions.max=33554432", "positions.max=33554432", "must be from"),
    ("train encoding=fox positions=offset", "positions=offset", "encoding=fox", "no position"),
    ("train encoding=stick_breaking attention.scale=logn", "attention.scale=logn", "stick_breaking"),
    ("train encoding=rnope_swa attention.window=8", "attention.window=8", "encoding.window"),
    ("train attention=mla encoding=alibi", "attention=mla", "encoding=alibi", "nope, rope"),
    ("train attention=mla attention.rope_dim=3", "rope_dim=3", "even"),
    ("train attention=mla attention.kv_rank=33", "kv_rank=33", "1..d_model=32"),
    ("train attention.name=gqa", "attention=gqa", "mha, mla"),
    # numbers far too large: told before anything of their size is made
    ("train 'eval.lengths=[1x,1000000000]'", "eval.lengths=1000000000: too large", "up to 16777216"),
    ("train train.batch_tokens=1e9", "train.batch_tokens=1000000000: too large", "67108864"),
    ("train train.tokens=1e30", "train.tokens=1e30: too large", "to 1000000000000000"),
    ("train encoding=t5 encoding.buckets=1000000000000", "parameters", "up to 1e+11"),
    ("train train.batch_tokens=6000", "train.tokens=5120", "less than one update, train.batch_tokens=6000"),
    # names and places
    ("train name=a/b", "name=a/b", "letters, digits"),
    ("train experiment_name=../../up", "experiment_name=../../up", "letters, digits"),
    ("train runs_dir={file}/below", "runs_dir=", "is not a folder"),
    ("train encoding.name=mine plugins=[nowhere_to_be_found]", "plugins=nowhere_to_be_found", "PYTHONPATH"),
    ("train 'encoding=r\x1b[31mope'", r"r\x1b[31mope"),
    # sweeps
    ("train -m experiment=headline,smoke", "experiment=headline,smoke", "one at a time"),
    ("train -m encoding=rope,alibi seed=0,-1", "seed=-1", "from 0", "in job 2 of 4"),
    ("train -m hydra/launcher=joblib", "there is no such hydra/launcher", "sweep.jobs=N"),
    ("train -m sweep.jobs=0 seed=0,1", "sweep.jobs=0", "from 1, or null"),
    ("train sweep.slots=0", "sweep.slots=0: has an effect in a sweep only", "add -m"),
    ("train sweep.also=[zzz]", "sweep.also=[zzz]: has an effect in a sweep only", "add -m"),
    ("eval run={run} sweep.jobs=2", "sweep.jobs=2: has an effect in a sweep only"),
    ("train -m seed=range(10000)", "seed=range(10000): makes 10,000 jobs", "up to 2,000"),
    ("train -m seed=range(1000000000)", "makes 1,000,000,000 jobs"),
    ("train -m seed=range(1e3) encoding=rope,alibi,nope", "makes 3,000 jobs"),
    ("train -m train.lr=range(0,1,1e-300)", "makes more than 1e+15 jobs"),
    ("train -m seed=range(0,5,0)", "seed=range(0,5,0): has a step of 0", "range(start,stop,step)"),
    ("train -m seed=range(nan)", "seed=range(nan): is no range of finite numbers"),
    ("check encoding=rope seed=range(10000)", "makes 10,000 jobs"),
    # what Hydra would do elsewhere
    ("train hydra.run.dir=here", "hydra.run.dir=here: posenc makes", "runs_dir=FOLDER", "name=NAME"),
    ("train hydra.job.chdir=true", "hydra.job.chdir=true"),
    ("train -m hydra/sweeper=optuna train.lr=1e-3,2e-3", "glob() and range() make the jobs"),
    ("train data.plant={share:0.1,pairs:2,{plant}:9} train.batch_tokens=16", "share=0.1", "1 window"),
    ("train -m 'seed=range(5,5)'", "seed=range(5,5)", "has no numbers"),
    ("train /tmp", "did you mean: data=files data.paths=/tmp"),
    ("train experimnt=smoke", "did you mean: experiment=smoke"),
    ("eval dta=stdlib", "did you mean: data=stdlib"),
    ("eval subjct=hf", "did you mean: subject=hf"),
    ("eval dataset=stdlib", "did you mean: data=stdlib"),
    ("train encoding=yarn", "posenc eval run=RUN extend=yarn"),
    ("data info tokenzier=bpe", "tokenzier: there is no such setting", "did you mean: tokenizer=bpe"),
    ("data info stdlib", "did you mean: data=stdlib"),
    ("rope alibi", "did you mean: posenc train -m encoding=rope,alibi"),
    ("rope,alibi seed=0,1", "did you mean: posenc train -m encoding=rope,alibi seed=0,1"),
    ("rm", "did you mean: posenc runs --delete"),
    ("train data.separator=", "data.separator", "is empty"),
    # flags
    ("train -m --cfg job", "--cfg=job", "--multirun"),
    ("train -cjob seed=abc", "seed=abc: wrong type"),
    ("train --info all seed=abc", "seed=abc: wrong type"),
    ("train --info config encoding=ropee", "encoding=ropee", "did you mean: rope"),
    ("train --version", "--version: is not for posenc", "posenc --version"),
    ("train --run", "--run: is not for posenc", "--cfg", "leave it out"),
    ("train -r", "--run: is not for posenc"),
    ("check --version", "--version: is not for posenc"),
    ("train --shell-completion", "--shell-completion: is not for posenc", "posenc --install-completion"),
    ("train --config-name x", "--config-name=x: is not for posenc", "--config-dir DIR"),
    ("train --package x", "--package=x: has an effect beside --cfg only", "--cfg job --package x"),
    ("train --resolve", "--resolve: has an effect beside --cfg only"),
    ("train --epochs 3", "did you mean: train.tokens=4e6, which counts tokens instead of epochs"),
    ("eval --quiet", "--quiet: there is no such option", "--help all says what each setting means"),
    ("eval --seq-len 512", "did you mean: 'eval.lengths=[512]'"),
    ("check --quiet", "see posenc check --help"),
    ("train --config-dir nowhere", "--config-dir=nowhere", "no such folder"),
    ("train --config-dir nowhere --help encoding", "--config-dir=nowhere", "no such folder"),
    # other commands
    ("train -m encoding=rope, alibi", "a space behind a comma", "without it: encoding=rope,alibi"),
    ("train -m encoding=rope, alibi, t5 seed=0", "without it: encoding=rope,alibi,t5"),
    ("compare --rows a, b", "a name is empty", "no space behind a comma: --rows a,b"),
    ("compare --rows=a, b", "a name is empty", "no space behind a comma: --rows a,b"),
    ("compare --rows a,", "--rows=a,: a name is empty\n  did you mean: --rows a\n"),
    ("compare --rows a, --full", "--rows=a,: a name is empty\n  did you mean: --rows a\n"),
    ("compare --rows a,,b", "--rows=a,,b: a name is empty\n  did you mean: --rows a,b\n"),
    ("compare --rows ,", "a name is empty\n  --rows a,b\n"),
    ("compare --caption", "--caption: there is no picture to make"),
    ("encodings --plugin nowhere_to_be_found", "--plugin=nowhere_to_be_found: cannot be imported"),
    ("encodings rope --plugin nowhere.py", "--plugin=nowhere.py: there is no such file"),
    ("compare --columns 1x 8x", "--columns 1x,8x"),
    ("train eval.protocols=fixed-target", "did you mean: 'eval.protocols=[fixed-target]'"),
    ("train 'eval.lengths=[1k,2k]'", "eval.lengths=1k", "did you mean: 1e3"),
    ("train seed=0-2", "for a sweep: -m seed=0,1,2"),
    ("train seed=0..2", "for a sweep: -m seed=0,1,2"),
    ("train seed=0-99", "for a sweep: -m 'seed=range(0,100)'"),
    ("sample run=xyz prompt=x", "one run; posenc eval -m run=... alone"),
    ("show encoding=rope --out 'Bild mit Leer/rope.png'", "mkdir -p 'Bild mit Leer'"),
    ("encodings rope alibi", "posenc encodings: takes fewer arguments, without alibi"),
    ("doctor encoding=rope", "posenc doctor: takes fewer arguments, without encoding=rope"),
    ("eval", "run", "no default"),
    ("eval run=nowhere", "run=nowhere", "no such folder"),
    ("eval run={runs}", "posenc eval -m run=..."),
    ("eval run=null", "run: is needed and has no default"),
    ("eval -m run=null", "run: is needed and has no default"),
    ("eval -m 'run=glob(*)'", "run=glob(*)", "a folder or a path with *"),
    ("eval run={run} data=files data.paths=", "data.paths", "is empty"),
    ("eval run={run} lr=1e-3", "lr=1e-3: there is no such setting", "posenc eval --help all"),
    ("eval run=deadbeef", "run=deadbeef", "name or hash"),
    ("eval run={runs} model=tiny", "model=tiny: is the run's own"),
    ("encodings ropee", "ropee", "did you mean: rope"),
    ("check encoding=rope train.lr=7", "train.lr", "no effect on the laws"),
    ("check encoding=rope --al", "--al", "--config-dir"),
    ("check encoding=rope context_length=8", "context_length=8", "from 16"),
    ("check --cfg job", "posenc train --cfg job"),
    ("show encoding=rope context_length=999999999999999999999", "too large", "to 16777216"),
    ("show encoding=rope --out here.gif", ".png, .svg, .pdf"),
    ("show encoding=rope --out nowhere/here.png", "there is no folder nowhere"),
    ("show encoding=alibi,rope", "one encoding at a time"),
    ("check -m encoding=rope,alibi", "-m: ", "encoding=rope,alibi"),
    ("train +hydra.callbacks.mine._target_=mine.Mine", "hydra.callbacks", "metrics.jsonl"),
    ("show run=nowhere encoding=rope", "no effect on a run"),
    ("show run=null", "run: is needed and has no default"),
    ("bench --repeat 3", "did you mean: --repeats"),
    ("bench context_length=64,4096", "train.batch_tokens=2048", "context_length=4096"),
    ("bench --format jsn", "--format=jsn", "did you mean: json"),
    ("bench --eval-lengths 8y", "--eval-lengths=8y", "multiples of T such as"),
    ("bench eval.lengths=[1x]", "eval.lengths", "--eval-lengths"),
    ("bench sweep.jobs=2", "sweep.jobs: is not read by bench"),
    ("bench tracking=wandb", "tracking: is not read by bench"),
    ("bench eval.split=validation", "eval.split: is not read by bench"),
    ("train encoding==rope", "did you mean: encoding=rope"),
    ("train seed=[0,1]", "for a sweep: -m seed=0,1"),
    ("train -e rope", "-e: there is no such option", "--cfg, --config-dir"),
    ("train --cfg jobs", "--cfg: invalid choice: 'jobs'"),
    ("train --multirun=true", "--multirun: ignored explicit argument 'true'"),
    ("train ~encodng", "encodng: there is no such setting", "did you mean: encoding"),
    ("eval ~run", "~run: cannot be left out", "run=..."),
    ("data info sympyy", "did you mean: data=sympy"),
    ("compare rope,alibi", "--where encoding=rope,alibi"),
    ("bench extend=yarn", "extend: is not read by bench"),
    ("sample {run}", "did you mean: run="),
    ("compare --plot-kind", "--plot-kind: needs a value", "context: ", "heatmap: "),
    ("compare --against", "--against: needs a value", "alibi-table2, ", "path-ruler"),
    ("compare --explain=1", "--explain: takes no value"),
    ("compare --encoding rope", "--where encoding="),
    ("--version evl", "posenc evl: there is no such command", "did you mean: eval"),
    ("data --debug prepaer", "posenc data prepaer: there is no such command", "did you mean: prepare"),
    ("data prepaer", "did you mean: prepare"),
    ("data=sympy", "did you mean: posenc train data=sympy"),
    ("rope seed=1", "did you mean: posenc train encoding=rope seed=1"),
    ("trian encoding=rope", "did you mean: posenc train encoding=rope"),
    ("plot runs", "did you mean: posenc compare --plot loss.png runs"),
    ("sample prompt=x", "run: is needed"),
    ("sample run={run} promt=x", "did you mean: prompt"),
    ("sample run={run} prompt=", "prompt: is empty"),
    ("sample run={run} tokens=many", "tokens=many: wrong type", "allowed: a whole number from 1"),
    ("sample run={run} temperature=hot", "temperature=hot: wrong type", "allowed: a number from 0 to 100"),
    ("sample run={run} seed=true", "seed=true: wrong type", "allowed: a whole number from 0"),
    ("sample run={run} tokens=5 tokens=6", "tokens=6: stands beside tokens=5", "leave out one"),
    ("sample run={run} run=other", "run=other: stands beside run=", "leave out one"),
    ("sample run={run} max_new_tokens=5", "max_new_tokens=5: there is no", "did you mean: tokens=5"),
    ("sample run={run} extend=yarn", "extend=yarn: there is no such setting", "subject=hf"),
    ("sample run=x --tokens 5", "--tokens: there is no such option", "posenc sample run=x tokens=5"),
    ("sample run=x --max-new-tokens=5", "--max-new-tokens: there", "posenc sample run=x tokens=5"),
    ("sample run=x -m", "-m: there is no such option", "posenc sample run=x\n"),
    ("sample run={run} prompt", "prompt: has no value"),
    ("sample run={run} prompt=x tokens=0", "tokens=0: too small"),
    ("sample run={run} prompt=x temperature=-1", "temperature=-1: out of range"),
    ("bench encoding=alibi attention=mla", "attention=mla", "alibi"),
    ("data info data=wikitext2 data.revision=main", "data.revision", "40 hex digits"),
    ("data info data=wikitext2 data.split.test=0.1", "data.split"),
    ("train tokenizer=bpe tokenizer.vocab_size=100", "tokenizer.vocab_size", "256"),
    ("train tracking=wandb tracking.project=a/b", "tracking.project", "does not take this name"),
    ("train tracking=wandb tracking.timeout=0", "tracking.timeout", "seconds above 0"),
    ("train tracking=trackio tracking.project=a/b", "tracking.project", "letters, digits"),
    ("eval run={run} extend=pi extend.factor=0.5", "extend.factor=0.5"),
    ("eval run={run} extend=yran", "did you mean: yarn"),
    ("eval run={run} extend=yarn extend.tune=true eval.split=validation", "extend.tune"),
    ("eval run={run} eval.stride=2x eval.protocols=[sliding]", "eval.stride=2x"),
    ("train data.plant={share:0.0,pairs:2,{plant}:9}", "data.plant.share=0.0", "out of range"),
    ("train data.plant={share:0.5,pairs:2,{plant}:1}", "data.plant.alphabet=1", "2 to 64"),
    ("train data.plant={share:0.5,pair:2,{plant}:9}", "data.plant.pair"),
    ("train data.plant={share:0.5,pairs:2,{plant}:9} eval.protocols=[recall]", "pairs=16", "alphabet=9"),
    ("train data.plant={kind:names,share:0.5,pairs:1,{plant}:9}", "data.plant.kind=names", "assignments"),
    ("train data.plant={kind:assignments,share:0.5,pairs:1,{plant}:9}", "context_length=16", "works is 19"),
    ("train {assigned}:9} context_length=32 tokenizer=bpe", "tokenizer=bpe", "allowed: bytes"),
    ("train {assigned}:26} context_length=32", "data.plant.alphabet=26", "words of 1 letter"),
    ("train model.short_conv=0", "model.short_conv=0", "1 to 64"),
    ("data info device=cuda", "device", "no effect on the corpus"),
    ("runs --sort los", "did you mean: loss"),
    ("runs", "runs", "no such run directory", "posenc train"),
    ("export {runs} --out runs.gz", "--out=runs.gz", "did you mean: --out runs.runs.jsonl.gz"),
    ("export {runs} --out a.b/foo.json", "did you mean: --out a.b/foo.runs.jsonl.gz"),
    ("export {runs} --out v0.1", "did you mean: --out v0.1.runs.jsonl.gz"),
]


def assert_is_one_screen(result, *messages):
    """Check that a command was refused with these texts on one screen, and that there is no run."""
    assert result.code == 2, result
    assert result.out == ""
    for message in messages:
        assert message in result.err, result.err
    assert len(result.err.splitlines()) <= 24
    assert "Traceback" not in result.err
    assert "fault of posenc" not in result.err
    assert not Path("runs").exists()


def largest_memory():
    """Return the most memory that this process has had, in kB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


@pytest.mark.parametrize("case", WRONG, ids=[case[0][:60] for case in WRONG])
def test_wrong_input(posenc, working_folder, corpus, trained_once, case):
    line, *messages = case
    command, *arguments = shlex.split(line)
    if command == "train":
        arguments = [*tiny.TINY, f"data.paths={corpus}", *arguments]
    texts_by_mark = {
        "{file}": __file__,
        "{runs}": str(trained_once),
        "{run}": str(only_run(trained_once)),
        "{plant}": "cue:1,weight:1.0,alphabet",
        "{assigned}": "data.plant={kind:assignments,share:0.5,pairs:1,cue:1,weight:1.0,alphabet",
    }
    for mark, text in texts_by_mark.items():
        arguments = [argument.replace(mark, text) for argument in arguments]
    memory_before = largest_memory()
    assert_is_one_screen(posenc(command, *arguments), *messages)
    assert not list(working_folder.iterdir())
    assert largest_memory() - memory_before < 500_000


@pytest.mark.parametrize(
    ("group", "name", "text", "messages"),
    [
        pytest.param(
            "encoding",
            "cut",
            "name: cut\nstart: [1.0\n",
            ["cut.yaml", "cannot be read as YAML in line 3"],
            id="no YAML",
        ),
        pytest.param(
            "experiment",
            "flat",
            "context_length: 32\n",
            ["experiment/flat.yaml", "# @package _global_"],
            id="without its package",
        ),
        pytest.param(
            "experiment",
            "typo",
            "# @package _global_\ndefaults:\n  - override /encodin: rope\n",
            ["typo", "encodin"],
            id="an override of what there is not",
        ),
        pytest.param(
            "experiment",
            "twice",
            "# @package _global_\ndefaults:\n  - /encoding: rope\n",
            ["encoding"],
            id="a second choice",
        ),
    ],
)
def test_wrong_yaml_of_the_user(posenc, working_folder, group, name, text, messages):
    folder = working_folder / "mine" / group
    folder.mkdir(parents=True)
    (folder / f"{name}.yaml").write_text(text)
    result = posenc("train", "--config-dir", "mine", f"{group}={name}")
    assert_is_one_screen(result, *messages)


@pytest.fixture
def read_only(working_folder, monkeypatch):
    """A folder in which the system makes nothing, as a stand-in: root can write into every folder."""
    folder = working_folder / "readonly"
    folder.mkdir()
    real_mkdir = os.mkdir

    def mkdir(path, *arguments, **options):
        if folder in Path(path).absolute().parents:
            raise PermissionError(errno.EACCES, "Permission denied")
        real_mkdir(path, *arguments, **options)

    monkeypatch.setattr(os, "mkdir", mkdir)
    return folder


@pytest.fixture
def without_texts(monkeypatch):
    """No text can be read: reading one is an error."""

    def too_early(*_, **__):
        raise AssertionError("a text is read")

    monkeypatch.setattr("posenc.running.plan_training.inspect", too_early)
    for module in ("plan_evaluation", "plan_hf", "given_model"):
        monkeypatch.setattr(f"posenc.running.{module}.text_to_measure", too_early)


def test_a_runs_dir_that_cannot_be_written(train, read_only, without_texts):
    result = train("runs_dir=readonly/deep/er")
    messages = ["runs_dir=readonly/deep/er", "readonly cannot be written", "denied", "runs_dir=FOLDER"]
    assert_is_one_screen(result, *messages)
    assert not list(read_only.iterdir())


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs a folder in which not even root writes")
def test_a_runs_dir_that_the_system_refuses_though_its_permissions_allow_it(train, without_texts):
    result = train("runs_dir=/proc/x")
    assert_is_one_screen(result, "runs_dir=/proc/x", "/proc cannot be written", "runs_dir=FOLDER")


@pytest.mark.parametrize(
    ("runs_dir", "messages"),
    [
        ("readonly/deep", ["readonly cannot be written", "denied"]),
        ("file", ["file is not a folder"]),
        ("a" * 300, ["is too long for the name of a file"]),
    ],
)
def test_a_runs_dir_of_a_subject_is_refused_before_the_model_is_read(
    posenc, working_folder, read_only, monkeypatch, runs_dir, messages
):
    def too_early(*_, **__):
        raise AssertionError("a model is read")

    monkeypatch.setattr("posenc.running.plan_hf.read_subject", too_early)
    Path("file").write_text("")
    result = posenc("eval", "subject=hf", "subject.path=model", f"subject.runs_dir={runs_dir}")
    assert_is_one_screen(result, "subject.runs_dir=", *messages)


def test_a_run_that_cannot_keep_its_records_is_refused(posenc, run_copy, read_only, without_texts):
    run = read_only / "runs" / "default" / run_copy.name
    run_copy.parents[1].rename(read_only / "runs")
    result = posenc("eval", f"run={run}")
    assert_is_one_screen(result, "run=", "cannot be written (Permission denied)", "copy the run")


def test_a_run_that_cannot_keep_records_has_a_dry_run(posenc, run_copy, read_only):
    run = read_only / "runs" / "default" / run_copy.name
    run_copy.parents[1].rename(read_only / "runs")
    result = posenc("eval", f"run={run}", "--dry-run")
    assert result.code == 0, result.err


def test_a_runs_dir_is_left_as_it_was_by_the_check(train, working_folder):
    (working_folder / "runs").mkdir()
    assert train("--dry-run").code == 0
    assert not list((working_folder / "runs").iterdir())


def test_lengths_are_checked_on_the_split_and_in_the_tokens_that_are_measured(posenc, working_folder, corpus):
    shutil.copytree(corpus, working_folder / "texts")
    for file in (working_folder / "texts").iterdir():
        if split_of(file.name, {"validation": 0.1, "test": 0.2}) == "validation":
            file.write_text(file.read_text()[:40])
    result = posenc("train", *tiny.TINY, "data.paths=texts", "eval.split=validation")
    assert_is_one_screen(result, "eval.lengths=64", "works is 39")


def test_a_fault_of_posenc_is_a_line_and_a_hint_and_with_debug_an_exception(posenc, monkeypatch):
    def broken(*_):
        raise KeyError("surprise")

    monkeypatch.setattr("posenc.cli.runs.find_locations", broken)
    result = posenc("runs")
    assert result.code == 1
    assert len(result.err.splitlines()) == 2
    assert "KeyError: 'surprise'\n  a fault of posenc or of a plug-in, at " in result.err
    with pytest.raises(KeyError, match="surprise"):
        posenc("runs", "--debug")


@pytest.mark.parametrize("line", ["eval run=nosuch", "train encoding=nosuch --dry-run"])
def test_a_rank_without_other_processes_hides_no_error(posenc, working_folder, monkeypatch, line):
    monkeypatch.setenv("RANK", "1")  # some schedulers set it, and no WORLD_SIZE
    result = posenc(*line.split())
    assert result.code == 2
    assert "nosuch" in result.err
