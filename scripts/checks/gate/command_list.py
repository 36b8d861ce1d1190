"""The commands that both trees answer: about 150, in chapters that can run beside each other.

`TINY` stands for settings that train in two seconds, `{NAME}` for the folder of the run with that name. A
chapter but the first begins with a copy of what the first has left: its runs and its texts.
"""

from __future__ import annotations

from dataclasses import dataclass

TINY = (
    "model.d_model=32 model.n_layers=2 model.n_heads=2 data=files data.paths=[texts] context_length=16 "
    "train.tokens=5120 train.batch_tokens=128 train.precision=fp32 train.log_every=10 device=cpu "
    "eval.lengths=[1x,2x,4x] eval.max_targets=400"
)
PLANT = "cue:1,weight:1.0,alphabet:"


@dataclass(frozen=True)
class Command:
    """What follows `posenc`; the exit code of the tree this gate began with; whether it measures time."""

    line: str
    code: int = 0
    timed: bool = False  # its numbers are timings of this moment
    interrupted: bool = False  # SIGTERM after the first logged steps


TRAIN = [
    Command("train TINY encoding=rope name=rope"),
    Command("train TINY encoding=rope name=rope"),  # finished: nothing is done again
    Command("train TINY encoding=alibi name=alibi eval.protocols=[fixed-target,sliding,nonoverlapping]"),
    Command("train TINY encoding=alibi name=alibi1 seed=1"),
    Command("train TINY encoding=rope name=rope1 seed=1"),
    Command("train TINY encoding=rope name=rope_half encoding.layout=half encoding.fraction=0.5"),
    Command("train TINY encoding=t5 name=bf16 train.precision=bf16"),
    Command("train TINY encoding=learned name=learned eval.protocols=[positions,induction,far-copy]"),
    Command("train TINY encoding=sum name=sum 'encoding.parts=[alibi,rope]'"),
    Command("train TINY encoding=pattern name=pattern"),
    Command("train TINY encoding=rope name=window attention.window=8 attention.scale=logn"),
    Command("train TINY encoding=rope name=qknorm attention.qk_norm=true model.short_conv=3"),
    Command("train TINY encoding=nope name=mla attention=mla attention.kv_rank=16"),
    Command("train TINY encoding=alibi name=offset positions=offset"),
    Command("train TINY encoding=rope name=randomized positions=randomized positions.max=256"),
    Command("train TINY encoding=rope name=pose positions=pose"),
    Command("train TINY encoding=nope name=bpe tokenizer=bpe tokenizer.vocab_size=300"),
    Command("train TINY encoding=fox name=schedule 'train.length_schedule=[[0.5,8],[0.5,16]]'"),
    Command("train TINY encoding=rope name=muon optim=muon"),
    Command(
        "train TINY encoding=transformer_xl name=recall experiment=recall experiment_name=recall "
        "train.tokens=5120 eval.recall.windows=16"
    ),
    Command("train TINY encoding=rope name=continued context_length=32 train.init={rope} extend=pi"),
    Command("train TINY_MODEL encoding=rope name=smoke experiment=smoke train.tokens=5120 device=cpu"),
    Command("train TINY encoding=rope name=board tracking=tensorboard"),
    Command("train TINY encoding=cable name=stopped train.tokens=40960", code=143, interrupted=True),
    Command("runs"),
    Command("train TINY encoding=cable name=stopped train.tokens=40960"),
    Command("train TINY encoding=rope name=diverged train.lr=100000 experiment_name=bad", code=1),
    Command("train TINY encoding=rope name=diverged train.lr=100000 experiment_name=bad", code=1),
    Command("train TINY -m encoding=nope,kerple_log seed=0,1 experiment_name=sweep sweep.jobs=2"),
    Command("train TINY -m encoding=nope,kerple_log seed=0,1 experiment_name=sweep sweep.jobs=2"),
]

