"""Speculative decoding settings of a profile."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, StringConstraints, model_validator

from recipes.config_model import ConfigModel
from recipes.engines import find_engine

# Names of the engine, such as fp8_e4m3.
Word = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9_]{0,39}$")]
ACCEPTANCE_KEY = "speculative.rejection_sample_method"  # of a profile


class SpeculativeConfig(ConfigModel):
    """Settings of speculative decoding, in which the model verifies drafted tokens."""

    method: Word = Field(description="the engine's name of the method: ngram, draft_model")
    num_speculative_tokens: int = Field(ge=1, le=64, description="drafted tokens per step")
    model: str | None = Field(
        None,
        min_length=1,
        description="checkpoint of the draft model or head: a folder, a Hub id, a demo",
    )
    prompt_lookup_max: int | None = Field(
        None, ge=1, le=1_000, description="tokens of the longest n-gram to look up"
    )
    prompt_lookup_min: int | None = Field(
        None, ge=1, le=1_000, description="tokens of the shortest n-gram to look up"
    )
    rejection_sample_method: Word = Field(
        "standard", description="the engine's name of the rule that accepts drafted tokens"
    )
    draft_sample_method: Literal["greedy", "probabilistic"] = Field(
        "greedy", description="how a draft model samples its tokens"
    )
    synthetic_acceptance_length: float | None = Field(
        None, ge=1, le=65, description="tokens per step that 'synthetic' pretends to accept"
    )

    @model_validator(mode="after")
    def _n_grams_have_a_length(self) -> SpeculativeConfig:
        least = self.prompt_lookup_min
        most = self.prompt_lookup_max
        if least is not None and most is not None and least > most:
            raise ValueError(f"prompt_lookup_min is {least}, and prompt_lookup_max {most}")
        return self

    def check(self, accelerator: str, engine: str) -> None:
        """Raise ValueError unless the engine supports it there."""
        serving = find_engine(engine)
        rule_name = self.rejection_sample_method
        if reason := serving.refused_drafting.get(self.method):
            raise ValueError(f"a profile must not use method '{self.method}': {reason}")
        methods = {n: method for n, method in serving.drafting.items() if accelerator in method.on}
        rules = {n: rule for n, rule in serving.acceptance.items() if accelerator in rule.on}
        for name, key, known in (
            (self.method, "method", [*methods]),
            (rule_name, "rejection_sample_method", [*rules]),
        ):
            if name not in known:
                raise ValueError(
                    f"{engine} has no {key} '{name}' on {accelerator}: known are "
                    f"{', '.join(known) or 'none'}"
                )
        method = methods[self.method]
        rule = rules[rule_name]
        looked_up = (self.prompt_lookup_min, self.prompt_lookup_max) != (None, None)
        pretends = self.synthetic_acceptance_length is not None
        faults = {
            f"method '{self.method}' needs the key 'model'": method.wants_draft and not self.model,
            f"method '{self.method}' takes no 'model'": self.model and not method.wants_draft,
            f"prompt_lookup_min and _max are not for method '{self.method}'": looked_up
            and not method.looks_up,
            f"num_speculative_tokens is {self.num_speculative_tokens}, but rejection_sample_method "
            f"'{rule_name}' needs {rule.fewest}": self.num_speculative_tokens < rule.fewest,
            "synthetic_acceptance_length requires rejection_sample_method 'synthetic', and the "
            "reverse": pretends != bool(rule.unfit),
        }
        for fault, is_so in faults.items():
            if is_so:
                raise ValueError(fault)

    def unfit(self, engine: str) -> str:
        """Return why it must not be promoted."""
        return find_engine(engine).acceptance[self.rejection_sample_method].unfit

    def words(self, engine: str) -> str:
        """Return a description that notes lossy decoding."""
        by = f" by {self.model}" if self.model else ""
        rule = find_engine(engine).acceptance[self.rejection_sample_method]
        told = (
            f"{self.method}{by}, {self.num_speculative_tokens} tokens a step, accepted by "
            f"'{self.rejection_sample_method}'"
        )
        change = rule.lossy or rule.unfit
        return f"{told}, which is lossy: {change}" if change else told

    def to_dict(self) -> dict[str, Any]:
        """Return plain data without unset keys."""
        return self.model_dump(exclude_none=True)
