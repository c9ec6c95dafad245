"""Lays out the stage `promote` from the records of what was judged.

`prepare model` comes here at its end, and `prepare promote` with a finished run's record.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from artifacts.deployable import Deployable
from artifacts.evidence.judged_variant import JudgedVariant
from artifacts.evidence.recompute import claims_of
from artifacts.registry.registry import who_am_i
from artifacts.run_record import RunReport, VariantReport
from pipeline.core.stage_key import stage_spec
from pipeline.core.stage_record import StageReference, StageSpec
from pipeline.core.store import Store
from pipeline.release.evidence import evidence_stage
from recipes.policy import Policy


@dataclass(frozen=True)
class Order:
    """What `prepare promote` is to do with a finished run.

    Args:
        registry: its URI.
        variant: the recipe to promote; None: what the policy prefers of those that passed.
        override: why a variant that did not pass is promoted all the same.
        name: in the registry; None: the run's.
        alias: that moves; None: the policy's.
        replaces: version that the alias must point to now; None: whichever it does.
    """

    registry: str
    variant: str | None = None
    override: str | None = None
    name: str | None = None
    alias: str | None = None
    replaces: str | None = None


def promotion_stage(
    run: RunReport,
    chosen: Sequence[VariantReport],
    order: Order,
    store: Store,
    *,
    runtime: dict[str, Any],
) -> StageSpec:
    """The stage that registers the chosen variants of a run, and moves the alias to one.

    Args:
        run: with the keys of its stages.
        chosen: variants that were judged.
        order: where to, and under which name.
        store: that has the stages.
        runtime: how the stage finds out what it replaces.

    Raises:
        EvidenceError: a stage of the run is gone from the store.
    """
    inputs: dict[str, StageReference] = {}
    candidates = []
    keys = claims_of(run).judges
    policy: dict[str, Any] = {}
    reasons: dict[str, str] = {}
    for variant in chosen:
        judged = JudgedVariant.found(store.find, keys[variant.recipe])
        policy = judged.judge.parameters["policy"]
        reasons[variant.recipe] = reason_of(judged, variant)
        inputs[f"weights.{variant.recipe}"] = evidence_stage(
            run, variant.recipe, store, override=order.override, name=order.name
        ).as_reference()
        inputs[f"judge.{variant.recipe}"] = StageReference(stage="judge", key=judged.judge.key)
        if variant.throughput is None:
            raise ValueError(f"{variant.recipe} was judged without a load test")
        candidates.append(
            {
                "recipe": variant.recipe,
                "weights_bytes": variant.weights_bytes,
                "throughput_ratio": variant.throughput.ratio,
                "verdict": variant.verdict,
                "trust_remote_code": judged.trust_remote_code,
                "deployable": Deployable.of_evidence(judged, store.find).members,
            }
        )
    aliases = Policy.model_validate(policy).promotion
    alias = order.alias or aliases.alias
    if run.checkpoint is None:
        raise ValueError("a run with a judged variant has a checkpoint")
    return stage_spec(
        "promote",
        "registry",
        {
            "policy": policy,
            "candidates": candidates,
            "name": order.name or run.registered_name or run.command["name"],
            "registry": order.registry,
            "alias": alias,
            "previous_alias": aliases.previous_alias if alias == aliases.alias else None,
            "override": order.override,
            "source": {
                "checkpoint": run.checkpoint.digest,
                "ref": run.checkpoint.ref,
                "revision": run.checkpoint.source.revision if run.checkpoint.source else "",
            },
        },
        inputs,
        {
            **runtime,
            **({"replaces": order.replaces} if order.replaces is not None else {}),
            "run": run.run,
            "who": who_am_i(),
            "reasons": reasons,
        },
        store.root,
    )


def reason_of(judged: JudgedVariant, variant: VariantReport) -> str:
    """Why it got its verdict; where all variants together changed that, the record says so."""
    own = judged.judge.result
    return str(own["reason"] if own["verdict"] == variant.verdict else variant.reason)
