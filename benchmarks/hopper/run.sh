#!/usr/bin/env bash
# Everything that this project claims of a GPU and has not measured, in pieces of under 9 minutes.
#
#   benchmarks/hopper/run.sh carry FOLDER   takes parts made by pack.sh; the last one installs them
#   benchmarks/hopper/run.sh                the next piece that is not done
#   benchmarks/hopper/run.sh N              piece N, whether or not it is done
#   benchmarks/hopper/run.sh --rehearse [N] the same pieces on a CPU: demo model, tiny shapes
#   benchmarks/hopper/run.sh list           the pieces, and which are done
#
# Variables: HOPPER (folder for all that is kept, default /tmp/hopper), OUT (where a piece's JSON and
# logs are copied), PROFILE (default h100), GPU (that `prepare plan` reckons for, default h100),
# EVAL_DATA (folder of questions, default: the one that was carried), LIMIT (seconds a piece, 535),
# PYTHON (of the rehearsal: the project's own interpreter, default .venv/bin/python).
set -uo pipefail
self=$(realpath "$0")
cd "$(dirname "$self")/../.."
here=benchmarks/hopper
if [ "${1:-}" = --rehearse ]; then
  shift
  export REHEARSE=1
fi
export HOPPER=${HOPPER:-/tmp/hopper}
mkdir -p "$HOPPER"/{parts,done,results,logs,models}
if [ -n "${REHEARSE:-}" ]; then
  export PROFILE=cpu SHAPE=tiny GPU=${GPU:-h100}
  python=${PYTHON:-$PWD/.venv/bin/python}
  # Without a share of its own, the one with vLLM's defaults takes nearly all of the machine's memory.
  half='max-model-len=2048,gpu-memory-utilization=0.1' tenth='max-model-len=2048' asked=32 compared=2
  loads=(--concurrency 1 4 --blocks 2 --input-tokens 16 --output-tokens 8 --seconds 1)
else
  export PROFILE=${PROFILE:-h100} SHAPE=8b GPU=${GPU:-h100} PREPARE_SETTINGS=$HOPPER/settings.yaml
  export HF_HUB_OFFLINE=1
  python=$HOPPER/env/prepare/bin/python
  # Two servers share the GPU: a BF16 model has room for 256 x 352 tokens, too.
  half='max-model-len=4096,gpu-memory-utilization=0.46' tenth='gpu-memory-utilization=0.1' asked=2000 compared=5
  loads=()
fi
export TQDM_DISABLE=1  # its bars fill a log
export PREPARE_STORE=$HOPPER/store
data=${EVAL_DATA:-$HOPPER/data}
demo=$HOPPER/models/demo made=$HOPPER/models/made-$SHAPE

pieces=(machine start demo bits flips made pair_aa pair_fp8 pair_w4a16 pair_stock awq)

measure() { # NAME COMMAND...: JSON to results/NAME.json
  local name=$1
  shift
  "$python" $here/measure.py --profile "$PROFILE" --out "$HOPPER/results/$name.json" "$@" >/dev/null
}

prepare() { "$python" -P -m pipeline.cli.main "$@"; }

variant() { # MODEL RECIPE: folder of the weights that a run made of it
  "$python" $here/measure.py --profile "$PROFILE" weights "$1" "$2"
}

# --- the environment ------------------------------------------------------------------------------

