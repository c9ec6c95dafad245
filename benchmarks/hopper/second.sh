#!/usr/bin/env bash
# Call 2: brings the first part of the demo model; kills the command of call 1 once it has made its weights, and starts it again.
# The check of weights holds no GPU, so it goes on beside the demo.
here=$(cd "$(dirname "$0")" && pwd)
. "$here/common.sh"
UNTIL=$((began + ${TOTAL:-100}))
cp "$here"/gguf.part-* "$W/gguf/"
[ -e "$W/env/main/bin/prepare" ] || { say "call 1 was not on this machine"; exit 1; }
if await_sign large "quantize ran" && ! grep -q "check_weights ran" "$W/log/large.log"; then
  strike large "while weights are checked"
  launch large $(large)
  sleep 3
fi
show large 12
is_over large && say "large: exit $(cat "$W/run/large.code")"
hand_back
