#!/usr/bin/env bash
# Waits for the servers and measures them in turn; then, with them idle, single matrix products. Seconds count from start.sh.
here=$(cd "$(dirname "$0")" && pwd)
. "$here/common.sh"
zero=$(cat "$H/began" 2>/dev/null || echo "$began")
loads_end=$((zero + ${TOTAL:-420}))
patience=$((zero + ${PATIENCE:-260}))
ready=()
while [ "$(date +%s)" -lt $patience ]; do
  ready=() waiting=
  for arm in "${ARMS[@]}"; do if up "$arm"; then ready+=("$arm=$(port "$arm")=$(cat "$H/server-$arm.pid")"); elif alive "$arm"; then waiting=yes; fi; done
  [ -z "$waiting" ] && break
  sleep 1
done
say "ready, as ARM=PORT=PID: ${ready[*]}"
for arm in "${ARMS[@]}"; do
  { echo "== $arm"; grep -hE "Using |backend|version|KV cache|took|Graph capturing|concurrency|WARNING|ERROR|Error" "$H/log/$arm.log" |
      sed 's/^([^)]*)//' | cut -c1-240 | awk '!seen[$0]++' | head -60; } >>"$OUT/facts.txt"
done
cut -c1-170 "$OUT/facts.txt" | grep -E "^==|Kernel|attention backend|KV cache size|took|Error" | head -40
if [ ${#ready[@]} -gt 0 ]; then
  timeout $((loads_end - $(date +%s) + 5)) env -u PYTHONPATH "$PYTHON" "$H/bin/load.py" "$OUT/loads.jsonl" --side "${ready[@]}" \
    --load ${LOADS:-64:256:128:3 1:256:128:4 256:256:128:2 256:256:128:2:whole} --rounds ${ROUNDS:-2} --words ${WORDS:-128000} \
    --until $loads_end >"$H/log/load.log" 2>&1
  "$PYTHON" "$H/bin/summary.py" "$OUT" 2>&1 | tee "$OUT/summary.txt"
fi
hand_back
timeout -k 5 75 env -u PYTHONPATH "$PYTHON" "$H/bin/gemm.py" "$OUT/gemm.json" 2>&1 | cut -c1-900 | tail -8
nvidia-smi --query-gpu=memory.used,clocks.sm,temperature.gpu,power.draw --format=csv,noheader 2>/dev/null
say "done"
[ ${#ready[@]} -gt 0 ]