carry() {
  cp "$1"/* "$HOPPER/parts/" || return
  (cd "$HOPPER/parts" && sha256sum --quiet -c SHA256SUMS 2>/dev/null) || {
    echo "carried: $(ls "$HOPPER/parts" | wc -l) files, more are to come"
    return
  }
  install
}

install() {
  [ -e "$HOPPER/installed" ] && return
  (cd "$HOPPER" && cat parts/part-* | tar x) || return
  local host site name
  host=$(python3 -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
  for name in serve quantize evaluate prepare; do
    # What the machine has serves; what was carried comes before it. A name of its own for each, since
    # their packages do not agree. Without pip: the machine's own installs into it.
    python3 -m venv --without-pip "$HOPPER/env/$name" || return
    site=$("$HOPPER/env/$name/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
    python3 -m pip install -q --no-index --no-deps --no-compile --no-cache-dir --upgrade \
      --target "$site" "$HOPPER/$name"/wheels/*.whl || return
    echo "import site; site.addsitedir('$host')" >"$site/zz_host.pth"
  done
  adapt_engine
  site=$("$HOPPER/env/prepare/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
  pwd >"$site/project.pth"
  {
    echo "home: $HOPPER/home"
    echo "environments:"
    for name in serve quantize evaluate; do
      echo "  $name: {python: $HOPPER/env/$name/bin/python}"
    done
  } >"$HOPPER/settings.yaml"
  touch "$HOPPER/installed"
  rm -rf "$HOPPER"/parts/part-* "$HOPPER"/{serve,quantize,evaluate,prepare}
  echo "installed: $(du -sh "$HOPPER/env" | cut -f1)"
}

# The project starts and asks vLLM 0.32 and 0.33. What 0.24 has elsewhere, or not yet: the server's
# module, and the time that each request of a load took.
adapt_engine() {
  local site launcher load
  site=$("$HOPPER/env/serve/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
  launcher=$site/vllm/entrypoints/launchers load=$site/vllm/benchmarks/serve.py
  if [ ! -e "$launcher" ]; then
    mkdir -p "$launcher/api_server"
    touch "$launcher/__init__.py" "$launcher/api_server/__init__.py"
    echo 'import runpy; runpy.run_module("vllm.entrypoints.openai.api_server", run_name="__main__")' \
      >"$launcher/api_server/entry.py"
  fi
  grep -q '"latencies"' "$load" || sed -i \
    's/^\( *\)"ttfts": \[output.ttft for output in outputs\],/&\n\1"latencies": [o.latency for o in outputs],/' \
    "$load"
}

# --- the pieces -----------------------------------------------------------------------------------

machine() {
  measure machine machine && prepare env doctor --profile "$PROFILE" --json >"$HOPPER/results/doctor.json"
  cat "$HOPPER/results/doctor.json"
  need_models
}

need_models() {
  if [ ! -e "$demo/config.json" ]; then
    measure demo_model demo "$demo" "$HOPPER/demo/wheels" || return
  fi
  [ -e "$made/config.json" ] || measure made_model made "$demo" "$made" --shape "$SHAPE"
}

# 1. A server starts with the profile's arguments; what its log says; beside the plan's figures.
start() {
  need_models || return
  measure start start "demo-fp8kv=$demo" "made-kv16=$made,kv=auto" "made-fp8kv=$made" --gpu "$GPU"
}

# 2. The demo model, made, gated and promoted in one command.
demo() {
  need_models || return
  prepare model "$demo" --profile "$PROFILE" --policy demo --name hopper-demo --json \
    --recipe fp8-dynamic --recipe awq-w4a16 ${questions[@]+"${questions[@]}"} >"$HOPPER/results/demo.json"
  # A variant that fails its gates is a result; anything else is not.
  case $? in 0 | 4 | 5) ;; *) return 1 ;; esac
  prepare registry show hopper-demo --json >"$HOPPER/results/registry.json"
  prepare verify --json >"$HOPPER/results/verify.json"
}

bits() {
  local recipe spec
  for recipe in fp8-dynamic awq-w4a16; do
    spec=$(ls -t "$PREPARE_STORE"/runs/*/stages/$recipe.quantize.*.json 2>/dev/null | head -1)
    [ -n "$spec" ] || { echo "piece 3 has not made $recipe"; return 1; }
    rm -rf "$HOPPER/cpu/$recipe"
    measure "cpu-$recipe" quantize "$spec" "$HOPPER/cpu/$recipe" --cpu || return
    measure "bits-$recipe" bits "$(variant "$demo" $recipe)" \
      "$(echo "$HOPPER/cpu/$recipe"/stages/quantize/*/output)" || return
  done
}

# 3. How many answers change: nothing, weights, KV cache with attention, both.
flips() {
  local fp8
  fp8=$(variant "$demo" fp8-dynamic) || return
  sed "s/questions: 2000/questions: $asked/" $here/flips.yaml >"$HOPPER/flips.yaml"
  local sides=("bf16=$demo,kv=auto,$tenth" "again=$demo,kv=auto,$tenth" "fp8-kv=$demo,$tenth"
    "fp8-weights=$fp8,kv=auto,$tenth" "both=$fp8,$tenth")
  measure flips flips "${sides[@]:0:$compared}" --tokenizer "$demo" \
    --policy "$HOPPER/flips.yaml" ${questions[@]+"${questions[@]}"}
}