PLAN = [
    Command("train TINY encoding=rope name=rope --dry-run", timed=True),
    Command("train TINY encoding=dape --dry-run", timed=True),
    Command("train TINY -m encoding=rope,alibi seed=0,1,2 --dry-run", timed=True),
    Command("train -m experiment=headline --dry-run", timed=True),
    Command("train TINY encoding=rope --cfg job"),
    Command("train encoding=rope --cfg job"),
    Command("train experiment=recall encoding=alibi --cfg job"),
    Command("train experiment=reference_gpu --cfg job"),
    Command("train encoding=rope --help"),
    Command("train encoding=fire attention=mla positions=randomized --help"),
    Command("eval extend=yarn --help"),
    Command("eval --cfg job run={rope} extend=yarn"),
    *(
        Command(f"{name} --help".strip())
        for name in (
            "",
            "train",
            "eval",
            "compare",
            "runs",
            "sample",
            "export",
            "check",
            "show",
            "bench",
            "encodings",
            "data",
            "data list",
            "data info",
            "data prepare",
            "doctor",
            "dashboard",
        )
    ),
    Command("--version"),
    Command("encodings"),
    Command("encodings rope"),
    Command("encodings transformer_xl"),
    Command("encodings --json"),
    Command("data list"),
    Command("data list --json"),
    Command("data info data=files data.paths=[texts] context_length=16"),
    Command("data info data=files data.paths=[texts] context_length=16 --json"),
    Command("data prepare data=files data.paths=[texts] tokenizer=bpe tokenizer.vocab_size=320"),
    Command("doctor", timed=True),
    Command("doctor --json", timed=True),
    Command("check encoding=rope"),
    Command("check encoding=learned --json"),
    Command("check encoding=fox attention.window=8 --json"),
    Command("show encoding=alibi"),
    Command("show encoding=rope --out rope.png"),
    Command("show encoding=t5 --out t5.svg"),
    Command("bench encoding=rope,alibi TINY_MODEL --repeats 2 --format json", timed=True),
    Command("bench encoding=rope TINY_MODEL --repeats 2 --eval-lengths none", timed=True),
]
TINY_MODEL = "model.d_model=32 model.n_layers=2 model.n_heads=2 context_length=16 train.batch_tokens=128"

EVAL = [
    Command("eval run={rope} eval.lengths=[1x,8x]"),
    Command("eval run={rope} eval.lengths=[1x,8x]"),
    Command("eval run={rope} eval.protocols=[sliding,far-copy,induction] eval.stride=1 eval.max_targets=100"),
    Command("eval run={rope} eval.split=validation"),
    Command("eval run={rope} eval.precision=bf16"),
    Command("eval run={rope1} extend=yarn extend.beta_fast=4"),
    Command("eval run={rope1} extend=ntk extend.tune=true extend.tries=4"),
    Command("eval -m run={rope_half} extend=pi,rerope,dca sweep.jobs=2"),
    Command("eval -m run={alibi} 'extend=glob(*)' sweep.jobs=2"),
    Command("eval run={learned} data=files data.paths=[other]"),
    Command("eval -m run=runs/sweep eval.protocols=[far-copy] sweep.jobs=2"),
    Command("eval run={recall} eval.recall.pairs=[1,2] eval.recall.windows=8"),
    Command("export run={rope} --hf exported"),
    Command(
        "eval subject=hf subject.path=exported context_length=16 data=files data.paths=[texts] "
        "eval.lengths=[1x,2x] eval.max_targets=200"
    ),
    Command("compare"),
    Command("compare --protocol all --format json --allow-mixed"),
    Command("compare --where encoding=rope --full --allow-mixed"),
]

