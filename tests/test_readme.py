"""What the README says is so."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```(\w*)\n(.*?)```", TEXT, re.S)


def test_opens_with_exactly_two_commands_that_share_their_set_up():
    kind, body = BLOCKS[0]
    lines = body.strip().splitlines()
    assert kind == "sh" and len(lines) == 2
    for line, install in zip(lines, ("-e .", "-e '.[dev]'"), strict=True):
        begin = f"python3 -m venv .venv && .venv/bin/pip install -q -c constraints.txt {install} && "
        assert line.startswith(begin)
    assert lines[0].endswith(".venv/bin/posenc train encoding=rope")
    assert lines[1].endswith(".venv/bin/python -m pytest")


def test_the_python_example_runs():
    (code,) = [body for kind, body in BLOCKS if kind == "python"]
    exec(compile(code, "README.md", "exec"), {})


def test_the_tree_of_the_architecture_page_is_the_real_one():
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    block = next(body for body in re.findall(r"```text\n(.*?)```", page, re.S) if body.startswith("conf/"))
    named = set(re.findall(r"^(\S+/)", block, re.M))
    folders = {f"posenc/{p.name}/" for p in (ROOT / "posenc").iterdir() if (p / "__init__.py").is_file()}
    assert {n for n in named if n.startswith("posenc/")} == folders
    assert all((ROOT / name).is_dir() for name in named)
