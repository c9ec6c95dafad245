#!/usr/bin/env bash
# What this project claims of a GPU and has not measured, in pieces of at most 5 minutes; all in 30.
#
#   benchmarks/hopper/run.sh carry FOLDER   takes parts made by pack.sh; installs what is whole
#   benchmarks/hopper/run.sh                all pieces that are not done, in order, while $TOTAL lasts
#   benchmarks/hopper/run.sh N              piece N, whether or not it is done
#   benchmarks/hopper/run.sh --rehearse [N] the same pieces on a CPU, with tiny shapes
#   benchmarks/hopper/run.sh list           the pieces, and which are done
#
# Variables: HOPPER (folder for all that is kept, default /tmp/hopper), OUT (where a piece's JSON and
# logs are copied), GPU (profile and kind for `prepare plan`; default: read from nvidia-smi), LIMIT
# (seconds a piece, 290), TOTAL (seconds of one call, 570),
# PYTHON (of the rehearsal: the project's own interpreter, default .venv/bin/python).
set -uo pipefail
self=$(realpath "$0")
cd "$(dirname "$self")/../.."
here=benchmarks/hopper
if [ "${1:-}" = --rehearse ]; then
  shift
  export REHEARSE=1
fi
export HOPPER=${HOPPER:-/tmp/hopper} LIMIT=${LIMIT:-290} TQDM_DISABLE=1  # its bars fill a log
export PREPARE_STORE=$HOPPER/store
mkdir -p "$HOPPER"/{parts,done,results,logs,models,work}

kind_of_gpu() {
  case $(nvidia-smi --query-gpu=name --format=csv,noheader 2>/dev/null | head -1) in
    *H200*) echo h200 ;;
    *H100*PCIe*) echo h100-pcie ;;
    *H100*NVL*) echo h100-nvl ;;
    *) echo h100 ;;
  esac
}

# Loads are CONCURRENCY:INPUT:OUTPUT:WAVES. Three servers share the GPU, each with a KV cache for
# 98,304 tokens, which is 256 answers at once; the share itself only has to be free at the start.
export GPU=${GPU:-$(kind_of_gpu)}
if [ -n "${REHEARSE:-}" ]; then
  profile=cpu shape=tiny python=${PYTHON:-$PWD/.venv/bin/python}
  loads=(4:16:8:4 1:16:8:4 8:16:8:4) long=(2:512:8:4)
  kv16=max-model-len=2048 kv8=max-model-len=2048
else
  profile=${GPU%%-*} shape=8b python=$HOPPER/env/prepare/bin/python
  export PREPARE_SETTINGS=$HOPPER/settings.yaml HF_HUB_OFFLINE=1
  export UV_NO_INDEX=1 UV_FIND_LINKS=$HOPPER/demo/wheels
  loads=(64:256:128:3 1:256:128:8 256:256:128:3) long=(16:4096:64:3)
  shared=max-model-len=8192,max-num-seqs=256,gpu-memory-utilization=0.3,kv-cache-memory-bytes
  kv16=$shared=$((12 << 30)) kv8=$shared=$((6 << 30))
fi
pieces=(machine fp8 compare long starts w4a16 demo)

measure() { # NAME COMMAND...: JSON to results/NAME.json
  local name=$1
  shift
  "$python" $here/measure.py --profile $profile --out "$HOPPER/results/$name.json" "$@" >/dev/null
}

make() { # KIND...: checkpoints with random weights, in $HOPPER/models
  local kind
  for kind in "$@"; do
    [ -d "$HOPPER/models/$kind" ] || measure "make-$kind" make "$kind" $shape "$HOPPER/models/$kind" || return
  done
}

# Until: as long before the limit as servers take to stop.
speed() { # NAME LOAD... -- SIDE...
  local name=$1 of=()
  shift
  while [ "$1" != -- ]; do of+=("$1"); shift; done
  shift
  measure "$name" speed "$@" --work "$HOPPER/work/$name" --load "${of[@]}" --until "$ends"
}

# --- the environment ------------------------------------------------------------------------------

