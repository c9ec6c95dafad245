"""Settings of suites of decisions: what is asked, and a gate for each kind of decision."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from eval_gates.suites.chat_logs import SESSION
from recipes.config_model import ConfigModel, Tier
from recipes.generation import Form, TemplateArgument
from recipes.policy import EvalTask, Suite
from recipes.schema import Family

Rung = Annotated[int, Field(ge=1, le=128)]
DecisionKind = Literal["calls", "tool", "arguments", "talks", "declines", "helps"]
AS_LOGGED = "as logged"  # group of the turns with their own tools alone
ABOUT_CALLS: tuple[DecisionKind, ...] = ("calls", "tool", "arguments")


class DecisionsTask(EvalTask):
    """Sessions, and how much of each turn is written."""

    kind: Literal["decisions"] = "decisions"
    prompt_format: Form = "auto"
    cluster_by: str | None = Field(
        SESSION,
        min_length=1,
        description="a field of the lines that groups them; without one, each line is a session",
    )
    max_tokens: int = Field(64, ge=8, le=4_096, description="tokens that an arm writes at a turn")
    form: Literal["text", "server"] = Field(
        "text",
        description="text: calls are read from the text. server: by the server's tool-call parser "
        "(chat API), and from the text where it finds none",
    )
    ladder: list[Rung] = Field(
        [],
        max_length=8,
        description="numbers of tools with which a session's last turn is asked again: its own, "
        "then carried ones",
    )
    max_tools: int | None = Field(
        None, ge=1, le=10_000, description="sessions with more tools are left out"
    )
    chat_template_kwargs: dict[str, TemplateArgument] = Field({}, max_length=50)

    @model_validator(mode="after")
    def _is_grouped(self) -> DecisionsTask:
        if self.cluster_by is None:
            raise ValueError("turns of a session are not independent: 'cluster_by' cannot be null")
        if len(set(self.ladder)) < len(self.ladder):
            raise ValueError("a number of tools occurs twice in 'ladder'")
        return self


class KindGate(ConfigModel):
    """One-sided gate on one kind of decision."""

    margins: dict[Family, Annotated[float, Field(ge=1e-9, lt=1)]] = Field(
        min_length=1,
        description="largest acceptable loss by recipe family, as a share of the turns that it is "
        "about, averaged by session; 0.05 is five of a hundred",
    )
    tier: Tier = "supporting"
    sessions: float | None = Field(
        None,
        gt=0,
        le=1,
        description="share of the sessions that have such a turn, for `prepare plan` alone, where "
        "the log has no answers that show it; null: half of them",
    )
    tools: Rung | None = Field(
        None, description="of the ladder alone, at this number of tools; null: as logged alone"
    )

    @property
    def group(self) -> str:
        """Return the group of the turns that it counts."""
        return AS_LOGGED if self.tools is None else rung_group(self.tools)


class DecisionsPolicy(Suite):
    """Settings of the decision."""

    kinds: dict[DecisionKind, KindGate] = Field(
        default={}, description="by kind of decision, a separate gate"
    )
    at_most_tools: KindGate | None = Field(
        None, description="gate on all decisions, at the number of tools that it names"
    )

    @model_validator(mode="after")
    def _rungs_are_asked(self) -> DecisionsPolicy:
        gates = dict(gates_of(self))
        ladder = getattr(self, "ladder", [])
        for name, gate in gates.items():
            if gate.tools is not None and gate.tools not in ladder:
                raise ValueError(f"'{name}': {gate.tools} tools are not in 'ladder'")
        if self.at_most_tools is not None and self.at_most_tools.tools is None:
            raise ValueError("'at_most_tools' needs 'tools', a number of the ladder")
        if self.noise_floor_questions:
            raise ValueError(
                "'noise_floor_questions' is not needed: the baseline is asked twice anyway"
            )
        return self


def rung_group(tools: int) -> str:
    """Return the group of turns that are asked with so many tools."""
    return f"{tools} tools"


def gate_name(suite: str, kind: str, gate: KindGate) -> str:
    """Return a gate's name: of its kind, and of the number of tools."""
    at_tools = f"at {gate.tools} tools" if gate.tools is not None else ""
    return " ".join(filter(None, [suite, kind, at_tools]))


def gates_of(suite: EvalTask) -> list[tuple[str, KindGate]]:
    """Return a suite's own gates by kind of decision; '' is about all of them.

    A task alone has none: they decide, and change no answer.
    """
    if not isinstance(suite, DecisionsPolicy):
        return []
    gates: list[tuple[str, KindGate]] = list(suite.kinds.items())
    if suite.at_most_tools is not None:
        gates.append(("", suite.at_most_tools))
    return gates
