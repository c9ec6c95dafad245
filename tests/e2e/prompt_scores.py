"""Run in the serve environment: log-probabilities of a prompt's tokens, of a checkpoint served.

`python prompt_scores.py CHECKPOINT` prints them as one line of JSON. No images are allowed, since
the tiny models have no settings of an image processor.
"""

from __future__ import annotations

import json
import os
import sys

os.environ |= {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_NO_USAGE_STATS": "1"}


def main() -> None:
    from vllm import LLM, SamplingParams

    engine = LLM(
        sys.argv[1],
        enforce_eager=True,
        max_model_len=256,
        limit_mm_per_prompt={"image": 0, "video": 0},
    )
    settings = SamplingParams(max_tokens=1, temperature=0, prompt_logprobs=0)
    tokens = list(range(1, 65))
    answer = engine.generate([{"prompt_token_ids": tokens}], settings)[0]
    scores = [
        at[token].logprob for at, token in zip(answer.prompt_logprobs, tokens, strict=True) if at
    ]
    print("RESULT " + json.dumps(scores))


if __name__ == "__main__":
    main()
