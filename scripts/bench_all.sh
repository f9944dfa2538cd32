#!/bin/sh
# Runs every benchmark of benchmarks/ on an idle machine, one after the other: ./scripts/bench_all.sh [NAME ...]
# Each prints its figures beside their targets, such as ratios to a bare counterpart that takes turns with it.
# docs/benchmarks.md explains them.
# Names choose some, e.g. trainer_overhead diffusion.
set -u

root=$(CDPATH='' cd -- "$(dirname -- "$0")/.." && pwd -P) || exit 1
cd "$root" || exit 1
python=$root/.venv/bin/python
all='trainer_overhead classifier diffusion scaling backup supervisor monitoring healthy_run data_order data_loading host_memory many_ranks window window_under_load'
failed=

case "${1:-}" in -h | --help)
    sed -n '2,5s/^# //p' "$0"
    echo "Benchmarks: $all"
    exit 0
    ;;
esac
[ -x "$python" ] || { echo "There is no .venv here; ./scripts/setup.sh makes it." >&2 && exit 1; }
for name in ${*:-$all}; do
    if [ ! -f "benchmarks/$name.py" ]; then
        echo "There is no benchmark $name; there are: $all" >&2
        exit 2
    fi
done
for name in ${*:-$all}; do
    echo "== $name"
    "$python" "benchmarks/$name.py" || failed="$failed $name"
    echo
done
[ -z "$failed" ] || echo "Failed or missed a target:$failed" >&2
[ -z "$failed" ]
