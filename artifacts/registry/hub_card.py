"""The card on a model repository's main branch, which lists the versions and has no weights."""

from __future__ import annotations

from pathlib import Path

from pipeline.checkpoint.source_info import front_matter

# By it `prepare registry list` knows the models that it keeps among all of a namespace.
MODEL_TAG = "prepare"
CARRIED_OVER = (
    "license",
    "license_name",
    "license_link",
    "base_model",
    "base_model_relation",
    "pipeline_tag",
)


def main_card(namespace: str, name: str, folder: Path) -> str:
    """Return README.md of `main`, with the license and base model of the first version."""
    import yaml

    card = front_matter(folder / "README.md")
    facts = {key: card[key] for key in CARRIED_OVER if key in card} | {"tags": [MODEL_TAG]}
    matter = yaml.safe_dump(facts, sort_keys=False, allow_unicode=True)
    return f"""---
{matter}---
# {name}

This branch holds no weights. Every version has a tag (`v1`, `v2` and so on), with its own card
and the evidence of its gates. Aliases are tags that move: `champion` is the version to deploy,
`previous` the one before it.

```
vllm serve {namespace}/{name} --revision champion
```

```python
AutoModelForCausalLM.from_pretrained("{namespace}/{name}", revision="champion")
```

Who moved which alias when, and why, is in `registry.json` on the branch `prepare-history`.
Moved by `prepare promote` and `prepare rollback`; a tag that is moved by hand is noted as such.
"""
