#!/usr/bin/env bash
# Writes the checkpoints while vLLM is unpacked, then starts three servers, which outlive this script.
here=$(cd "$(dirname "$0")" && pwd)
. "$here/common.sh"
echo "$began" >"$H/began"
cp "$here"/*.py "$here"/*.sh "$here"/questions.jsonl.gz "$H/bin/" 2>/dev/null
{ nvidia-smi --query-gpu=name,driver_version,memory.total,memory.used,clocks.sm,clocks.max.sm,power.limit --format=csv,noheader
  echo "$(nproc) processors"; free -g | sed -n 2p; df -h /dev/shm /tmp | tail -2
  "$PYTHON" -m pip list 2>/dev/null | grep -iE "^(torch|triton|numpy|transformers|tokenizers|safetensors) "
} 2>&1 | tee "$OUT/machine.txt"
(tar xJf "$here/vllm.tar.xz" -C "$H/site" && "$PYTHON" "$here/imports.py" >"$H/log/unpack.log" 2>&1) &
unpacking=$!
# Weights in memory where there is room for the three: they are read at the rate of memory then.
[ "$(df -k --output=avail /dev/shm 2>/dev/null | tail -1)" -gt $((36 << 20)) ] && mkdir -p /dev/shm/h && echo /dev/shm/h >"$H/models"
timeout 110 env -u PYTHONPATH "$PYTHON" "$H/bin/checkpoints.py" random "${SHAPE:-8b}" "$(models)" >"$H/log/checkpoints.log" 2>&1
code=$?
say "checkpoints: exit $code, $(du -sh "$(models)" | cut -f1) in $(models)"
wait $unpacking && [ $code = 0 ] || { tail -4 "$H"/log/{unpack,checkpoints}.log; hand_back; exit 1; }
tail -1 "$H/log/unpack.log"
for arm in "${ARMS[@]}"; do launch "$arm"; done
say "servers started"
