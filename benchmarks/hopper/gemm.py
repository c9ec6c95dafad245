"""Times of one layer's matrix products in BF16 and FP8, by torch alone, and the GPU's roofs: gemm.py OUT.json, 25 s on an H100."""

import json
import sys

import torch

SHAPES = {"qkv": (6144, 4096), "o": (4096, 4096), "gate_up": (28672, 4096), "down": (4096, 14336)}
ROWS = (64, 1, 256, 2048, 16)  # what matters most first: it may be cut short
FP8 = torch.float8_e4m3fn
found: dict = {}


def quantize_rows(x):
    """One scale a row, as vLLM quantizes activations."""
    scale = x.abs().amax(1, keepdim=True).float() / torch.finfo(FP8).max
    return (x.float() / scale).clamp(-448, 448).to(FP8), scale


def microseconds(calls) -> float:
    """Median time of one of the calls, which use different buffers, replayed as a graph."""
    for call in calls[:2]:
        call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for call in calls:
            call()
    graph.replay()
    times = []
    for _ in range(7):
        first, last = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        first.record()
        graph.replay()
        last.record()
        last.synchronize()
        times.append(first.elapsed_time(last) * 1000 / len(calls))
    return sorted(times)[len(times) // 2]


def scaled(a, scale_a, weight, scale_b):
    return torch._scaled_mm(a, weight.t(), scale_a=scale_a, scale_b=scale_b, out_dtype=torch.bfloat16, use_fast_accum=True)


def roofs() -> None:
    source = torch.randn(1 << 29, device="cuda")
    target = torch.empty_like(source)
    found["copy_TB_per_s"] = 2 * source.numel() * 4 / microseconds([lambda: target.copy_(source)] * 4) / 1e6
    a, b = (torch.randn(8192, 8192, device="cuda").bfloat16() for _ in range(2))
    found["bf16_TFLOPS"] = 2 * 8192**3 / microseconds([lambda: torch.mm(a, b.t())] * 4) / 1e6
    (qa, sa), (qb, sb) = quantize_rows(a), quantize_rows(b)
    sb = sb.t().contiguous()
    found["fp8_TFLOPS"] = 2 * 8192**3 / microseconds([lambda: scaled(qa, sa, qb, sb)] * 4) / 1e6


def layer(m: int) -> dict:
    quantize = torch.compile(quantize_rows)
    us = {"bf16": 0.0, "fp8_gemm": 0.0, "fp8_quantize": 0.0}
    for n, k in SHAPES.values():
        copies = max(2, min(12, -(-200_000_000 // (n * k))))  # beyond the cache, at one byte a weight
        a = [torch.randn(m, k, device="cuda").bfloat16() for _ in range(copies)]
        weights = [torch.randn(n, k, device="cuda", dtype=torch.bfloat16) * 0.02 for _ in range(copies)]
        us["bf16"] += microseconds([lambda x=x, w=w: torch.mm(x, w.t()) for x, w in zip(a, weights, strict=True)])
        fp8 = [(w, s.t().contiguous()) for w, s in map(quantize_rows, weights)]
        qa = [quantize_rows(x) for x in a]
        us["fp8_gemm"] += microseconds([lambda x=x, s=s, w=w, t=t: scaled(x, s, w, t) for (x, s), (w, t) in zip(qa, fp8, strict=True)])
        us["fp8_quantize"] += microseconds([lambda x=x: quantize(x) for x in a])
    return us | {"fp8_ratio": us["bf16"] / (us["fp8_gemm"] + us["fp8_quantize"]), "fp8_gemm_ratio": us["bf16"] / us["fp8_gemm"]}


roofs()
for rows in ROWS:
    found.setdefault("layer_us", {})[rows] = {key: round(value, 3) for key, value in layer(rows).items()}
    with open(sys.argv[1], "w") as file:
        json.dump(found, file, indent=1)
print(json.dumps(found))
