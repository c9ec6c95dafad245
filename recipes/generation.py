"""Settings of generated answers."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from recipes.config_model import ConfigModel

Form = Annotated[
    Literal["auto", "completion", "chat"],
    Field(
        description="chat: use the chat template. completion: plain text to continue. auto: chat "
        "if the tokenizer has a template, otherwise completion"
    ),
]
TemplateArgument = (
    bool | Annotated[int, Field(ge=-(2**31), le=2**31)] | Annotated[float, Field(ge=-1e9, le=1e9)]
) | Annotated[str, Field(max_length=1_000)]
MaxTokens = Annotated[int, Field(ge=1, le=1_000_000)] | Literal["model"]


class Sampling(ConfigModel):
    """Distribution that answers are drawn from; the defaults change nothing."""

    temperature: float = Field(1.0, ge=0.01, le=10)
    top_p: float = Field(1.0, ge=1e-6, le=1)
    top_k: int = Field(0, ge=0, le=10_000_000, description="0: all tokens")
    min_p: float = Field(0.0, ge=0, le=1)
    repetition_penalty: float = Field(1.0, ge=0.01, le=10)
    presence_penalty: float = Field(0.0, ge=-2, le=2)


class ThoughtMarkers(ConfigModel):
    """Texts around a model's thoughts."""

    start: str = Field(min_length=1, max_length=100)
    end: str = Field(min_length=1, max_length=100)
    keep: bool = Field(False, description="thoughts stay in the answer that is scored")


# Those of vLLM's reasoning parsers, and of models that vLLM serves without one.
THOUGHT_MARKERS = tuple(
    ThoughtMarkers(start=start, end=end)
    for start, end in (
        ("<|channel|>analysis<|message|>", "<|channel|>final<|message|>"),
        ("<|START_THINKING|>", "<|END_THINKING|>"),
        ("[THINK]", "[/THINK]"),
        ("<seed:think>", "</seed:think>"),
        ("<mm:think>", "</mm:think>"),
        ("<|inner_prefix|>", "<|inner_suffix|>"),
        ("<|channel>thought", "<channel|>"),
        ("<think>", "</think>"),
        ("<thinking>", "</thinking>"),
        ("<thought>", "</thought>"),
        ("\u25c1think\u25b7", "\u25c1/think\u25b7"),
    )
)

Thinking = Literal["remove", "keep"] | ThoughtMarkers | None


class Generation(ConfigModel):
    """Settings of generated answers."""

    prompt_format: Form = "auto"
    max_tokens: MaxTokens | None = Field(
        None,
        description="largest number of tokens of one answer, thoughts included. model: what the "
        "prompt leaves of the model's length",
    )
    samples: int = Field(1, ge=1, le=1_000, description="answers drawn for each question")
    sampling: Literal["greedy", "model"] | Sampling = Field(
        "greedy",
        description="greedy: the most likely token. model: as the checkpoint's "
        "generation_config.json says",
    )
    chat_template_kwargs: dict[str, TemplateArgument] = Field(
        {}, max_length=50, description="arguments of the chat template, such as enable_thinking"
    )
    thinking: Thinking = Field(
        None,
        description="the model thinks before it answers. remove: score the answer without its "
        "thoughts, by the template's own markers. keep: score the whole text. An answer that was "
        "cut off, or whose thoughts have no end, then scores 0",
    )
