#!/bin/sh
# Runs every check, even after one has failed: ./scripts/test.sh [--torch VERSION] [--fast] [options for pytest]
# --torch 2.11.0 runs the tests alone with another torch, in an environment of its own, .venv-torch-2.11.0; PyPI's builds
# for Linux bring CUDA's libraries, several GB.
# --fast takes about a minute: no mypy, no slow tests, and the first tests of every file.
# Three workers share the tests of two cores: while the processes of one wait, the others compute. mypy, which takes a
# minute of a core, gets what they leave; its errors come last. Your options for pytest come last, e.g. -n 0.
set -u

root=$(CDPATH='' cd -- "$(dirname -- "$0")/.." && pwd -P) || exit 1
cd "$root" || exit 1
python=$root/.venv/bin/python
system_packages='g++ xvfb xdotool python3-tk slurm-wlm munge openssh-server' # Debian packages that tests need
failed=
fast=
torch=
[ "${1:-}" = --torch ] && { torch=${2:?a version of torch, such as 2.11.0} && shift 2; }
[ "${1:-}" = --fast ] && { fast=--fast && shift; }

install_system_packages() {
    missing=
    for package in $system_packages; do
        dpkg -s "$package" >/dev/null 2>&1 || missing="$missing $package"
    done
    if [ -n "$missing" ] && [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
        # shellcheck disable=SC2086  # a list of packages
        { apt-get -qq update && DEBIAN_FRONTEND=noninteractive apt-get -qq install -y $missing; } >/dev/null ||
            echo "apt-get cannot install$missing; the tests that need it are skipped." >&2
    fi
}

check() {
    name=$1
    shift
    echo "== $name"
    "$python" "$@" || failed="$failed $name"
}

start_mypy() {
    mypy_output=$(mktemp) || exit 1
    nice -n 19 "$python" -m mypy >"$mypy_output" 2>&1 &
    mypy=$!
    trap 'kill "$mypy" 2>/dev/null; rm -f "$mypy_output"' EXIT
    trap 'exit 130' INT
    trap 'exit 143' TERM
}

set_up_other_torch() {
    [ -x "$python" ] || "${PYTHON:-python3}" -m venv "$root/.venv-torch-$torch" || return
    grep -vE '^(torch|setuptools)==' requirements.lock | "$python" -m pip install --quiet -r /dev/stdin -r requirements-dev.lock "torch==$torch"
}

install_system_packages & # beside pip: both mostly wait for the network
if [ -n "$torch" ]; then
    python=$root/.venv-torch-$torch/bin/python
    set_up_other_torch
else
    ./scripts/setup.sh --dev
fi
set_up=$?
wait
[ "$set_up" = 0 ] || exit "$set_up"
# The ranks of a test share few cores; with a thread per core each, they would only wait for one another.
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}"
unset PYTHONDONTWRITEBYTECODE # container images set it; each of a thousand processes would compile its modules

[ -n "$torch" ] || {
    check ruff -m ruff check --quiet --output-format concise .
    check format -m ruff format --quiet --check --output-format concise .
    # Not bin/lint-imports: its first line holds the path .venv was created at, and the folder may have been moved.
    check layers -c 'from importlinter.cli import lint_imports_command; lint_imports_command()' --no-logo
    # Not with --quiet, which hides the broken links and ends with 0.
    NO_MKDOCS_2_WARNING=1 check docs -m mkdocs build --strict
}
[ -z "$failed" ] || echo "== failed, see above:$failed"
[ -n "$fast$torch" ] || start_mypy
check pytest -m pytest -n "$([ -n "$fast" ] && echo 2 || echo 3)" --dist loadgroup --no-loadscope-reorder ${fast:+"$fast"} "$@"
[ -n "$fast$torch" ] || wait "$mypy" || {
    echo "== mypy"
    cat "$mypy_output"
    failed="$failed mypy"
}
[ -z "$failed" ]
