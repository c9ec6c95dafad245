"""A run's outcome for terminal, report and CI."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

from rich.filesize import decimal

from artifacts.requests import GateRequest, without_password
from artifacts.run_record import ResolvedOptions, RunReport, ScreenedModel, VariantReport
from eval_gates.gate_result import passed_on
from prepare.errors import ExitCode, from_dict
from prepare.own_command import own_command

RunVerdict = Literal["pass", "fail", "undecided", "error", "interrupted"]
VERDICTS: dict[int, RunVerdict] = {
    ExitCode.SUCCESS: "pass",
    ExitCode.EXPECTED_ERROR: "error",
    ExitCode.USAGE: "error",
    ExitCode.UNEXPECTED: "error",
    ExitCode.GATES_FAILED: "fail",
    ExitCode.UNDECIDED: "undecided",
    ExitCode.INTERRUPTED: "interrupted",
}


def verdict_of(report: RunReport) -> RunVerdict:
    """Return the exit code's verdict; ValueError for an unfinished run."""
    if report.exit_code is None:
        raise ValueError(f"the run {report.run} has not ended")
    return VERDICTS.get(report.exit_code, "error")


def serving_lines(options: ResolvedOptions) -> list[str]:
    """Return notes on how the variants were served."""
    lines = [f"CPU override {name}: {why}" for name, why in options.cpu_overrides.items()]
    gpus = options.gpus_a_copy or 1
    noted = {
        "GPUs": f"{gpus} a copy (--gpus-a-copy)" if gpus > 1 else "",
        "KV cache": options.kv_cache_note,
        "speculative decoding": options.speculation,
        "both endpoints asked": options.asked_by,
    }
    return lines + [f"{words}: {note}" for words, note in noted.items() if note]


def side_lines(report: RunReport) -> list[str]:
    """Return notes on a quantized baseline, on serving, and on speculative decoding."""
    source = report.checkpoint
    lines = serving_lines(report.resolved)
    if source is not None and source.quantized:
        lines = [f"the baseline is as released: verdicts are against {source.as_baseline}", *lines]
    drafted = (variant for variant in report.variants if variant.spec_decode)
    return [
        *lines,
        *(
            f"{variant.recipe}, speculative decoding: "
            + "; ".join(f"{name}: {stats.words}" for name, stats in variant.spec_decode.items())
            for variant in drafted
        ),
    ]


SCREENED = "screened: nothing was gated"


def screened_rows(screened: Sequence[ScreenedModel]) -> list[dict[str, str]]:
    """Return a row per arm, the smallest first, and those of `--ablate` last."""
    variants = [arm for arm in screened[1:] if not arm.is_part]
    rows = []
    for arm in sorted(screened, key=lambda arm: (arm.is_part, arm.weights_bytes or math.inf)):
        is_beaten = any(arm.is_beaten_by(other) for other in variants)
        place = "front" if arm in variants and arm.effect and not is_beaten else ""
        cells = arm.effect.cells if arm.effect else {}
        rate = arm.output_tokens_per_s
        rows.append(
            {
                "variant": arm.name,
                "weights": decimal(arm.weights_bytes) if arm.weights_bytes else "",
                "KV cache": arm.cache.get("kv_cache", ""),
                "bytes a token": arm.cache.get("kv_bytes_a_token", ""),
                "KV tokens": arm.cache.get("kv_cache_tokens", ""),
                "tokens kept": cells.get("score", ""),
                "lost, points": cells.get("difference, points", ""),
                "nats a token lost": cells.get("nats a token lost", ""),
                "output tokens/s": "" if rate is None else f"{rate:,.1f}",
                "": place or arm.reason,
            }
        )
    empty = {head for head in rows[0] if not any(row[head] for row in rows)}
    return [{head: row[head] for head in row if head not in empty} for row in rows]


def champion_of(report: RunReport) -> VariantReport | None:
    """Return the variant that got the alias, if any."""
    return next((variant for variant in report.variants if variant.promoted), None)


def list_passed(report: RunReport) -> list[str]:
    """Return the recipes that passed."""
    return [variant.recipe for variant in report.variants if variant.verdict == "pass"]


def outcome(report: RunReport) -> str:
    """Return one word."""
    if champion_of(report) is not None:
        return "promoted"
    if report.screened and report.exit_code == ExitCode.SUCCESS:
        return "screened"
    return report.status if report.exit_code is None else verdict_of(report)


def verdict_word(variant: VariantReport) -> str:
    """Return one word."""
    return "promoted" if variant.promoted else variant.verdict


