"""A checkpoint's tokenizer and chat template, as lm-eval uses them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prepare.errors import StageError
from recipes.checkpoints.same_tokens import check_same_tokens


@dataclass(frozen=True)
class Tokenizer:
    """A checkpoint's tokenizer."""

    tokenizer: Any  # of transformers
    template_arguments: Mapping[str, Any]

    @classmethod
    def load(cls, folder: str, template_arguments: Mapping[str, Any], *, trust: bool) -> Tokenizer:
        """Read the tokenizer; `trust` allows its code.

        StageError: the class reads it otherwise than its file says.
        """
        from transformers import AutoTokenizer

        tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=trust)
        check_same_tokens(tokenizer, Path(folder))
        return cls(tokenizer, template_arguments)

    def encode(self, text: str) -> list[int]:
        """Return token ids, without added special tokens."""
        ids: list[int] = self.tokenizer(
            text, add_special_tokens=False, return_attention_mask=False
        ).input_ids
        return ids

    def encode_pair(self, context: str, continuation: str) -> tuple[list[int], list[int]]:
        """Return both sides' tokens of the whole text.

        Spaces at the context's end belong to the continuation.
        """
        if not context:
            ids = self.encode(continuation)
            start = self.tokenizer.bos_token_id
            start = self.tokenizer.eos_token_id if start is None else start
            return ([start], ids) if start != ids[0] else (ids[:1], ids[1:])
        kept = context.rstrip()
        whole = self.encode(context + continuation)
        first = self.encode(kept)
        return first, whole[len(first) :]

    def render(self, messages: Sequence[Any], **settings: Any) -> str:
        """Return the prompt; StageError if the template refuses the messages."""
        from jinja2 import TemplateError

        try:
            prompt: str = self.tokenizer.apply_chat_template(
                list(messages),
                tokenize=False,
                **{"add_generation_prompt": True, **settings, **self.template_arguments},
            )
        except TemplateError as error:
            roles = ", ".join(dict.fromkeys(str(message.get("role")) for message in messages))
            raise StageError(
                f"the chat template refuses messages of {roles}: {error}"[:300],
                hint="take 'prompt_format: completion' for this suite, without 'guided' and "
                "'form: server', or another template",
            ) from error
        return prompt

    def special_ids(self, limit: int) -> dict[str, int]:
        """Return at most so many special tokens that are one id each."""
        read = {text: self.encode(text) for text in self.special_texts()[:limit]}
        return {text: ids[0] for text, ids in read.items() if len(ids) == 1}

    def special_texts(self) -> list[str]:
        """Return special tokens' texts; `all_special_tokens` lacks some."""
        added = getattr(self.tokenizer, "added_tokens_decoder", {}).values()
        texts = [*self.tokenizer.all_special_tokens, *(str(t) for t in added if t.special)]
        return list(dict.fromkeys(filter(None, texts)))
