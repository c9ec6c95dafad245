"""Speculative decoding, as a profile asks for it: what drafts tokens, and which are accepted."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, StringConstraints, model_validator

from recipes.config_model import ConfigModel
from recipes.engines import find_engine

# The engine's own names, such as fp8_e4m3.
Word = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9_]{0,39}$")]


class SpeculativeConfig(ConfigModel):
    """Tokens are drafted cheaply, and verified by the model several at a time."""

    method: Word = Field(description="what drafts, by the engine's own name: ngram, draft_model")
    num_speculative_tokens: int = Field(ge=1, le=64, description="drafted a step")
    model: str | None = Field(
        None,
        min_length=1,
        description="checkpoint of the model, or head, that drafts: a folder, a Hub id, a demo",
    )
    prompt_lookup_max: int | None = Field(
        None, ge=1, le=1_000, description="tokens of the longest n-gram that is looked up"
    )
    prompt_lookup_min: int | None = Field(
        None, ge=1, le=1_000, description="tokens of the shortest n-gram that is looked up"
    )
    rejection_sample_method: Word = Field(
        "standard", description="which drafted tokens are accepted, by the engine's own name"
    )
    draft_sample_method: Literal["greedy", "probabilistic"] = Field(
        "greedy", description="how a draft model draws its tokens"
    )
    synthetic_acceptance_length: float | None = Field(
        None, ge=1, le=65, description="tokens a step that 'synthetic' pretends to accept"
    )

    @model_validator(mode="after")
    def _n_grams_have_a_length(self) -> SpeculativeConfig:
        least, most = self.prompt_lookup_min, self.prompt_lookup_max
        if least is not None and most is not None and least > most:
            raise ValueError(f"prompt_lookup_min is {least}, and prompt_lookup_max {most}")
        return self

    def check(self, accelerator: str, engine: str) -> None:
        """See that the engine knows it on that kind of machine; raises ValueError, with the key."""
        serving = find_engine(engine)
        if reason := serving.refused_drafting.get(self.method):
            raise ValueError(f"method '{self.method}' is not for a profile: {reason}")
        methods = {n: each for n, each in serving.drafting.items() if accelerator in each.on}
        if self.method not in methods:
            raise ValueError(
                f"method '{self.method}' is none of those that {engine} has on {accelerator}: "
                f"{', '.join(methods) or 'it has none'}"
            )
        method = methods[self.method]
        if method.wants_draft != (self.model is not None):
            wanted = "wants the key 'model'" if method.wants_draft else "takes no 'model'"
            raise ValueError(f"method '{self.method}' {wanted}")
        looked_up = (self.prompt_lookup_min, self.prompt_lookup_max) != (None, None)
        if looked_up and not method.looks_up:
            raise ValueError(f"prompt_lookup_min and _max are not for method '{self.method}'")
        rules = {n: each for n, each in serving.acceptance.items() if accelerator in each.on}
        if self.rejection_sample_method not in rules:
            raise ValueError(
                f"rejection_sample_method '{self.rejection_sample_method}' is none of those that "
                f"{engine} has on {accelerator}: {', '.join(rules)}"
            )
        fewest = rules[self.rejection_sample_method].fewest
        if self.num_speculative_tokens < fewest:
            raise ValueError(
                f"num_speculative_tokens is {self.num_speculative_tokens}, and "
                f"rejection_sample_method '{self.rejection_sample_method}' needs {fewest}"
            )
        pretends = bool(rules[self.rejection_sample_method].unfit)
        if pretends != (self.synthetic_acceptance_length is not None):
            raise ValueError(
                "synthetic_acceptance_length goes with rejection_sample_method 'synthetic', and "
                "with no other"
            )

    def unfit(self, engine: str) -> str:
        """Why nothing that is served so may be promoted, in words; '' where it may."""
        return find_engine(engine).acceptance[self.rejection_sample_method].unfit

    def words(self, engine: str) -> str:
        """How it is served, and whether answers are still the model's own; for people."""
        by = f" by {self.model}" if self.model else ""
        rule = find_engine(engine).acceptance[self.rejection_sample_method]
        told = (
            f"{self.method}{by}, {self.num_speculative_tokens} tokens a step, accepted by "
            f"'{self.rejection_sample_method}'"
        )
        change = rule.lossy or rule.unfit
        return f"{told}, which is lossy: {change}" if change else told

    def to_dict(self) -> dict[str, Any]:
        """Plain data, without the keys that say nothing."""
        return self.model_dump(exclude_none=True)
