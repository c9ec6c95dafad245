#!/usr/bin/env bash
# Resolves the managed environments' locks again: pipeline/environments/locks/*.in -> *.txt, those
# of servers and checkers that the tests start, tests/e2e/{mlflow_server,exports}/*.txt, and those
# of the package of plug-ins, tests/outside_package.
#
#   scripts/lock-environments.sh                 keeps versions that still fit
#   scripts/lock-environments.sh --upgrade       takes the newest (further options go to uv)
#
# A lock pins everything, for Python 3.11 on x86-64 Linux, with the hashes of its files, and names
# no index. One version of torch has two builds: a lock for CPUs has "+cpu" alone, and one for CUDA
# the index's own alone ("===", since "==" also accepts "+cpu").
set -euo pipefail
cd "$(dirname "$0")/.."

uv=uv
[ -x .venv/bin/uv ] && uv=$PWD/.venv/bin/uv
cd pipeline/environments/locks

# The CPU wheel of torch comes from pip's find-links; without any, from PyTorch's own CPU index.
: "${UV_FIND_LINKS:=$(tr -s ' ' ',' <<<"${PIP_FIND_LINKS:-https://download.pytorch.org/whl/cpu/torch/}")}"
export UV_FIND_LINKS

lock() { # NAME [uv's options...]
    local name=$1
    shift
    local overrides=()
    [ -f "$name.overrides.txt" ] && overrides=(--overrides "$name.overrides.txt")
    local wheels=$UV_FIND_LINKS
    [[ $name != *-cuda ]] || wheels=
    UV_FIND_LINKS=$wheels "$uv" --no-config pip compile "$name.in" --output-file "$name.txt" "${overrides[@]}" \
        --python-version 3.11 --python-platform x86_64-manylinux_2_28 \
        --generate-hashes --no-header --no-annotate --quiet "$@"
    # uv reads no hash of a file in a local folder.
    local build wheel
    build=$(sed -n 's/^\(torch==.*+cpu\)$/\1/p' "$name.txt")
    if [ -n "$build" ]; then
        wheel=$(find ${UV_FIND_LINKS//,/ } -name "torch-${build#torch==}-cp311-*_x86_64.whl")
        sed -i "s/^torch==.*+cpu$/& \\\\\n    --hash=sha256:$(sha256sum "$wheel" | cut -d' ' -f1)/" "$name.txt"
    fi
    [[ $name != *-cuda ]] || sed -i 's/^torch==/torch===/' "$name.txt"
    echo "$name.txt: $(grep -c == "$name.txt") packages"
}

lock quantize-cpu "$@"
lock serve-cpu "$@"
lock quantize-autoawq-cpu "$@"
lock quantize-cuda "$@"
lock quantize-autoawq-cuda "$@"
lock serve-cuda "$@"
lock evaluate "$@"
lock source-builds "$@" # what builds the few packages that have no wheel

cd ../../../tests/e2e/mlflow_server # not an environment of the product's
lock server "$@"

cd ../exports
lock validators "$@"
lock litellm "$@"

cd ../../outside_package/src/outside_package/locks
lock outside-int8-cpu "$@"
lock outside-serve-cpu "$@"
