#!/usr/bin/env bash
# alone.sh [ARM ...]: each with all of the memory (start, KV tokens, kernels); then, with both of its parts here, the demo model's answers.
here=$(cd "$(dirname "$0")" && pwd)
. "$here/common.sh"
cp "$here"/gguf.part-* "$H/gguf/" 2>/dev/null
[ -e "$H/bin/solo.py" ] || { say "call 1 was not on this machine: nothing to measure"; exit 1; }
stop_servers
until=$((began + ${TOTAL:-230}))
limit() { local n=$((until - $(date +%s))); [ "$n" -gt "$1" ] && n=$1; [ "$n" -lt 10 ] && n=10; echo "$n"; }
# The demo model is made on the CPU's cores meanwhile.
[ -e "$H/gguf/gguf.part-01" ] && [ -e "$H/gguf/gguf.part-00" ] && (cat "$H"/gguf/gguf.part-* | gzip -dc >"$H/gguf/smol.gguf" &&
  CUDA_VISIBLE_DEVICES= timeout 100 "$PYTHON" "$H/bin/checkpoints.py" gguf "$H/gguf/smol.gguf" "$H/ck" >"$H/log/smol.log" 2>&1
  echo $? >"$H/smol-made") &
for arm in "$@"; do
  VLLM_CACHE_ROOT=$H/cache/$arm timeout -k 5 "$(limit 115)" "$PYTHON" "$H/bin/solo.py" "$(models)/$arm" "$(kv "$arm")" "$OUT/solo-$arm.json" >"$H/log/solo-$arm.log" 2>&1
  say "$arm alone: exit $?, $(head -c 400 "$OUT/solo-$arm.json" 2>/dev/null | tr '\n' ' ')"
done
wait
if [ "$(cat "$H/smol-made" 2>/dev/null)" = 0 ] && [ -e "$H/bin/questions.jsonl.gz" ]; then
  for kind in "bf16 auto" "fp8 fp8" "fp8 auto"; do
    set -- $kind
    VLLM_CACHE_ROOT=$H/cache/all timeout -k 5 "$(limit 90)" "$PYTHON" "$H/bin/quality.py" score "$H/ck/smol-$1" "$2" "$H/bin/questions.jsonl.gz" "$H/quality-$1-$2.json" >"$H/log/quality-$1-$2.log" 2>&1 &
  done
  wait
  "$PYTHON" "$H/bin/quality.py" compare "$H"/quality-bf16-auto.json "$H"/quality-fp8-fp8.json "$H"/quality-fp8-auto.json | tee "$OUT/quality.txt"
fi
hand_back
