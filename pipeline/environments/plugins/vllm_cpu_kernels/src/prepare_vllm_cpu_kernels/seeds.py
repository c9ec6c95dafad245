"""Seeded sampling while a prompt is still being read, which ends vLLM 0.32's engine on a CPU.

vLLM samples a token for each chunk of a prompt, drops all but the last, and takes the draw back by
the generator's offset. A CPU's generator has no offset. Here such a row draws nothing instead.
"""

from __future__ import annotations

from typing import Any


def allow_seeded_chunks() -> None:
    """Keep generators of unfinished prompts away from sampling and from vLLM's correction."""
    from vllm.v1.worker.cpu_model_runner import CPUModelRunner

    sample = CPUModelRunner._sample
    keep_books = CPUModelRunner._bookkeeping_sync

    def sample_without_them(self: Any, *args: Any, **kwargs: Any) -> Any:
        generators = self.input_batch.generators
        unfinished = self.discard_request_mask.np[: self.input_batch.num_reqs].nonzero()[0]
        self._unused_generators = {
            int(row): generators.pop(int(row)) for row in unfinished if int(row) in generators
        }
        return sample(self, *args, **kwargs)

    def keep_books_without_them(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = keep_books(self, *args, **kwargs)
        self.input_batch.generators.update(self._unused_generators)
        return result

    CPUModelRunner._sample = sample_without_them
    CPUModelRunner._bookkeeping_sync = keep_books_without_them
