#!/usr/bin/env bash
# A SLURM of one node on this machine, to test profiles/slurm. Needs root and Debian or Ubuntu.
#   local_slurm.sh start          installs what is missing and starts the daemons
#   local_slurm.sh stop           cancels all jobs, ends the daemons, and leaves no trace of them
#   local_slurm.sh run COMMAND    a command with DPCANARY_SLURM=1; stops what was not running before
# All is in $STATE, but for links in $CONF: the plugin's jobs find SLURM there only, since they drop SLURM_CONF.
set -euo pipefail

STATE=/run/dpcanary-slurm
CONF=/etc/slurm

fail() {
    echo "error: $1" >&2
    exit 1
}

# Waits until a command succeeds.
await() {
    local deadline=$((SECONDS + 60))
    until "$@" >/dev/null 2>&1; do
        [ "$SECONDS" -lt "$deadline" ] || fail "SLURM: no success of '$*' in a minute; see $STATE/*.log"
        sleep 0.2
    done
}

install_packages() {
    command -v slurmctld >/dev/null && command -v slurmd >/dev/null && command -v sbatch >/dev/null &&
        command -v munged >/dev/null && return
    command -v apt-get >/dev/null || fail "SLURM comes from Debian's packages slurm-wlm and munge: no apt-get here"
    apt-get update -qq >&2
    DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends slurm-wlm munge >/dev/null 2>&1 ||
        fail "apt-get cannot install slurm-wlm and munge"
}

configure() {
    local host
    [ ! -e "$CONF/slurm.conf" ] || fail "this machine has a SLURM of its own: $CONF/slurm.conf"
    host=$(hostname -s)
    mkdir -p "$STATE/ctld" "$STATE/d" "$STATE/munge"
    # More processors and memory than there may be, and cards that are none: what is tested is who runs when and with
    # what. Limits are tested too, so an overrun job is killed at once, and finished ones stay on record.
    cat >"$STATE/slurm.conf" <<EOF
ClusterName=dpcanary
SlurmctldHost=$host(127.0.0.1)
SlurmctldPort=26817
SlurmdPort=26818
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket=$STATE/munge/socket
StateSaveLocation=$STATE/ctld
SlurmdSpoolDir=$STATE/d
SlurmctldPidFile=$STATE/slurmctld.pid
SlurmdPidFile=$STATE/slurmd.pid
SlurmctldLogFile=$STATE/slurmctld.log
SlurmdLogFile=$STATE/slurmd.log
ProctrackType=proctrack/pgid
TaskPlugin=task/none
MpiDefault=none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
ReturnToService=2
MinJobAge=3600
KillWait=1
OverTimeLimit=0
GresTypes=gpu
NodeName=$host NodeAddr=127.0.0.1 CPUs=4 RealMemory=100000 Gres=gpu:2 State=UNKNOWN
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP
EOF
    printf 'Name=gpu File=/dev/%s\n' null zero >"$STATE/gres.conf"
    mkdir -p "$CONF"
    ln -sf "$STATE/slurm.conf" "$STATE/gres.conf" "$CONF"
}

is_idle() { sinfo --noheader --format %t | grep -qE '^(idle|mix|alloc)$'; }

is_running() { [ -e "$STATE/slurm.conf" ] && is_idle; }

# A process that ended has no program any more, even where nobody has asked for its exit status yet.
is_gone() { ! readlink "/proc/$1/exe"; }

start() {
    [ "$(id -u)" = 0 ] || fail "the daemons of SLURM need root"
    install_packages
    if ! is_running 2>/dev/null; then
        stop # whatever is left of it
        configure
        (umask 077 && head -c 128 /dev/urandom >"$STATE/munge/key")
        munged --key-file="$STATE/munge/key" --socket="$STATE/munge/socket" --pid-file="$STATE/munged.pid" \
            --log-file="$STATE/munge/log" --seed-file="$STATE/munge/seed"
        slurmctld -c
        slurmd
        await is_idle
    fi
}

stop() {
    [ -e "$STATE/slurm.conf" ] || return 0
    timeout 10 squeue --noheader --format %A 2>/dev/null | sort -u | xargs --no-run-if-empty scancel || true
    local daemon pid
    for daemon in slurmd slurmctld munged; do
        pid=$(cat "$STATE/$daemon.pid" 2>/dev/null) || continue
        kill "$pid" 2>/dev/null || continue
        await is_gone "$pid"
    done
    rm -rf "$STATE" "$CONF/slurm.conf" "$CONF/gres.conf"
}

run() {
    is_running 2>/dev/null || trap stop EXIT
    start
    DPCANARY_SLURM=1 "$@"
}

case "${1:-}" in
    start | stop) "$1" ;;
    run) "$@" ;;
    *)
        sed -n '2,5s/^# *//p' "$0" >&2
        exit 2
        ;;
esac
