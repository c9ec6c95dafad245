"""A logits processor of vLLM for tests: it lowers the end token's logit, so answers get longer.

The difference is read from the file LONGER_ANSWERS whenever the batch of requests changes.
"""

import os
from pathlib import Path

from vllm.v1.sample.logits_processor import LogitsProcessor


class LongerAnswers(LogitsProcessor):  # type: ignore[misc]
    """All requests alike."""

    def __init__(self, vllm_config, device, is_pin_memory):  # type: ignore[no-untyped-def]
        self._end = vllm_config.model_config.hf_config.eos_token_id
        self._file = Path(os.environ["LONGER_ANSWERS"])
        self._lower = 0.0

    def is_argmax_invariant(self) -> bool:
        return False

    def update_state(self, batch_update):  # type: ignore[no-untyped-def]
        if batch_update is not None:
            self._lower = float(self._file.read_text())

    def apply(self, logits):  # type: ignore[no-untyped-def]
        logits[:, self._end] -= self._lower
        return logits
