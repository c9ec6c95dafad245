"""The bytes of weights that are loaded."""

from __future__ import annotations

import json
from pathlib import Path

from pipeline.stages.check_weights import weights_size


def test_a_second_set_of_weights_that_is_not_loaded_does_not_count(tmp_path: Path) -> None:
    """Mistral's releases have a file of their form next to the shards."""
    names = [f"model-0000{number}-of-00002.safetensors" for number in (1, 2)]
    for name in (*names, "consolidated.safetensors"):
        (tmp_path / name).write_bytes(b"weights")
    weight_map = {f"{name}.weight": name for name in names}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    assert weights_size(tmp_path) == len(names) * len(b"weights")
