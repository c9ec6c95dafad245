#!/usr/bin/env bash
# Resolves the managed environments' locks again: pipeline/environments/locks/*.in -> *.txt, and
# those of servers and checkers that the tests start, tests/e2e/{mlflow_server,exports}/*.txt.
#
#   scripts/lock-environments.sh                 keeps versions that still fit
#   scripts/lock-environments.sh --upgrade       takes the newest (further options go to uv)
#
# A lock pins everything, for Python 3.11 on x86-64 Linux, and names no index. The product's
# carry no hashes, because one version of torch has two builds: "+cpu", and the index's own.
set -euo pipefail
cd "$(dirname "$0")/.."

uv=uv
[ -x .venv/bin/uv ] && uv=$PWD/.venv/bin/uv
cd pipeline/environments/locks

# The CPU wheel of torch comes from pip's find-links; without any, from PyTorch's own CPU index.
cpu_torch=()
: "${UV_FIND_LINKS:=$(tr -s ' ' ',' <<<"${PIP_FIND_LINKS:-}")}"
export UV_FIND_LINKS
if [ -z "$UV_FIND_LINKS" ]; then
    unset UV_FIND_LINKS
    cpu_torch=(--torch-backend cpu)
fi

lock() { # NAME [uv's options...]
    local name=$1
    shift
    local overrides=()
    [ -f "$name.overrides.txt" ] && overrides=(--overrides "$name.overrides.txt")
    "$uv" pip compile "$name.in" --output-file "$name.txt" "${overrides[@]}" \
        --python-version 3.11 --python-platform x86_64-manylinux_2_28 \
        --no-header --no-annotate --quiet "$@"
    # The lock asks for the version, not for one of its builds.
    sed -i 's/^\(torch==[^+]*\)+cpu$/\1/' "$name.txt"
    echo "$name.txt: $(grep -c == "$name.txt") packages"
}

lock quantize-cpu "${cpu_torch[@]}" "$@"
lock serve-cpu "${cpu_torch[@]}" "$@"
lock quantize-autoawq-cpu "${cpu_torch[@]}" "$@"
lock quantize-cuda "$@"
lock quantize-autoawq-cuda "$@"
lock serve-cuda "$@"
lock evaluate "$@"

cd ../../../tests/e2e/mlflow_server # not an environment of the product's
lock server "$@"

cd ../exports # by others, and one of them once stole credentials (litellm#24518): hashes
lock validators --generate-hashes "$@"
lock litellm --generate-hashes "$@"
