"""Run in the serve environment: log-probabilities of prompts' tokens, of a checkpoint served.

`python prompt_scores.py CHECKPOINT TEXT` prints, as one line of JSON, those of the text's tokens
and, if the model takes images, of the likeliest answers to the text with a black and a white one.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

os.environ |= {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_NO_USAGE_STATS": "1"}


def main() -> None:
    from PIL import Image
    from vllm import LLM, SamplingParams

    engine = LLM(
        sys.argv[1],
        enforce_eager=True,
        max_model_len=256,
        limit_mm_per_prompt={"image": 1, "video": 0},
    )
    tokens = engine.get_tokenizer().encode(sys.argv[2])
    settings = SamplingParams(max_tokens=1, temperature=0, prompt_logprobs=0)
    (text,) = engine.generate([{"prompt_token_ids": tokens}], settings)
    scores = [
        each[token].logprob
        for each, token in zip(text.prompt_logprobs, tokens, strict=True)
        if each  # none of the first
    ]

    def answers(color: str) -> list[float]:
        part = {"type": "image_pil", "image_pil": Image.new("RGB", (56, 56), color)}
        content: list[Any] = [part, {"type": "text", "text": sys.argv[2]}]
        settings = SamplingParams(max_tokens=1, temperature=0, logprobs=5)
        (found,) = engine.chat([{"role": "user", "content": content}], settings, use_tqdm=False)
        return [each.logprob for each in found.outputs[0].logprobs[0].values()]

    found = {"text": scores}
    if "vision_config" in json.loads(Path(sys.argv[1], "config.json").read_text()):
        found |= {color: answers(color) for color in ("black", "white")}
    print("RESULT " + json.dumps(found))


if __name__ == "__main__":
    main()
