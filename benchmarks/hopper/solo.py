"""One format alone, as the profile serves it: seconds of the start, KV tokens, and the CUDA kernels of prefill and decode.

python3 solo.py CHECKPOINT KV_DTYPE OUT.json
"""

import json
import os
import random
import sys
import time

os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"  # so that the profiler sees the engine
began = time.time()


def main() -> None:
    import torch
    from vllm import LLM, SamplingParams

    imported = time.time()
    free, total = torch.cuda.mem_get_info()
    llm = LLM(
        sys.argv[1],
        kv_cache_dtype=sys.argv[2],
        generation_config="vllm",
        max_model_len=131072,
    )
    ready = time.time()
    config = llm.llm_engine.vllm_config
    cache = config.cache_config
    found = {
        "import_s": round(imported - began, 1),
        "start_s": round(ready - imported, 1),
        "kv_dtype": cache.cache_dtype,
        "kv_tokens": (cache.num_gpu_blocks or 0) * cache.block_size,
        "block_size": cache.block_size,
        "gpu_memory_utilization": cache.gpu_memory_utilization,
        "free_before": free,
        "total": total,
        "max_num_seqs": config.scheduler_config.max_num_seqs,
        "max_num_batched_tokens": config.scheduler_config.max_num_batched_tokens,
    }
    write(found)
    chance = random.Random(1)
    prompts = [{"prompt_token_ids": [chance.randrange(10, 100000) for _ in range(256)]} for _ in range(64)]
    parameters = SamplingParams(max_tokens=32, ignore_eos=True, temperature=0)
    llm.generate(prompts, parameters, use_tqdm=False)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        llm.generate(prompts, parameters, use_tqdm=False)
    rows = sorted(profile.key_averages(), key=lambda row: -row.self_device_time_total)
    whole = sum(row.self_device_time_total for row in rows) or 1
    found["kernels"] = [
        {"share": round(row.self_device_time_total / whole, 4), "calls": row.count, "name": row.key[:400]} for row in rows[:30]
    ]
    write(found)


def write(found) -> None:
    with open(sys.argv[3], "w") as f:
        json.dump(found, f, indent=1)


if __name__ == "__main__":
    main()
