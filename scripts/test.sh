#!/bin/sh
# Runs every check: ./scripts/test.sh [options for pytest]. All of them run even if one fails.
# Two workers share the tests: while the processes of one wait, the other computes. Options of yours come last: -n 0.
set -u

root=$(CDPATH='' cd -- "$(dirname -- "$0")/.." && pwd -P) || exit 1
cd "$root" || exit 1
python=$root/.venv/bin/python
system_packages='xvfb xdotool python3-tk slurm-wlm munge' # Debian packages that tests need
failed=

install_system_packages() {
    missing=
    for package in $system_packages; do
        dpkg -s "$package" >/dev/null 2>&1 || missing="$missing $package"
    done
    if [ -n "$missing" ] && [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
        # shellcheck disable=SC2086  # a list of words
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

install_system_packages
./scripts/setup.sh --dev || exit
# The tests' ranks share few cores; each with a thread per core would only wait for the others.
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}"

check ruff -m ruff check --quiet --output-format concise .
check format -m ruff format --quiet --check --output-format concise .
check mypy -m mypy
# Not bin/lint-imports: such files name the folder that .venv was made in, which may have been moved since.
check layers -c 'from importlinter.cli import lint_imports_command; lint_imports_command()' --no-logo
[ -z "$failed" ] || echo "== failed, see above:$failed"
check pytest -m pytest -n 2 --dist loadfile --no-loadscope-reorder "$@"
[ -z "$failed" ]