def headline(report: RunReport) -> str:
    """Return one sentence."""
    champion = champion_of(report)
    if champion is not None:
        named = f"{report.registered_name} version {champion.registry_version}"
        if champion.not_shown:
            return (
                f"{champion.recipe} passed on {passed_on(champion.gates)} and was promoted as "
                f"{named}; {champion.not_shown}"
            )
        return f"{champion.recipe} passed and was promoted as {named}"
    if report.error is not None:
        return from_dict(report.error).message
    if report.exit_code is None:
        return f"the run is {report.status}"
    if report.tuning is not None and report.tuning.verdict is not None:
        who = report.tuning.winner or "no candidate"
        return f"{who} against the defaults: {report.tuning.verdict}: {report.tuning.reason}"
    if report.screened:
        variants = [variant for variant in report.screened[1:] if not variant.is_part]
        measured = sum(variant.effect is not None for variant in variants)
        return f"{measured} variants were screened, and nothing was gated"
    names = ", ".join(
        f"{variant.recipe} ({variant.not_shown})" if variant.not_shown else variant.recipe
        for variant in report.variants
        if variant.verdict == "pass"
    )
    return {
        "pass": f"{names} passed",
        "fail": "no variant passed, and at least one failed its gates",
        "undecided": "no variant passed or failed: undecided",
        "error": "no variant passed, and at least one could not be made or served",
        "interrupted": "interrupted",
    }[verdict_of(report)]


def repeating_command(report: RunReport) -> str:
    """Return the command that continues the run.

    A gate without a deployment id stores answers under the run's id.
    """
    request = report.request
    if isinstance(request, GateRequest) and report.run:
        request = replace(request, deployment_id=request.deployment_id or report.run)
    return request.line()


def how_to_continue(report: RunReport) -> str:
    """Return how to continue a run."""
    request = report.request
    if not isinstance(request, GateRequest) or request.deployment_id:
        return "Run the same command again: it continues from what is stored."
    if report.run:
        return (
            f"Run the same command again with `--deployment-id {report.run}`: it continues from "
            "the answers of this run. Without the id, everything is asked again."
        )
    return "Run the same command again: nothing is stored yet."


def describe_weights(report: RunReport, variant: VariantReport) -> str:
    """Return the weights' size, unknown for an endpoint."""
    nothing = "" if variant.gates or report.kind == "gate" else "not made"
    return decimal(variant.weights_bytes) if variant.weights_bytes else nothing


def next_command(report: RunReport, *, is_shown: bool = False) -> str:
    """Return the one command to continue with; `is_shown`: after `prepare runs RUN`."""
    registry = without_password(report.registry) if report.registry else None
    if champion_of(report) is not None:
        return own_command("registry", str(report.registered_name), registry=registry)
    if report.screened and report.status == "finished":
        return own_command("report", report.run)
    if report.tuning is not None and report.tuning.profile is not None:
        profile = report.tuning.profile
        return own_command("model", report.resolved.checkpoint, "--profile", profile)
    if report.status == "finished" and list_passed(report):
        if report.kind == "model":
            return own_command("promote", report.run, registry=registry)
        return own_command("verify", report.run)
    if not is_shown:
        return own_command("runs", report.run)
    if report.status == "running":
        return own_command("runs", report.run, "--follow")
    if report.status == "finished":
        return own_command("report", report.run)
    return repeating_command(report)


def next_commands(report: RunReport, *, is_shown: bool = False) -> list[str]:
    """Return the command to continue with, and of a promoted variant what else can be done."""
    first = next_command(report, is_shown=is_shown)
    champion = champion_of(report)
    if champion is None or is_shown:
        return [first]
    registry = without_password(report.registry) if report.registry else None
    version = f"{report.registered_name}@{champion.registry_version}"
    return [
        first,
        own_command("report", report.run),
        own_command("serve", version, registry=registry),
    ]


def next_steps(report: RunReport) -> list[str]:
    """Return the likeliest first; ValueError for an unfinished run."""
    command = f"`{next_command(report)}`"
    verdict = verdict_of(report)
    if verdict == "pass":
        return [f"Next: {command}."]
    if verdict == "fail":
        return [
            "A wider margin is a decision about the product: it belongs in the policy, not in a "
            "second try.",
            f"{command} names the folders with every answer.",
        ]
    if verdict == "undecided":
        advice = "Put more questions or minutes into the policy."
        gates = [gate for variant in report.variants for gate in variant.gates if gate.blocks]
        if any(gate.shown_losses for gate in gates):
            advice = "More questions do not bring back a part that is lost: see what it answers."
        return [advice, how_to_continue(report)]
    if verdict == "interrupted":
        return [how_to_continue(report)]
    hint = from_dict(report.error).hint if report.error is not None else ""
    look = [f"{command} names the logs.", how_to_continue(report)] if report.run else []
    return [*filter(None, [hint]), *look]