# 5. and for 4.: FP8 and quick AWQ weights of the made model, checked, with their seconds and memory.
made() {
  need_models || return
  make_weights made --recipe fp8-dynamic --recipe $here/awq-quick.yaml
  measure stages stages && variant "$made" fp8-dynamic && variant "$made" awq-quick
}

# A run up to where it would serve: what random weights answer is of no interest.
make_weights() { # NAME OPTION...
  local events=$HOPPER/logs/$1.events pid
  "$python" -P -m pipeline.cli.main model "$made" --profile "$PROFILE" --policy demo --no-promote \
    --no-dry-run --name hopper-made --json "${@:2}" >"$HOPPER/results/$1.json" 2>"$events" &
  pid=$!
  while kill -0 $pid 2>/dev/null; do
    grep -q '"start the server"' "$events" && kill $pid
    sleep 2
  done
  grep -v '"progress"' "$events"
}

# 4. Output tokens/s in interleaved blocks, two servers at a time.
pair() { # NAME SIDE SIDE
  local name=$1
  shift
  measure "pair-$name" pair "$@" --tokenizer "$made" --work "$HOPPER/pairs/$name" "${loads[@]}"
}
pair_aa() { pair aa "one=$made,kv=auto,$half" "other=$made,kv=auto,$half"; }
pair_fp8() { pair fp8 "bf16=$made,kv=auto,$half" "fp8=$(variant "$made" fp8-dynamic),$half"; }
pair_w4a16() { pair w4a16 "bf16=$made,kv=auto,$half" "w4a16=$(variant "$made" awq-quick),$half"; }
pair_stock() { pair stock "stock=$made,stock=1,$half" "profile=$made,kv=auto,$half"; }

# 5. AWQ with the recipe that is carried, as long as it takes or the time ends.
awq() {
  make_weights awq --recipe awq-w4a16
  measure stages stages && variant "$made" awq-w4a16
}

# --- one piece ------------------------------------------------------------------------------------

hand_back() { # what comes back: a few small files
  [ -n "${OUT:-}" ] || return 0
  mkdir -p "$OUT"
  tar cz -C "$HOPPER" results logs done $(cd "$HOPPER" && ls -d store/served store/runs pairs 2>/dev/null) \
    >"$OUT/hopper.tgz"
  cp "$HOPPER/logs/$1.log" "$OUT/$1.log"
}

run_piece() {
  local piece=${pieces[$(($1 - 1))]} started=$SECONDS code
  echo "piece $1 of ${#pieces[@]}: $piece"
  timeout -k 25 "${LIMIT:-535}" "$self" piece "$piece" > >(tee -a "$HOPPER/logs/$piece.log") 2>&1
  code=$?
  [ $code = 0 ] && touch "$HOPPER/done/$piece"
  nvidia-smi --query-gpu=name,clocks.sm,memory.used,temperature.gpu --format=csv 2>/dev/null
  echo "piece $1 ($piece) ended with $code after $((SECONDS - started)) s" | tee -a "$HOPPER/logs/$piece.log"
  hand_back "$piece"
  return $code
}

questions=()
[ -d "$data" ] && questions=(--eval-data "$data")
case ${1:-} in
  carry) carry "${2:?a folder with parts}" ;;
  list)
    for number in "${!pieces[@]}"; do
      echo "$((number + 1)) ${pieces[$number]} $([ -e "$HOPPER/done/${pieces[$number]}" ] && echo done)"
    done
    ;;
  piece) "$2" ;;
  '')
    for number in "${!pieces[@]}"; do
      [ -e "$HOPPER/done/${pieces[$number]}" ] || { run_piece $((number + 1)); exit; }
    done
    echo "all pieces are done"
    ;;
  *)
    [ "$1" -ge 1 ] 2>/dev/null && [ "$1" -le ${#pieces[@]} ] || { sed -n '2,16p' "$self"; exit 2; }
    run_piece "$1"
    ;;
esac
