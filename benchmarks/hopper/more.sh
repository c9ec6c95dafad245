#!/usr/bin/env bash
# more.sh tune|fresh|curve|mmlu: what else can be had where time is left, with what is on the machine.
. "$(dirname "$0")/common.sh"
UNTIL=$((began + ${TOTAL:-570}))
case $1 in
  tune) launch tune tune "$(big)/ckpt/bf16" --profile "$W/kit/h100-once.yaml" --policy "$W/kit/large.yaml" ;;
  fresh) PROFILE=h100; launch fresh $(large) ;;  # as the profile is shipped: each load has a server of its own
  curve) launch curve model "$(big)/ckpt/bf16" --name large --recipe fp8-dynamic --recipe awq-w4a16 --profile "$PROFILE" --policy "$W/kit/curve.yaml" --no-promote ;;
  mmlu) sed 's/^    questions: 2000/    questions: 14042/' "$W/kit/whole.yaml" >"$W/kit/mmlu.yaml"
    launch mmlu model demo:smollm2-135m --profile "$PROFILE" --policy "$W/kit/mmlu.yaml" --eval-data "$W/data" --no-promote ;;
  wait) ;;
esac
for name in tune fresh curve mmlu; do [ -e "$W/run/$name.pid" ] && { await $name; show $name 40; }; done
hand_back