carry() {
  cp "$1"/* "$HOPPER/parts/" || return
  local bundle
  for bundle in prepare serve demo; do
    [ -e "$HOPPER/parts/$bundle.sums" ] && [ ! -e "$HOPPER/done/carried-$bundle" ] || continue
    if (cd "$HOPPER/parts" && sha256sum --quiet -c $bundle.sums 2>/dev/null); then
      install_bundle $bundle && touch "$HOPPER/done/carried-$bundle" || return
    else
      echo "$bundle: more parts are to come"
    fi
  done
}

install_bundle() {
  local host site name
  (cd "$HOPPER" && cat parts/"$1".part-* | tar x && rm parts/"$1".part-*) || return
  host=$(python3 -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
  for name in prepare serve quantize evaluate; do
    [ -d "$HOPPER/$name/wheels" ] || continue
    # What the machine has serves; what was carried comes before it. A name of its own for each, since
    # their packages do not agree. Without pip: the machine's own installs into it.
    python3 -m venv --without-pip "$HOPPER/env/$name" || return
    site=$("$HOPPER/env/$name/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
    python3 -m pip install -q --no-index --no-deps --no-compile --no-cache-dir --upgrade \
      --target "$site" "$HOPPER/$name"/wheels/*.whl || return
    echo "import site; site.addsitedir('$host')" >"$site/zz_host.pth"
    [ $name != prepare ] || pwd >"$site/project.pth"
    [ $name != serve ] || adapt_engine
    rm -rf "${HOPPER:?}/$name"
    [ $name = prepare ] || echo "  $name: {python: $HOPPER/env/$name/bin/python}" >>"$HOPPER/environments"
  done
  { echo "home: $HOPPER/home"; echo "environments:"; cat "$HOPPER/environments" 2>/dev/null; } >"$HOPPER/settings.yaml"
  [ -e "$HOPPER/environments" ] || echo "home: $HOPPER/home" >"$HOPPER/settings.yaml"
  echo "installed $1: $(du -sh "$HOPPER/env" | cut -f1)"
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
  measure machine machine && "$python" -P -m pipeline.cli.main env doctor --profile $profile --json \
    >"$HOPPER/results/doctor.json"
  cat "$HOPPER/results/doctor.json"
}

# FP8 alone, served as the profile has it: the first figures.
fp8() { make fp8 && speed fp8 "${loads[@]}" -- "fp8=$HOPPER/models/fp8"; }

# FP8 against BF16, and what of the difference is the weights'.
sides() {
  echo "bf16=$HOPPER/models/bf16,kv=auto,$kv16" "fp8-kv16=$HOPPER/models/fp8,kv=auto,$kv16" \
    "fp8=$HOPPER/models/fp8,$kv8"
}
compare() { make bf16 fp8 && speed compare "${loads[@]}" -- $(sides); }
long() { make bf16 fp8 && speed long "${long[@]}" -- $(sides); }

# Each alone with the profile's arguments, beside the plan.
starts() {
  make bf16 fp8 &&
    measure starts starts "fp8=$HOPPER/models/fp8" "bf16=$HOPPER/models/bf16,kv=auto" \
      --work "$HOPPER/work/starts" --gpu "$GPU"
}

w4a16() {
  make bf16 w4a16 && speed w4a16 "${loads[@]}" -- "bf16=$HOPPER/models/bf16,kv=auto,$kv16" \
    "w4a16=$HOPPER/models/w4a16,kv=auto,$kv16"
}

# Made on the GPU, gated on answers alone, promoted, judged again.
demo() {
  sed '/^speed:/,/^promotion:/{/^promotion:/!d;}' recipes/policies/demo.yaml >"$HOPPER/demo.yaml"
  "$python" -P -m pipeline.cli.main model demo:smollm2-135m --profile $profile --policy "$HOPPER/demo.yaml" \
    --name hopper-demo --recipe fp8-dynamic --json >"$HOPPER/results/demo.json"
  # A variant that fails its gates is a result; anything else is not.
  case $? in 0 | 4 | 5) ;; *) return 1 ;; esac
  "$python" -P -m pipeline.cli.main verify --json >"$HOPPER/results/verify.json"
}

# --- one piece ------------------------------------------------------------------------------------

hand_back() { # what comes back: two small files
  [ -n "${OUT:-}" ] || return 0
  mkdir -p "$OUT"
  tar cz -C "$HOPPER" results logs done work $(cd "$HOPPER" && ls -d store/runs 2>/dev/null) >"$OUT/hopper.tgz"
  cp "$HOPPER/logs/$1.log" "$OUT/$1.log"
}

run_piece() { # NUMBER [SECONDS]
  local piece=${pieces[$(($1 - 1))]} started=$SECONDS limit=${2:-$LIMIT} code
  echo "piece $1 of ${#pieces[@]}: $piece, at most $limit s"
  ends=$(($(date +%s) + limit - 20)) timeout -k 25 "$limit" "$self" piece "$piece" \
    > >(tee -a "$HOPPER/logs/$piece.log") 2>&1
  code=$?
  [ $code = 0 ] && touch "$HOPPER/done/$piece"
  nvidia-smi --query-gpu=name,clocks.sm,memory.used,temperature.gpu --format=csv 2>/dev/null
  echo "piece $1 ($piece) ended with $code after $((SECONDS - started)) s" | tee -a "$HOPPER/logs/$piece.log"
  hand_back "$piece"
  return $code
}

case ${1:-} in
  carry) carry "${2:?a folder with parts}" ;;
  list)
    for number in "${!pieces[@]}"; do
      echo "$((number + 1)) ${pieces[$number]} $([ -e "$HOPPER/done/${pieces[$number]}" ] && echo done)"
    done
    ;;
  piece) "$2" ;;
  '')
    # A piece that fails does not keep the next from its turn.
    for number in "${!pieces[@]}"; do
      left=$((${TOTAL:-570} - SECONDS))
      [ $left -ge 60 ] || break
      [ -e "$HOPPER/done/${pieces[$number]}" ] || run_piece $((number + 1)) $((left < LIMIT ? left : LIMIT))
    done
    ;;
  *)
    [ "$1" -ge 1 ] 2>/dev/null && [ "$1" -le ${#pieces[@]} ] || { sed -n '2,14p' "$self"; exit 2; }
    run_piece "$1"
    ;;
esac
