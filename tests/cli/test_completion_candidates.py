"""What may stand at the cursor: told from the YAML tree and the commands, fast and without torch."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import tiny

from posenc.cli.completion import candidates
from posenc.cli.shells import answer
from posenc.config.conf_text import choices, chosen_settings
from posenc.results.published import tables


def at(line: str) -> list[str]:
    words = line.split(" ")
    return candidates(words[:-1], words[-1])


def test_commands_and_options() -> None:
    assert {"train", "eval", "compare", "runs", "doctor", "data"} <= set(at(""))
    assert at("comp") == ["compare", "completion"]
    assert at("data ") == ["info", "list", "prepare"]
    assert {"--multirun", "--cfg", "--dry-run", "--help"} <= set(at("train --"))
    assert {"--protocol", "--format", "--against"} <= set(at("compare --"))
    assert at("runs --so") == ["--sort"]


def test_values_of_options() -> None:
    assert {"table", "markdown", "json"} <= set(at("compare --format "))
    assert at("compare --format=js") == ["--format=json"]
    assert at("runs --sort lo") == ["loss", "longest"]
    assert at("compare --against ") == tables()
    assert at("compare --protocol far") == ["far-copy"]
    assert at("train --cfg j") == ["job"]
    assert at("runs --where see") == ["seed="]
    assert at("completion z") == ["zsh"]


def test_keys_one_level_at_a_time() -> None:
    first = at("train ")
    assert {"encoding=", "train.", "eval.", "seed=", "context_length=", "experiment="} <= set(first)
    assert not any(one.startswith("train.t") for one in first)
    assert at("train train.pre") == ["train.precision="]
    assert "eval.lengths=" in at("train eval.") and "eval=" not in at("train eval.")
    assert at("train -m +experiment=smo") == ["+experiment=smoke"]
    assert "extend=" in at("eval ") and "encoding=" not in at("eval ")
    assert set(at("data prepare ")) == {"data=", "tokenizer=", "data.", "tokenizer."} & set(
        at("data prepare ")
    )


def test_values_are_what_the_yaml_says() -> None:
    assert at("train encoding=") == [f"encoding={name}" for name in choices("encoding")]
    assert at("train train.precision=") == [f"train.precision={v}" for v in ("auto", "fp32", "bf16")]
    assert at("train train.compile=") == [f"train.compile={v}" for v in ("auto", "true", "false")]
    assert at("train attention.scale=l") == ["attention.scale=logn"]
    assert at("train train.lr=") == ["train.lr=2e-3"]
    assert at("train encoding=alibi encoding.") == ["encoding.learned_slopes="]
    assert at("eval extend=yarn extend.beta_f") == ["extend.beta_fast="]


def test_the_last_of_a_sweep_or_a_list() -> None:
    assert at("train -m encoding=rope,ali") == ["encoding=rope,alibi"]
    assert "encoding=rope,rope" not in at("train -m encoding=rope,")
    assert at("train eval.protocols=") == at("train eval.protocols=[")
    assert at("train eval.protocols=[fixed-target,far") == ["eval.protocols=[fixed-target,far-copy"]
    assert at("train encoding=sum encoding.parts=[alibi,rop") == ["encoding.parts=[alibi,rope"]


def test_run_directories(place: Path) -> None:
    for name in ("a", "b"):
        (place / "runs" / "trial" / name).mkdir(parents=True)
        (place / "runs" / "trial" / name / "status.json").write_text("{}")
    (place / "runs" / "trial" / "empty").mkdir()
    both = ["runs/trial/a", "runs/trial/b"]
    assert at("eval run=") == at("eval run=runs/") == [f"run={one}" for one in both]
    assert at("show run=runs/trial/b") == ["run=runs/trial/b"]
    assert at("compare ") == at("runs runs/tr") == both


def test_ones_own_encodings(place: Path) -> None:
    (place / "conf" / "encoding").mkdir(parents=True)
    (place / "conf" / "encoding" / "mine.yaml").write_text("# my own\nname: mine\nwidth: 3  # of it\n")
    assert at("train --config-dir conf encoding=mi") == ["encoding=mine"]
    assert at("train --config-dir conf encoding=mine encoding.") == ["encoding.width="]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("posenc train encoding=kerple_p", "kerple_power"),
        ("posenc train 'eval.protocols=[far", "eval.protocols=[far-copy"),
        ("posenc compare --against kerple", "kerple-table3"),
    ],
)
def test_bash_gets_what_belongs_behind_its_break(
    monkeypatch: pytest.MonkeyPatch, line: str, expected: str
) -> None:
    monkeypatch.setenv("_POSENC_COMPLETE", "bash")
    monkeypatch.setenv("COMP_LINE", line + " and what follows")
    monkeypatch.setenv("COMP_POINT", str(len(line)))
    monkeypatch.setenv("COMP_WORDBREAKS", " \t\n\"'><=;|&(:")
    assert answer([]).splitlines() == [expected]
    if "=" in line and "'" not in line:
        monkeypatch.setenv("COMP_WORDBREAKS", " \t\n")
        assert answer([]).splitlines() == [f"encoding={expected}"]


def test_a_tab_takes_no_torch(place: Path) -> None:
    env = tiny.environment(_POSENC_COMPLETE="zsh")
    command = [sys.executable, "-m", "posenc", "train", "encoding="]
    found = subprocess.run(command, cwd=place, env=env, capture_output=True, text=True)
    assert found.stdout.splitlines() == [f"encoding={name}" for name in choices("encoding")]
    code = (
        "import sys, json; from posenc.cli.completion import candidates;"
        "candidates(['train'], 'encoding='); print(json.dumps(sorted(sys.modules)))"
    )
    loaded = json.loads(subprocess.run([sys.executable, "-c", code], env=env, capture_output=True).stdout)
    assert not {"torch", "numpy", "hydra", "omegaconf", "matplotlib"} & set(loaded)


def test_a_fault_says_nothing(place: Path) -> None:
    env = tiny.environment(_POSENC_COMPLETE="bash", COMP_LINE="posenc tr", COMP_POINT="many")
    found = subprocess.run([sys.executable, "-m", "posenc"], env=env, capture_output=True, text=True)
    assert (found.stdout, found.stderr) == ("", "")


def test_every_setting_has_its_value_and_comment() -> None:
    found = {setting.key: setting for setting in chosen_settings("train")}
    assert found["train.tokens"].value == "4e6" and "schedule" in found["train.tokens"].comment
    assert found["eval.lengths"].value.startswith("[") and "multiples" in found["eval.lengths"].comment
    assert "encoding.name" not in found and not any(key.startswith("hydra") for key in found)
    told = {setting.key: setting for setting in chosen_settings("eval")}
    assert told["eval.lengths"].value == "null" and "multiples" in told["eval.lengths"].comment
