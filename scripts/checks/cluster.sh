#!/usr/bin/env bash
# posenc's sweeps on a real Slurm of one node, which is brought up here and taken down again: a sweep, jobs that
# are requeued, pre-empted, signalled, killed and cancelled, and what the one who waits is told.
#
#   sudo scripts/checks/cluster.sh                a fresh environment; takes minutes
#   sudo scripts/checks/cluster.sh --venv DIR     with this one, which has posenc[slurm]
#        ... --only NAME                         of sweep, requeue, signal, preempt, limit, killed
#        ... --tokens N                          of the runs that are disturbed, 192000: some 10 s on an idle core
#        ... --keep                              leave the working folder there
#
# Slurm needs root and Debian's packages slurm-wlm and munge, which are installed if they are missing. Nothing
# outside the working folder is changed, an installed Slurm is not touched, and nothing is left running.
set -uo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
venv='' only='' keep='' tokens=192000
while [ $# -gt 0 ]; do
  case $1 in
    --venv) venv=$(realpath "$2") && shift 2 ;;
    --only) only=$2 && shift 2 ;;
    --keep) keep=yes && shift ;;
    --tokens) tokens=$2 && shift 2 ;;
    *) sed -n '2,/^set/{/^set/d;s/^# \{0,1\}//;p}' "$0" >&2 && exit 2 ;;
  esac
