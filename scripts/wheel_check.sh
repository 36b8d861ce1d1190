#!/usr/bin/env bash
# Build the wheel, install it into a clean environment, train and compare from another directory.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"$root/.venv/bin/python" -m build --wheel --outdir "$work/dist" "$root" >"$work/build.log" 2>&1 || {
  cat "$work/build.log" >&2
  exit 1
}
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install -q -c "$root/constraints.txt" "$work"/dist/*.whl
cd "$work"
"$work/venv/bin/posenc" train -m experiment=smoke encoding=rope,alibi >/dev/null
"$work/venv/bin/posenc" compare --format csv | grep -q '^fixed-target,nats.*alibi'
"$work/venv/bin/posenc" train encoding=nope encoding.base=1 2>"$work/err" && exit 1
grep -q 'encoding.base' "$work/err"
echo "wheel: trains, compares and refuses outside the clone"
