# Sourced by the calls. All that is kept is in $H; $OUT gets what comes back.
export H=${H:-/tmp/h} OUT=${OUT:-/tmp/h/out} HOME=${HOME:-/root} PYTHON=${PYTHON:-python3}
mkdir -p "$H"/{site,log,bin,gguf,cache,ck} "$OUT"
OUT=$(cd "$OUT" && pwd)
began=$(date +%s)
say() { echo "[$(($(date +%s) - began)) s] $*"; }
export PYTHONPATH=$H/site PYTHONUNBUFFERED=1 TQDM_DISABLE=1 HF_HUB_OFFLINE=1 TRANSFORMERS_OFFLINE=1 VLLM_NO_USAGE_STATS=1 DO_NOT_TRACK=1
# No network there: nothing must ask for this machine's name or address.
export VLLM_HOST_IP=127.0.0.1 GLOO_SOCKET_IFNAME=lo NCCL_SOCKET_IFNAME=lo no_proxy=127.0.0.1,localhost
# As the profile h100: each of these compiles a kernel with nvcc at the start, or looks for FlashInfer.
export VLLM_USE_FLASHINFER_SAMPLER=0 VLLM_ALLREDUCE_USE_FLASHINFER=0 VLLM_USE_DEEP_GEMM=0 TRITON_CACHE_DIR=$H/cache/triton
ARMS=(bf16 fp8 w4a16)
port() { case $1 in bf16) echo 9101 ;; fp8) echo 9102 ;; w4a16) echo 9103 ;; esac; }
kv() { [ "$1" = bf16 ] && echo auto || echo fp8; }  # as the profile serves baseline and variants
models() { cat "$H/models" 2>/dev/null || echo "$H/ck"; }
up() { "$PYTHON" -ESc "import urllib.request; urllib.request.urlopen('http://127.0.0.1:$(port "$1")/health', timeout=3)" 2>/dev/null; }
alive() { kill -0 "$(cat "$H/server-$1.pid" 2>/dev/null || echo none)" 2>/dev/null; }
launch() { # ARM: a server in a process group of its own
  local memory=$((13 << 29))
  [ "$1" = bf16 ] && memory=$((13 << 30))  # 106,496 tokens each: 256 answers at once, and some over
  [ -n "${REHEARSE:-}" ] && memory=$((1 << 26))
  VLLM_CACHE_ROOT=$H/cache/$1 setsid "$PYTHON" -m vllm.entrypoints.openai.api_server --model "$(models)/$1" --served-model-name m \
    --host 127.0.0.1 --port "$(port "$1")" --kv-cache-dtype "$(kv "$1")" --kv-cache-memory-bytes $memory --gpu-memory-utilization 0.15 \
    --max-model-len 4096 --max-num-seqs 256 --generation-config vllm --uvicorn-log-level warning ${REHEARSE_ARGUMENTS:-} \
    >"$H/log/$1.log" 2>&1 </dev/null &
  echo $! >"$H/server-$1.pid"
}
stop_servers() {
  local arm sig
  for sig in TERM KILL; do
    for arm in "${ARMS[@]}"; do [ -s "$H/server-$arm.pid" ] && kill -$sig -- "-$(cat "$H/server-$arm.pid")" 2>/dev/null; done
    [ $sig = TERM ] && sleep 3
  done
  for arm in "${ARMS[@]}"; do rm -f "$H/server-$arm.pid"; done
  for _ in $(seq 15); do  # their memory is free a moment later
    [ "$(nvidia-smi --query-gpu=memory.used --format=csv,noheader,nounits 2>/dev/null || echo 0)" -lt 1500 ] && return 0
    sleep 1
  done
}
hand_back() {
  (cd "$H/log" && tar czf "$OUT/logs.tgz" ./*.log 2>/dev/null)
  say "in \$OUT: $(cd "$OUT" && ls | tr '\n' ' ')"
}