done
work=$(mktemp -d "${TMPDIR:-/tmp}/posenc-cluster-XXXXXX")
started=()
# shellcheck source=scripts/checks/cluster_slurm.sh
. "$root/scripts/checks/cluster_slurm.sh"
take_down() {
  set +e
  [ -n "$own_slurm" ] && SLURM_CONF=$own_slurm timeout 10 scancel --me -f 2>/dev/null
  for ((i = ${#started[@]} - 1; i >= 0; i--)); do # whoever was started last goes first
    kill "${started[i]}" 2>/dev/null
    for _ in $(seq 50); do kill -0 "${started[i]}" 2>/dev/null || break; sleep 0.1; done
    kill -9 "${started[i]}" 2>/dev/null
  done
  if [ -n "$keep" ]; then echo "left there: $work"; else rm -rf "$work"; fi
}
trap take_down EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

until_true() { # SECONDS COMMAND...
  local end=$((SECONDS + $1)) && shift
  until "$@"; do [ $SECONDS -ge $end ] && return 1 || sleep 0.2; done
}
give_up() { echo "$1" && tail -15 "$2" && exit 1; } >&2

# --------------------------------------------------------------------------------------------------- checks
failed=0
check() { # WHAT COMMAND...
  local what=$1 && shift
  if "$@" >/dev/null 2>&1; then echo "  ok      $what"; else echo "  FAILED  $what" && failed=$((failed + 1)); fi
}
is() { [ "$1" = "$2" ]; }
wanted() { [ -z "$only" ] || [ "$only" = "$1" ]; }

tiny=(model.d_model=32 model.n_layers=2 model.n_heads=2 data=files data.paths=["$work/texts"] context_length=16
  train.batch_tokens=128 train.precision=fp32 train.log_every=25 train.checkpoint_seconds=1 device=cpu
  'eval.lengths=[1x,2x]' eval.max_targets=400 'eval.protocols=[fixed-target]')
slurm=(hydra/launcher=slurm hydra.launcher.cpus_per_task=1 hydra.launcher.mem_gb=1 hydra.launcher.signal_delay_s=30)
short=train.tokens=6400
long=train.tokens=$tokens

posenc() { timeout "${LIMIT:-240}" "$venv/bin/python" -m posenc "$@"; }
weights() { # RUNS [ENCODING]: sha256 of the last weights of its only run (of that encoding)
  (cd "$1"/default/"${2:-}"*/checkpoints/ && sha256sum "$(ls | sort | tail -1)/model.safetensors" | cut -d' ' -f1)
}
status() { "$venv/bin/python" -c 'import json, sys; print(json.load(open(sys.argv[1]))["status"])' "$1"; }
submitted() { (cd "$1/.sweeps/.submitit" && ls -d */*_log.err) | cut -d/ -f1; } # jobs: 5, or 5_0 of an array
statuses() { for file in "$1"/default/*/status.json; do status "$file"; done | sort | uniq -c | xargs; }
said_by_jobs() { cat "$1"/.sweeps/.submitit/*/*_log.err; }
running() { squeue -h -n posenc -t running -o %A | head -1; }
has_checkpoint() { ls "$1"/default/"${2:-}"*/checkpoints/step-*/manifest.json >/dev/null 2>&1; }
directories() { ls -d "$1"/default/*/ | wc -l; }
continued() { said_by_jobs "$1" | grep -qE 'continuing at step [1-9]'; }
restarts() { # ID
  scontrol -o show job "$1" | grep -o 'Restarts=[0-9]*' | cut -d= -f2
}

disturbed() { # RUNS WHAT COMMAND...: a job under Slurm, COMMAND with its id when it has a checkpoint, wait for the end
  local runs=$1 what=$2 code id && shift 2
  echo "$what"
  posenc train -m "${slurm[@]}" "${tiny[@]}" $long encoding=rope seed=0 runs_dir="$runs" >"$runs.out" 2>"$runs.err" &
  local waiting=$!
  until_true 120 has_checkpoint "$runs" || { check "has a checkpoint within 120 s" false && cat "$runs.err"; }
  id=$(running)
  "$@" "$id"
  wait $waiting
  code=$?
  check "the command that waits ends with 0 ($code)" is $code 0
  check "the job was started again (Restarts=$(restarts "$id"))" is "$(restarts "$id")" 1
  check "in the same directory ($(directories "$runs"))" is "$(directories "$runs")" 1
  check "from its checkpoint: $(said_by_jobs "$runs" | grep -oE 'continuing at step [0-9]+ of [0-9]+' | tail -1)" \
    continued "$runs"
  check "finished ($(statuses "$runs"))" is "$(statuses "$runs")" "1 finished"
  check "weights are those of the undisturbed run" is "$(weights "$runs")" "$(weights whole)"
  check "the table comes at the end" grep -q '^rope' "$runs.out"
}
send() { timeout 20 scancel --signal="$1" "$2"; }
preempt() { timeout 20 sbatch -p high -c "$(nproc --all)" -o /dev/null --wrap 'sleep 3' >/dev/null; }

on_slurm() {
  bring_up
  case $only in
    sweep | limit) ;;
    *) posenc train "${tiny[@]}" $long encoding=rope seed=0 runs_dir=whole >/dev/null 2>whole.err || cat whole.err ;;
  esac
  local code before
  if wanted sweep; then
    echo "a sweep of four"
    local four=(train -m "${slurm[@]}" "${tiny[@]}" $short encoding=rope,alibi seed=0,1 runs_dir=four)
    posenc "${four[@]}" >four.out 2>four.err
    code=$?
    check "ends with 0 ($code)" is $code 0
    check "4 of 4 finished" is "$(statuses four)" "4 finished"
    before=$(submitted four)
    check "as one array of Slurm's" is "$(wc -w <<<"$before") $(cut -d_ -f1 <<<"$before" | sort -u | wc -l)" "4 1"
    local began=$SECONDS
    posenc "${four[@]}" >again.out 2>again.err
    code=$?
    check "again: ends with 0 ($code) in $((SECONDS - began)) s" is $code 0
    check "all are finished already" is "$(grep -c 'already finished' again.err)" 4
    check "nothing is submitted" is "$(submitted four)" "$before"
    check "with the same table" diff four.out again.out
    posenc train -m "${slurm[@]}" "${tiny[@]}" $short encoding=rope,nope seed=1 runs_dir=four >more.out 2>more.err
    code=$?
    check "with one run more: ends with 0 ($code)" is $code 0
    check "that one is submitted" is "$(submitted four | wc -l)" 5
    check "5 finished, 1 of them already" \
      is "$(grep -c 'already finished' more.err) $(statuses four)" "1 5 finished"
    posenc train -m "${slurm[@]}" "${tiny[@]}" $short train.lr=1e30 runs_dir=bad >bad.out 2>bad.err
    before=$(submitted bad)
    posenc train -m "${slurm[@]}" "${tiny[@]}" $short train.lr=1e30 runs_dir=bad >bad.out 2>bad.err
    code=$?
    check "a run that diverged, again: ends with 1 ($code)" is $code 1
    check "it is not submitted" is "$(wc -w <<<"$before") $(submitted bad)" "1 $before"
    check "and listed" is "$(grep -c 'diverged before' bad.err) $(grep -c '(log: ' bad.err)" "1 1"
    COLUMNS=80 posenc compare four
  fi
  wanted requeue && disturbed requeued "scontrol requeue" timeout 20 scontrol requeue
  if wanted signal; then
    disturbed user2 "SIGUSR2, which Slurm sends before the time limit" send USR2
  fi
  wanted preempt && disturbed preempted "pre-empted by a job of higher priority: SIGTERM, 20 s of grace" preempt
  wanted limit && at_its_limit
  if wanted killed; then
    killed lost "kill -9 of its process" kill_it
    killed cancelled scancel "timeout 20 scancel"
  fi
}

kill_it() { # the process of the rope run; the one node is this machine
  kill -9 "$(grep -ho '"pid": *[0-9]*' lost/default/rope*/status.json | grep -o '[0-9]*')"
}

at_its_limit() {
  echo "a time limit of 2 minutes, 60 s of notice, a run that takes longer"
  LIMIT=900 posenc train -m "${slurm[@]}" "${tiny[@]}" train.tokens=3e6 encoding=rope seed=0 runs_dir=limited \
    hydra.launcher.timeout_min=2 hydra.launcher.signal_delay_s=60 >limited.out 2>limited.err
  local code=$?
  check "ends with 0 ($code)" is $code 0
  check "continued: $(said_by_jobs limited | grep -oE 'continuing at step [0-9]+' | xargs)" continued limited
  check "finished ($(statuses limited))" is "$(statuses limited)" "1 finished"
}

killed() { # RUNS WHAT COMMAND: of two jobs the first one
  local runs=$1 id code began
  echo "one of two jobs ends by $2"
  LIMIT=200 posenc train -m "${slurm[@]}" "${tiny[@]}" $long encoding=rope,alibi seed=0 runs_dir="$runs" \
    >"$runs.out" 2>"$runs.err" &
  local waiting=$!
  until_true 120 has_checkpoint "$runs" rope
  id=$(squeue -h -r -n posenc -t running -o %i | sort | head -1)
  began=$SECONDS
  # shellcheck disable=SC2086  # some words
  $3 "$id"
  wait $waiting
  code=$?
  check "the command that waits ends with 1 ($code) after $((SECONDS - began)) s" is $code 1
  check "the other one is finished ($(statuses "$runs"))" grep -q '1 finished' <(statuses "$runs")
  check "the lost one is named: $(grep -o 'job .* of submitit left no result' "$runs.err")" \
    grep -q 'left no result' "$runs.err"
  check "and listed with its log" grep -q '(log: .*log.txt)' "$runs.err"
  LIMIT=200 posenc train -m "${slurm[@]}" "${tiny[@]}" $long encoding=rope,alibi seed=0 runs_dir="$runs" >/dev/null 2>&1
  code=$?
  check "the same command ends with 0 ($code)" is $code 0
  check "and finishes it ($(statuses "$runs"))" is "$(statuses "$runs")" "2 finished"
  check "with the weights of the undisturbed run" is "$(weights "$runs" rope)" "$(weights whole)"
}

if [ -z "$venv" ]; then
  venv=$work/venv
  python3 -m venv "$venv" && "$venv/bin/pip" install -q -c "$root/constraints.txt" -e "$root[slurm]" >"$work/pip.log" 2>&1 \
    || give_up "pip install '.[slurm]' failed" "$work/pip.log"
fi
export OMP_NUM_THREADS=1 POSENC_CACHE=$work/cache
cd "$work" || exit 1
"$venv/bin/python" - <<'PYTHON'
import random, pathlib
chance = random.Random(0)
words = ["".join(chance.choice("etaoinshrdlu") for _ in range(chance.randint(2, 8))) for _ in range(150)]
folder = pathlib.Path("texts")
folder.mkdir()
for i in range(60):
    (folder / f"{i:03d}.txt").write_text(" ".join(chance.choice(words) for _ in range(500)))
PYTHON
on_slurm
echo "$failed failed"
[ "$failed" = 0 ]
