#!/usr/bin/env bash
# Build the wheel, install it into a clean environment, train and compare from another directory, beside a
# package with an encoding of its own that is made literally as docs/add-an-encoding.md says.
set -euo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
file() { # the body of the code block that the page puts below this file's name
  awk -v name="\`$1\`:" '/^```/ && inside {exit} /^```/ && named {inside = 1; next} inside {print} $0 == name {named = 1}' \
    "$root/docs/add-an-encoding.md"
}
mine=$work/my_encodings/src/my_encodings
mkdir -p "$mine/conf/encoding"
touch "$mine/__init__.py"
file log_recency.py >"$mine/log_recency.py"
file log_recency.yaml >"$mine/conf/encoding/log_recency.yaml"
file pyproject.toml >"$work/my_encodings/pyproject.toml"
python3 -m venv "$work/venv"
pip=$work/venv/bin/pip
"$pip" wheel -q --no-deps --wheel-dir "$work/dist" "$root"
"$pip" install -q --no-compile -c "$root/constraints.txt" "$work"/dist/*.whl "$work/my_encodings"
mkdir "$work/elsewhere" && cd "$work/elsewhere"
"$work/venv/bin/posenc" check encoding=log_recency >/dev/null
"$work/venv/bin/posenc" train -m experiment=smoke train.tokens=4096 eval.max_targets=1000 encoding=rope,log_recency >/dev/null
"$work/venv/bin/posenc" compare --format csv >table.csv # not into grep -q, which closes the pipe early
grep -q '^fixed-target,log_recency,' table.csv
for study in study study-recall study-room; do
  "$work/venv/bin/posenc" compare "$study" --format csv >"$study.csv"
  grep -q ',alibi,alibi,' "$study.csv"
done
"$work/venv/bin/posenc" show encoding=rope --out rope.png >/dev/null
"$work/venv/bin/posenc" train encoding=nope encoding.base=1 2>"$work/err" && exit 1
grep -q 'encoding.base' "$work/err"
echo "wheel: trains, checks, draws, compares and refuses outside the clone; so does a package beside it"
