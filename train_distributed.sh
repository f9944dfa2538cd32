#!/bin/sh
# Trains on several GPUs, or on two CPU processes if there is none; see --help.
set -u

root=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd -P) || exit 1

usage() {
    cat <<'END'
./train_distributed.sh [NUM_GPUS|all] [CONFIG] [further options of scripts/train.py]

  NUM_GPUS   how many processes, one on each GPU; all (the default): every GPU, or two CPU processes if there is none
  CONFIG     a config file (.json, .yaml) or the name of a preset; the default is demo, a small run on generated images

The first start sets up .venv. Relative paths refer to the current folder.

  ./train_distributed.sh                              the demo on every GPU
  ./train_distributed.sh 2 my_run.yaml                two GPUs
  ./train_distributed.sh all demo --set epochs=2      override a setting of the config
  ./train_distributed.sh --resume latest              continue the newest run, whatever it trains, from its newest backup
END
}

# Whether .venv's Python sees a GPU that CUDA_VISIBLE_DEVICES allows.
has_gpu() {
    "$python" -c 'import sys; from modules.machine import visible_gpus; sys.exit(not visible_gpus())'
}

case ${1-} in
-h | --help)
    usage
    exit 0
    ;;
-*) set -- all "$@" ;; # only options: ./train_distributed.sh --resume latest
esac
gpus=${1-all}
case $gpus in
all) ;;
'' | *[!0-9]* | 0*)
    echo "The first argument is '$gpus'; give a number of GPUs from 1, or all (--help says more)." >&2
    exit 2
    ;;
esac
[ $# -eq 0 ] || shift

case ${1:-} in
'' | -*)
    case " $* " in
    *' --resume'*) ;; # the config of that run
    *) set -- --config demo "$@" ;;
    esac
    ;;
*) set -- --config "$@" ;;
esac

"$root/scripts/setup.sh" || exit
python=$root/.venv/bin/python
# Without a GPU, training would use one process.
if [ "$gpus" = all ] && ! has_gpu; then
    gpus=2
fi
if [ "$gpus" != all ]; then
    set -- --set "world_size=$gpus" "$@"
fi
exec "$python" "$root/scripts/train.py" --multi_gpu "$@"