READ = [
    Command("runs --format json"),
    Command("runs --sort loss --where seed=0"),
    Command("runs runs/bad"),
    Command("compare"),
    Command("compare runs/sweep"),
    Command("compare runs/sweep --full"),
    Command("compare runs/sweep --explain"),
    Command("compare runs/default --where encoding=rope,alibi --format json"),
    Command("compare runs/sweep runs/default --format csv --allow-mixed"),
    Command("compare runs/sweep --format markdown --metric bpb"),
    Command("compare runs/sweep --format latex --metric ppl"),
    Command("compare runs/sweep --format table --metric ppl --full"),
    Command("compare runs/sweep --protocol all --format markdown"),
    Command("compare runs/sweep --protocol positions --full"),
    Command("compare runs/sweep --protocol nonoverlapping --format json"),
    Command("compare {learned} --protocol far-copy"),
    Command("compare {learned} --protocol induction --format csv"),
    Command("compare runs/recall --protocol recall"),
    Command("compare runs/recall --protocol recall --recall-level 10 --format json"),
    Command("compare runs/sweep --rows kerple_log,nope --columns 1x,4x --sort -4x"),
    Command("compare runs/sweep --baseline nope --format json"),
    Command("compare runs/sweep --against alibi-table2"),
    Command("compare runs/default --allow-mixed --format json"),
    Command("compare runs/sweep --plot loss.png"),
    Command("compare runs/sweep --plot change.svg --plot-kind change"),
    Command("compare runs/sweep --html page.html"),
    Command("compare study-recall --rows rope,alibi,nope --format markdown"),
    Command("compare study --where seed=0,1,2 --rows nope,learned,sinusoidal,rope,alibi,t5"),
    Command("compare study --rows rope,alibi --format json --full"),
    Command("compare study-room --full"),
    Command("export runs/sweep --out sweep.runs.jsonl.gz"),
    Command("compare sweep.runs.jsonl.gz --format json"),
    Command("sample run={rope} prompt=the tokens=24"),
    Command("sample run={alibi} tokens=20 temperature=0.5 seed=3"),
    Command("show run={alibi}"),
    Command("show run={rope} --out trained.svg"),
]

# A typical mistake each: exit 2, nothing on stdout, nothing written, and the message names the key.
WRONG = [
    Command(line, code=2)
    for line in (
        "train TINY encoding=RoPPE",
        "train TINY encoding=null",
        "train TINY rope",
        "train TINY encoding.bse=3",
        "train TINY encoding.base=ten",
        "train TINY encoding.base.x=3",
        "train TINY batch_size=32",
        "train TINY ~seed",
        "train TINY seed=null",
        "train TINY seed=0,1",
        "train TINY model.n_heads=3",
        "train TINY model.d_model=6",
        "train TINY data.paths=nowhere_at_all",
        "train TINY data.split.test=0.95",
        "train TINY tokenizer=hf",
        "train TINY tokenizer=bpe tokenizer.vocab_size=100",
        "train TINY optim.beta1=1.5",
        "train TINY eval.lengths=[-1x]",
        "train TINY eval.lengths=1x,8x",
        "train TINY eval.lengths=[1000x]",
        "train TINY eval.protocols=[fixed]",
        "train TINY eval.protocols=[key-tokens]",
        "train TINY train.lr=nan",
        "train TINY train.tokens=1e30",
        "train TINY train.batch_tokens=6000",
        "train TINY train.precision=fp16",
        "train TINY train.init=nowhere",
        "train TINY device=cuda:77",
        "train TINY encoding=sum encoding.parts=[rope,xpos]",
        "train TINY positions=randomized positions.max=60",
        "train TINY attention.window=0",
        "train TINY encoding=fox positions=offset",
        "train TINY attention=mla encoding=alibi",
        "train TINY name=a/b",
        "train TINY experiment_name=../../up",
        "train TINY data.plant={share:0.0,pairs:2," + PLANT + "9}",
        "train TINY data.plant={share:0.5,pairs:2," + PLANT + "9} eval.protocols=[recall]",
        "train TINY encoding=t5 encoding.buckets=1000000000000",
        "train -m TINY encoding=rope,alibi seed=0,-1",
        "train -m TINY hydra/launcher=joblib",
        "train TINY hydra.run.dir=here",
        "train TINY --config-dir nowhere",
        "train TINY tracking=wandb tracking.project=a/b",
        "eval",
        "eval run=nowhere",
        "eval run={rope} model=tiny",
        "eval run={rope} extend=yran",
        "eval run={rope} extend=pi extend.factor=0.5",
        "eval run={rope} eval.stride=2x eval.protocols=[sliding]",
        "compare nowhere",
        "compare --metric nat",
        "compare --rows nothing",
        "compare --where encodng=rope",
        "compare --against alibi",
        "compare --plot loss.gif",
        "compare --sort 99x",
        "runs --sort los",
        "encodings ropee",
        "check encoding=rope train.lr=7",
        "check --al",
        "show encoding=alibi,rope",
        "bench --repeat 3",
        "bench context_length=64,4096",
        "sample prompt=x",
        "sample run={rope} tokens=many",
        "data info data=wikitext2 data.revision=main",
        "export --out runs.gz",
        "trian encoding=rope",
    )
]

CHAPTERS = {"plan": PLAN, "eval": EVAL, "read": READ, "wrong": WRONG}
