#!/usr/bin/env bash
# Runs `make demo`'s command while other processes keep the CPUs busy, and prints times and exit codes.
#
#   scripts/demo-under-load.sh 1 2 4            # beside 1, 2 and 4 busy processes, each in a new store
#   scripts/demo-under-load.sh --again 3 2      # three times beside 2
#   scripts/demo-under-load.sh --from STORE 4   # in a copy of STORE without what was measured under load
#   PREPARE_CPU_FEATURES=avx2 scripts/demo-under-load.sh 2
#
# The busy processes run at nice 0. It exits with 1 where a run did not exit with 0.
set -euo pipefail
cd "$(dirname "$0")/.."

again=1 from="" counts=()
while [ $# -gt 0 ]; do
  case $1 in
    --again) again=$2; shift 2 ;;
    --from) from=$2; shift 2 ;;
    *) counts+=("$1"); shift ;;
  esac
done
[ ${#counts[@]} -gt 0 ] || counts=(1 2 4)

folder=$(mktemp -d) busy=() failed=0
stop_busy() { [ ${#busy[@]} -eq 0 ] || kill "${busy[@]}" 2>/dev/null || true; busy=(); }
trap 'stop_busy; rm -rf "$folder"' EXIT

for count in "${counts[@]}"; do
  for number in $(seq "$again"); do
    store=$folder/store
    rm -rf "$store"
    if [ -n "$from" ]; then
      cp -a "$from" "$store"
      rm -rf "$store"/stages/{speed,judge,evidence,promote} "$store"/{attempts,measurements,registry}
    fi
    for _ in $(seq "$count"); do
      .venv/bin/python -c 'while True: pass' &
      busy+=($!)
    done
    begin=$SECONDS code=0
    .venv/bin/prepare model demo:smollm2-135m --profile cpu --store "$store" \
      >"$folder/out" 2>"$folder/err" </dev/null || code=$?
    stop_busy
    [ "$code" -eq 0 ] || { failed=1; tail -n 40 "$folder/out"; tail -n 20 "$folder/err"; }
    grep -h "speed ratio" "$folder/out" "$folder/err" || true
    printf 'busy processes %s, run %s, CPU features %s: exit %s after %s s\n' \
      "$count" "$number" "${PREPARE_CPU_FEATURES:-all}" "$code" $((SECONDS - begin))
  done
done
exit "$failed"
