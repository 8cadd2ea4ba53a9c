#!/usr/bin/env bash
# Makes .venv in this folder from the locks in envs/; does nothing if that has been done.
#   bash setup.sh          for this machine: with an NVIDIA driver as --gpu, else as --cpu
#   bash setup.sh --cpu    vLLM's CPU backend and torch's CPU build
#   bash setup.sh --gpu    vLLM and torch for CUDA 13; needs NVIDIA's driver 580 or later
# Needs Linux on x86-64 with glibc 2.31 or later, Python 3.11 or 3.12, on a CPU libnuma, and a package index for pip.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"

stop() {
    echo "setup: $*" >&2
    exit 1
}

kind=${1:-}
kind=${kind#--}
driver=$(nvidia-smi --query-gpu=driver_version --format=csv,noheader 2>/dev/null | head -n 1) || driver=""
driver=${driver:-$(sed -n 's/.* \([0-9]\{3,\}\.[0-9.]\+\) .*/\1/p' /proc/driver/nvidia/version 2>/dev/null | head -n 1)} || driver=""
stamp=.venv/.locks # the kind of environment, and what it was made from
locks=$(cat envs/*.lock pyproject.toml | sha256sum)
read -r made of <<<"$(cat "$stamp" 2>/dev/null)" || true
case "$kind" in
"") if [ "$of" = "$locks" ]; then kind=$made; elif [ -n "$driver" ]; then kind=gpu; else kind=cpu; fi ;;
cpu | gpu) ;;
*) stop "there is no option $1; there are --cpu and --gpu" ;;
esac
if [ "$made $of" = "$kind $locks" ]; then
    echo "setup: .venv is up to date ($kind)"
    exit 0
fi

glibc=$(getconf GNU_LIBC_VERSION 2>/dev/null | cut -d. -f2) || glibc=0
if [ "$(uname -sm)" != "Linux x86_64" ] || [ "${glibc:-0}" -lt 31 ]; then
    stop "needs Linux on x86-64 with glibc 2.31 or later (Debian 11, Ubuntu 20.04, RHEL 9); this is $(uname -sm), $(getconf GNU_LIBC_VERSION 2>/dev/null || echo 'without glibc'). An older Linux can run the image of envs/apptainer.def (docs/cluster.md)"
fi
if [ "$kind" = gpu ] && [ "$(echo "${driver:-580}" | cut -d. -f1)" -lt 580 ]; then
    stop "NVIDIA's driver $driver is too old for CUDA 13, which needs 580 or later; update it (images and conda environments cannot), or use the CPU: bash setup.sh --cpu"
fi
python=""
for candidate in "${PYTHON:-}" python3.11 python3.12 python3; do
    if [ -n "$candidate" ] && "$candidate" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info[:2] not in ((3, 11), (3, 12)))' 2>/dev/null; then
        python=$candidate
        break
    fi
done
if [ -z "$python" ]; then
    stop "needs Python 3.11 or 3.12 with venv (on Debian: apt-get install python3-venv); install one, or name it: PYTHON=/path/to/python3.12 bash setup.sh"
fi
if [ "$kind" = cpu ] && ! "$python" -c 'import ctypes; ctypes.CDLL("libnuma.so.1")' 2>/dev/null; then
    stop "vLLM on a CPU needs the library libnuma.so.1, which is not here; install it (Debian: apt-get install libnuma1; RHEL: dnf install numactl-libs)"
fi

started=$SECONDS
gigabytes=4
[ "$kind" = cpu ] || gigabytes=10
free=$(df -Pk . | awk 'NR == 2 {print int($4 / 1048576)}')
[ "$free" -ge "$gigabytes" ] || stop "needs $gigabytes GB of disk in $PWD, which has $free"
mkdir -p logs
log=logs/setup.log
echo "setup: making .venv for a machine with a ${kind^^}, with $("$python" --version) (about $gigabytes GB, some minutes; $log has the details)"
rm -rf .venv
"$python" -m venv .venv >"$log"
export PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_INPUT=1 PIP_RETRIES=${PIP_RETRIES:-1}
export VIRTUAL_ENV=$PWD/.venv UV_HTTP_RETRIES=${UV_HTTP_RETRIES:-2}
exact=(--no-deps --require-hashes)

by_pip() { .venv/bin/python -m pip install "${exact[@]}" --no-compile "$@" >>"$log" 2>&1; }
by_uv() { [ -x .venv/bin/uv ] && .venv/bin/uv pip install "${exact[@]}" "$@" >>"$log" 2>&1; }
# uv takes a third of pip's time, but has settings of its own: where it fails, the index may be one that pip knows.
install() { by_uv "$@" || by_pip "$@"; }
unreachable() { # what; says why, as pip does
    local network='name resolution|Name or service not known|Connection refused|Network is unreachable|timed out|certificate'
    local why
    why=$(grep -oE "[^:]*($network)[^:(]*" "$log" | tail -n 1) || why=$(grep -E '^ERROR:' "$log" | tail -n 1) || why=unknown
    stop "$1 could not be installed: ${why# }. Connect this machine to a package index, or name one to pip (PIP_INDEX_URL=...), and start again; the whole text is in $log"
}

by_pip -r envs/uv.lock || echo "setup: uv cannot be had here; pip installs, which takes longer"
if [ "$kind" = cpu ]; then
    echo "setup: installing torch's CPU build, from PyTorch's index or where pip is told to look"
    if ! by_uv --torch-backend cpu -r envs/torch-cpu.lock && ! by_pip -r envs/torch-cpu.lock; then
        echo "setup: that cannot be had here; installing torch's CUDA build instead, which runs on a CPU too (3 GB more)"
        [ "$free" -ge 8 ] || stop "needs 8 GB of disk in $PWD, which has $free"
        install -r envs/torch-cuda.lock || unreachable torch
    fi
fi
echo "setup: installing $(grep -c '^[^#]' "envs/$kind.lock") locked packages"
install -r "envs/$kind.lock" || unreachable "the packages of envs/$kind.lock"
# Without a GPU in sight: where there is one, DeepSpeed's build would ask for nvcc, although it compiles nothing here.
CUDA_VISIBLE_DEVICES='' install --no-build-isolation -r envs/sources.lock || unreachable "the packages of envs/sources.lock"
# The project itself, as it stands here: `import mrt` and the command `mrt` work in any folder.
.venv/bin/python -m pip install --no-deps --no-build-isolation --no-index --editable . >>"$log" 2>&1 || stop "the project itself could not be installed; $log says why"
# On all cores, and now: where Python may not write bytecode later, every start would compile what it imports, vLLM 8 s.
# Some files that packages bring are templates, which do not compile.
.venv/bin/python -m compileall -qq -j 0 .venv/lib >>"$log" 2>&1 || true
echo "setup: importing torch, vllm, trl, deepspeed"
if ! .venv/bin/python -c 'import torch, vllm, trl, deepspeed, mrt' >>"$log" 2>&1; then
    stop "all is installed, but does not import: $(tail -n 1 "$log" | cut -c1-300); please report it with $log"
fi
echo "$kind $locks" >"$stamp"
echo "setup: done in $((SECONDS - started)) s, $(.venv/bin/python -c 'import sys, torch; print("Python", sys.version.split()[0] + ", torch", torch.__version__)')"
