"""The demo model's answers: how far FP8 is from BF16.

python3 quality.py score CHECKPOINT KV_DTYPE QUESTIONS.jsonl.gz OUT.json    log-probabilities of 4 answers a question
python3 quality.py compare BASELINE.json VARIANT.json ...
"""

import gzip
import json
import math
import os
import sys

QUESTIONS = int(os.environ.get("QUESTIONS", "1000"))


def read():
    with gzip.open(sys.argv[4], "rt") as f:
        return [json.loads(line) for line in f][:QUESTIONS]


def score() -> None:
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    from vllm import LLM, SamplingParams

    llm = LLM(
        sys.argv[2],
        kv_cache_dtype=sys.argv[3],
        generation_config="vllm",
        enforce_eager=True,
        max_model_len=2048,
        gpu_memory_utilization=0.1,
        kv_cache_memory_bytes=2 << 30,
        max_num_seqs=256,
    )
    tokenizer = llm.get_tokenizer()
    prompts, places = [], []
    for item in read():
        start = len(tokenizer(f"Question: {item['question'].strip()}\nAnswer:")["input_ids"])
        for choice in item["choices"]:
            ids = tokenizer(f"Question: {item['question'].strip()}\nAnswer: {choice.strip()}")["input_ids"][:1900]
            prompts.append({"prompt_token_ids": ids})
            places.append(min(start, len(ids) - 1))
    answers = llm.generate(prompts, SamplingParams(max_tokens=1, temperature=0, prompt_logprobs=1), use_tqdm=False)
    whole, ending = [], []
    for prompt, place, answer in zip(prompts, places, answers, strict=False):
        values = [answer.prompt_logprobs[at][token].logprob for at, token in enumerate(prompt["prompt_token_ids"]) if at]
        whole.append((sum(values), len(values)))
        ending.append((sum(values[place - 1 :]), max(1, len(values) - place + 1)))
    texts = llm.generate(
        [{"prompt_token_ids": p["prompt_token_ids"]} for p in prompts[:800:4]],
        SamplingParams(max_tokens=16, temperature=0, ignore_eos=True),
        use_tqdm=False,
    )
    with open(sys.argv[5], "w") as f:
        json.dump(
            {
                "whole": whole,
                "ending": ending,
                "right": [item["answer"] for item in read()],
                "texts": [list(t.outputs[0].token_ids) for t in texts],
            },
            f,
        )


def compare() -> None:
    files = [path for path in sys.argv[2:] if os.path.exists(path)]
    sides = {os.path.basename(path)[8:-5]: json.load(open(path)) for path in files}
    first = None
    for name, side in sides.items():
        loss = [-total / count for total, count in side["whole"]]
        picks = [
            max(range(4), key=lambda c: side["ending"][q * 4 + c][0] / side["ending"][q * 4 + c][1]) for q in range(len(side["right"]))
        ]
        right = [pick == answer for pick, answer in zip(picks, side["right"], strict=False)]
        tokens = sum(count for _, count in side["whole"])
        row = {
            "side": name,
            "questions": len(picks),
            "right_share": round(sum(right) / len(right), 4),
            "perplexity": round(math.exp(-sum(total for total, _ in side["whole"]) / tokens), 4),
            "tokens": tokens,
        }
        if first is None:
            first = (loss, picks, right, side)
        else:
            gaps = [a - b for a, b in zip(loss, first[0], strict=False)]
            mean = sum(gaps) / len(gaps)
            deviation = (sum((g - mean) ** 2 for g in gaps) / max(1, len(gaps) - 1)) ** 0.5
            row |= {
                "nats_a_token_more": round(mean, 5),
                "standard_error": round(deviation / len(gaps) ** 0.5, 5),
                "same_picks": round(sum(a == b for a, b in zip(picks, first[1], strict=False)) / len(picks), 4),
                "only_baseline_right": sum(b and not a for a, b in zip(right, first[2], strict=False)),
                "only_variant_right": sum(a and not b for a, b in zip(right, first[2], strict=False)),
                "same_first_16_tokens": round(
                    sum(a == b for a, b in zip(side["texts"], first[3]["texts"], strict=False)) / len(side["texts"]), 4
                ),
            }
        print(json.dumps(row))


if __name__ == "__main__":
    {"score": score, "compare": compare}[sys.argv[1]]()
