#!/bin/bash
# A real SLURM cluster of several nodes on this one machine, for tests. Root only; all its files lie in the folder $LAB,
# /etc/slurm is replaced only inside a mount namespace of its own.
#   lab.sh install                  get SLURM by apt-get, if it is not there
#   lab.sh [--install] up           bring it up; the nodes, GPUs and cores of each and first port by NODES, GPUS, CPUS,
#                                   PORT; by SLURMD_TIMEOUT the seconds after which a silent node counts as dead; by
#                                   TASK_PLUGIN what binds processes to cores (only as many as the machine has)
#   lab.sh run COMMAND...           run a command as on its login node (becomes that command: same process id)
#   lab.sh controller stop|start    the controller away and back, jobs go on
#   lab.sh daemon NODE kill|start   the daemon of a node away and back, jobs go on
#   lab.sh crash NODE JOB           a node that dies with a job on it
#   lab.sh down                     end all that runs in it
# Exits with 3 where it cannot be brought up.
set -u
LAB=${LAB:?the folder of the lab}
read -ra nodes <<<"${NODES:-n1 n2 n3}"
gpus=${GPUS:-2} cpus=${CPUS:-16} port=${PORT:-16800} host=$(hostname -s)

cannot() { echo "lab.sh: $*" >&2; exit 3; }
failed() { echo "lab.sh: $*" >&2; tail -n 20 "$LAB"/log/*.log >&2; exit 1; }
inside() { nsenter --target "$(<"$LAB/namespace.pid")" --mount --wd="$PWD" -- "$@"; }
namespace_of() { readlink "/proc/$1/ns/mnt" 2>/dev/null; }

within() { # SECONDS CONDITION...: wait for it
  local end=$((SECONDS + $1)); shift
  until "$@" >/dev/null 2>&1; do [ $SECONDS -lt $end ] || return 1; sleep 0.1; done
}

processes() { # those that run in the lab: its daemons, its jobs, and what was started by `run`
  local own folder; own=$(namespace_of "$(<"$LAB/namespace.pid")")
  [ -n "$own" ] && [ "$own" != "$(namespace_of self)" ] || return
  for folder in /proc/[0-9]*; do
    [ "$(namespace_of "${folder#/proc/}")" != "$own" ] || echo "${folder#/proc/}"
  done
}

installed() { command -v slurmctld slurmd sbatch munged >/dev/null; }

get_installed() {
  [ "$install" ] || cannot "SLURM is not installed; \`lab.sh --install up\` gets slurm-wlm and munge by apt-get"
  { apt-get update && DEBIAN_FRONTEND=noninteractive apt-get install --yes --no-install-recommends slurm-wlm munge; } >&2 &&
    installed || cannot "apt-get could not install slurm-wlm and munge"
}

write_configuration() {
  local i
  cat <<END
ClusterName=lab
SlurmctldHost=$host(127.0.0.1)
SlurmctldPort=$port
SlurmUser=root
SlurmdUser=root
AuthInfo=socket=$LAB/munge/socket
StateSaveLocation=$LAB/state
SlurmdSpoolDir=$LAB/spool/%n
SlurmctldPidFile=$LAB/slurmctld.pid
SlurmdPidFile=$LAB/slurmd.%n.pid
SlurmctldLogFile=$LAB/log/slurmctld.log
SlurmdLogFile=$LAB/log/slurmd.%n.log
# No cgroups: the lab shares its machine.
ProctrackType=proctrack/linuxproc
TaskPlugin=${TASK_PLUGIN:-task/none}
MpiDefault=none
JobAcctGatherType=jobacct_gather/linux
JobAcctGatherFrequency=2
JobAcctGatherParams=OverMemoryKill
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
GresTypes=gpu
# Nodes may claim more cores and memory than the machine has.
SlurmdParameters=config_overrides
# Jobs start at once, ended ones are remembered, dead nodes are noticed soon.
SchedulerType=sched/builtin
SchedulerParameters=sched_interval=1,batch_sched_delay=0
MinJobAge=3600
JobCompType=jobcomp/filetxt
JobCompLoc=$LAB/log/jobcomp
KillWait=3
SlurmdTimeout=${SLURMD_TIMEOUT:-30}
ReturnToService=2
PreemptType=preempt/partition_prio
PreemptMode=CANCEL
END
  for i in "${!nodes[@]}"; do
    echo "NodeName=${nodes[i]} NodeHostname=$host NodeAddr=127.0.0.1 Port=$((port + 1 + i)) CPUs=$cpus RealMemory=64000" \
      "Gres=gpu:h200:$gpus"
  done
  echo "PartitionName=cpu Nodes=ALL Default=YES State=UP"
  echo "PartitionName=gpu Nodes=ALL State=UP"
  echo "PartitionName=urgent Nodes=ALL State=UP PriorityTier=10"
}

start_controller() { inside slurmctld "$@" && within 20 inside scontrol ping && inside scontrol ping | grep -q UP; }
all_idle() { [ "$(inside sinfo --noheader --Node --partition=cpu --states=idle | wc -l)" = ${#nodes[@]} ]; }

up() {
  local i node
  [ "$(id -u)" = 0 ] || cannot "only root can bring the lab up"
  installed || get_installed
  unshare --mount true 2>/dev/null || cannot "mount namespaces are not allowed here"
  mkdir -p "$LAB"/{etc,state,spool,log,munge,devices} /etc/slurm
  chmod 700 "$LAB/munge"
  for ((i = 0; i < gpus; i++)); do # SLURM wants a device of each GPU; these are of the kind of /dev/null
    [ -e "$LAB/devices/gpu$i" ] || mknod "$LAB/devices/gpu$i" c 1 3 || cannot "devices cannot be made here"
  done
  write_configuration >"$LAB/etc/slurm.conf"
  echo "Name=gpu Type=h200 File=$LAB/devices/gpu[0-$((gpus - 1))]" >"$LAB/etc/gres.conf"
  (umask 077; head -c 128 /dev/urandom >"$LAB/munge/key")
  # shellcheck disable=SC2016
  setsid unshare --mount --propagation private sh -c \
    'mount --bind "$0/etc" /etc/slurm && echo $$ >"$0/namespace.pid" && exec sleep infinity' "$LAB" \
    </dev/null >/dev/null 2>&1 &
  within 10 test -s "$LAB/namespace.pid" || cannot "no mount namespace could be made"
  inside munged --force --key-file="$LAB/munge/key" --socket="$LAB/munge/socket" --pid-file="$LAB/munge/pid" \
    --log-file="$LAB/log/munged.log" --seed-file="$LAB/munge/seed" || failed "munged did not start"
  start_controller -c || failed "the controller did not start"
  for node in "${nodes[@]}"; do
    mkdir -p "$LAB/spool/$node"
    inside slurmd -N "$node" || failed "node $node did not start"
  done
  within 30 all_idle || failed "not all nodes came up"
  inside sinfo
}

kill_daemon() { kill -9 "$(<"$LAB/slurmd.$1.pid")"; }

crash() { # the node's daemon, and all processes of the job
  local process
  kill_daemon "$1"
  for process in $(processes); do
    if grep -qz "^SLURM_JOB_ID=$2$" "/proc/$process/environ" || grep -q "slurmstepd: \[$2\." "/proc/$process/cmdline"; then
      kill -9 "$process"
    fi
  done 2>/dev/null
  return 0
}

end_all() {
  local process
  for process in $(processes); do [ "$process" = "$(<"$LAB/namespace.pid")" ] || kill -9 "$process"; done 2>/dev/null
  [ "$(processes)" = "$(<"$LAB/namespace.pid")" ]
}

down() {
  [ -s "$LAB/namespace.pid" ] && [ -n "$(processes)" ] || return 0
  within 20 end_all || echo "lab.sh: not all processes ended: $(processes)" >&2
  kill -9 "$(<"$LAB/namespace.pid")"
  rm -f "$LAB/namespace.pid"
}

install=""
if [ "${1:-}" = --install ]; then install=yes; shift; fi
case "${1:-}" in
install) install=yes; installed || get_installed ;;
up) up ;;
run) shift; export MRT_DEVICE=cpu # the GPUs that SLURM hands out here are none
  exec nsenter --target "$(<"$LAB/namespace.pid")" --mount --wd="$PWD" -- "$@" ;;
controller)
  case "$2" in
  stop) kill "$(<"$LAB/slurmctld.pid")" && within 20 test ! -e "$LAB/slurmctld.pid" ;;
  start) start_controller || failed "the controller did not start" ;;
  esac ;;
daemon)
  case "$3" in
  kill) kill_daemon "$2" ;;
  start) inside slurmd -N "$2" || failed "node $2 did not start" ;;
  esac ;;
crash) crash "$2" "$3" ;;
down) down ;;
*) sed -n '2,/^set/{/^set/d;s/^# \{0,1\}//;p}' "$0"; exit 2 ;;
esac
