"""A tokenizer of words, in the place of a checkpoint's."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any


class WordTokenizer:
    """Each word with the space before it, and each other character, is a token."""

    bos_token_id, eos_token_id = 0, 0
    all_special_tokens = ("</s>",)

    def __init__(self) -> None:
        self.ids: dict[str, int] = {"</s>": 0}

    def __call__(self, text: str, **settings: Any) -> SimpleNamespace:
        words = re.findall(r"</s>| ?\w+|\W", text)
        return SimpleNamespace(input_ids=[self.ids.setdefault(w, len(self.ids)) for w in words])

    def decode(self, ids: list[int]) -> str:
        words = {number: word for word, number in self.ids.items()}
        return "".join(words[number] for number in ids)

    def apply_chat_template(
        self, messages: list[dict[str, str]], *, add_generation_prompt: bool = True, **rest: Any
    ) -> str:
        turns = "".join(f"<{each['role']}>{each['content']}" for each in messages)
        return f"{turns}<assistant>" if add_generation_prompt else turns
