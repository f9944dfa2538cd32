#!/bin/sh
# Sets up Tandem's Python environment in .venv: ./scripts/setup.sh [--dev]. Returns at once if it is complete.
# PYTHON=/path/to/python3 chooses the Python for a new .venv.
set -u

root=$(CDPATH='' cd -- "$(dirname -- "$0")/.." && pwd -P) || exit 1
venv=$root/.venv

# Whether install.py has installed this lock file for the current Python of .venv.
is_installed() {
    version=$("$venv/bin/python" -V 2>/dev/null) && cmp -s "$root/$1" "$venv/installed/$version/$1"
}

# Sets $python to the first suitable one, or $unsuitable to a description of the others.
find_python() {
    unsuitable=
    for candidate in "$@"; do
        version=$("$candidate" -V 2>/dev/null) || continue
        case $version in
        'Python 3.11.'* | 'Python 3.12.'* | 'Python 3.13.'*)
            python=$candidate
            return 0
            ;;
        esac
        unsuitable="$unsuitable${unsuitable:+, }$candidate is $version"
    done
    return 1
}

if is_installed requirements.lock; then
    case ${1:-} in
    '') exit 0 ;;
    --dev) is_installed requirements-dev.lock && exit 0 ;;
    esac
fi

if [ -n "${PYTHON:-}" ]; then
    find_python "$PYTHON"
else
    find_python "$venv/bin/python" python3 python3.13 python3.12 python3.11
fi || {
    echo "Tandem is not set up: it needs Python 3.11, 3.12 or 3.13, but ${unsuitable:-there is no ${PYTHON:-python3}};" \
        "install one (Debian, Ubuntu: apt install python3 python3-venv) or name yours: PYTHON=/path/to/python3." >&2
    exit 1
}
exec "$python" -I "$root/scripts/install.py" "$@"
