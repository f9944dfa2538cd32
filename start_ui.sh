#!/bin/sh
# Opens the window, and sets up first where that is needed: ./start_ui.sh [--config FILE] [--run FOLDER]
set -u

root=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd -P) || exit 1
"$root/scripts/setup.sh" || exit
# Relative paths stay those of the folder this is started in.
PYTHONPATH=$root${PYTHONPATH:+:$PYTHONPATH} exec "$root/.venv/bin/python" -m app "$@"
