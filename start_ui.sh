#!/bin/sh
# Opens the window, after setting up if necessary: ./start_ui.sh [--config FILE] [--run FOLDER]
set -u

root=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd -P) || exit 1
"$root/scripts/setup.sh" || exit
# Relative paths refer to the current folder; -P: no module is imported from it.
PYTHONPATH=$root${PYTHONPATH:+:$PYTHONPATH} exec "$root/.venv/bin/python" -P -m app "$@"
