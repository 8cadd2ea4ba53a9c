#!/usr/bin/env bash
# Makes .venv in this folder from the locks, with Python 3.11 or 3.12; does nothing if that has been done.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"

stamp=.venv/.locks
locks=$(cat requirements.lock requirements-torch.lock | sha256sum)
if [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$locks" ]; then
    echo "setup: .venv is up to date"
    exit 0
fi

python=""
for candidate in "${PYTHON:-}" python3.11 python3.12 python3; do
    if [ -n "$candidate" ] && "$candidate" -c 'import sys, venv; sys.exit(sys.version_info[:2] not in ((3, 11), (3, 12)))' 2>/dev/null; then
        python=$candidate
        break
    fi
done
if [ -z "$python" ]; then
    echo "setup: needs Python 3.11 or 3.12 with venv; install one, or name it: PYTHON=/path/to/python3.12 bash setup.sh" >&2
    exit 1
fi

started=$SECONDS
echo "setup: making .venv with $("$python" --version) (about 3 GB, a few minutes)"
rm -rf .venv
"$python" -m venv .venv
echo "setup: installing torch (its CPU build, if your package index has one)"
.venv/bin/python -m pip install -qq --no-compile --disable-pip-version-check --no-deps -r requirements-torch.lock
echo "setup: installing $(grep -c '==' requirements.lock) locked packages"
.venv/bin/python -m pip install -qq --no-compile --disable-pip-version-check --no-deps --require-hashes -r requirements.lock
# On all cores, and now: where Python may not write bytecode later, every start would compile what it imports, vLLM 8 s.
# Some files that packages bring are templates, which do not compile.
.venv/bin/python -m compileall -qq -j 0 .venv/lib || true
.venv/bin/python -c 'import sys; print("setup: done, Python", sys.version.split()[0])'
echo "$locks" >"$stamp"
echo "setup: took $((SECONDS - started)) s"
