# shellcheck shell=bash disable=SC2154
# A Slurm of one node below $work, for scripts/checks/cluster.sh, which sources this. bring_up adds its daemons to
# `started`; once its controller answers, `own_slurm` is its configuration.

# none but our own: that of the machine, or a job we may be in
# shellcheck disable=SC2086  # names
unset SLURM_CONF ${!SLURM_@} ${!SBATCH_@} ${!SCANCEL_@} ${!SQUEUE_@} ${!SRUN_@}
own_slurm=''

port() { python3 -c 'import socket; s = socket.socket(); s.bind(("", 0)); print(s.getsockname()[1])'; }

bring_up() {
  if [ "$(id -u)" != 0 ]; then echo "Slurm's daemons need root: sudo $0" >&2 && exit 2; fi
  local tool missing=''
  for tool in slurmctld slurmd sbatch scancel scontrol sinfo squeue srun munged; do
    command -v "$tool" >/dev/null || missing+=" $tool"
  done
  if [ -n "$missing" ]; then
    echo "not there:$missing; installing slurm-wlm and munge" >&2
    (apt-get update && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends slurm-wlm munge) \
      >"$work/apt.log" 2>&1 </dev/null || give_up "apt-get fails" "$work/apt.log"
  fi
  local host at=$work/slurm
  host=$(hostname -s)
  mkdir -p "$at/state" "$at/spool"
  chmod 755 "$work"
  head -c 1024 /dev/urandom >"$at/munge.key" && chmod 600 "$at/munge.key"
  munged --foreground --force --key-file="$at/munge.key" --socket="$at/munge.socket" --pid-file="$at/munged.pid" \
    --log-file="$at/munged.log" --seed-file="$at/munge.seed" >"$at/munged.out" 2>&1 &
  started+=($!)
  export SLURM_CONF=$at/slurm.conf
  cat >"$SLURM_CONF" <<CONF
ClusterName=posenc
SlurmctldHost=$host(127.0.0.1)
SlurmctldPort=$(port)
SlurmdPort=$(port)
SlurmUser=root
AuthType=auth/munge
# cred_expire: a job that is requeued waits so long, 120 s by default
AuthInfo=socket=$at/munge.socket,cred_expire=5
CredType=cred/munge
StateSaveLocation=$at/state
SlurmdSpoolDir=$at/spool
SlurmctldPidFile=$at/slurmctld.pid
SlurmdPidFile=$at/slurmd.pid
SlurmctldLogFile=$at/slurmctld.log
SlurmdLogFile=$at/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SwitchType=switch/none
ReturnToService=2
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
KillWait=20
NodeName=$host NodeAddr=127.0.0.1 CPUs=$(nproc --all) RealMemory=4000
PartitionName=low Nodes=$host Default=YES MaxTime=480 PriorityTier=1 PreemptMode=REQUEUE GraceTime=20 State=UP
PartitionName=high Nodes=$host MaxTime=480 PriorityTier=9 PreemptMode=OFF State=UP
CONF
  until_true 20 test -S "$at/munge.socket" || give_up "munged does not start" "$at/munged.out"
  slurmctld -D -i >"$at/slurmctld.out" 2>&1 &
  started+=($!)
  until_true 30 timeout 5 sinfo -h >/dev/null 2>&1 || give_up "slurmctld does not start" "$at/slurmctld.out"
  own_slurm=$SLURM_CONF
  slurmd -D -N "$host" >"$at/slurmd.out" 2>&1 &
  started+=($!)
  idle() { [ "$(timeout 5 sinfo -h -p low -o %T 2>/dev/null)" = idle ]; }
  until_true 60 idle || give_up "the node does not come up" "$at/slurmd.out"
  said=$(timeout 60 srun -n 1 hostname) || give_up "srun does not answer" "$at/slurmd.log"
  echo "Slurm $(sinfo --version | cut -d' ' -f2) is up, srun hostname: $said, no accounting"
}
