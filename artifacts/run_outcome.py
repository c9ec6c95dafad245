"""A run's outcome for terminal, report and CI."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

from rich.filesize import decimal

from artifacts.command_line import RecordedCommand, command_line
from artifacts.run_record import RunReport, ScreenedModel, VariantReport
from prepare.errors import ExitCode, from_dict

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


def serving_lines(options: RecordedCommand) -> list[str]:
    """Return notes on how the variants were served."""
    lines = [f"CPU override {name}: {why}" for name, why in (options.cpu_overrides or {}).items()]
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
    source = report.checkpoint.source if report.checkpoint is not None else None
    lines = serving_lines(report.options)
    if source is not None and source.quantized:
        lines = [f"the baseline is as released: verdicts are against {source.as_baseline}", *lines]
    drafted = (variant for variant in report.variants if variant.spec_decode)
    return [
        *lines,
        *(
            f"{variant.recipe}, speculative decoding: "
            + "; ".join(f"{name}: {each.words}" for name, each in variant.spec_decode.items())
            for variant in drafted
        ),
    ]


SCREENED = "screened: nothing was gated"


def screened_rows(screened: Sequence[ScreenedModel]) -> list[dict[str, str]]:
    """Return a row per arm, the smallest first, and those of `--ablate` last."""
    variants = [each for each in screened[1:] if not each.is_part]
    rows = []
    for each in sorted(screened, key=lambda each: (each.is_part, each.weights_bytes or math.inf)):
        is_beaten = any(each.is_beaten_by(other) for other in variants)
        place = "front" if each in variants and each.effect and not is_beaten else ""
        cells = each.effect.cells if each.effect else {}
        rate = each.output_tokens_per_s
        rows.append(
            {
                "variant": each.name,
                "weights": decimal(each.weights_bytes) if each.weights_bytes else "",
                "tokens kept": cells.get("score", ""),
                "lost, points": cells.get("difference, points", ""),
                "nats a token lost": cells.get("nats a token lost", ""),
                "output tokens/s": "" if rate is None else f"{rate:,.1f}",
                "": place or each.reason,
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
            passed = [gate.name for gate in champion.gates if gate.verdict == "pass"]
            return (
                f"{champion.recipe} passed on {', '.join(passed)} and was promoted as {named}; "
                f"{champion.not_shown}"
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
        variants = [each for each in report.screened[1:] if not each.is_part]
        measured = sum(each.effect is not None for each in variants)
        return f"{measured} variants were screened, and nothing was gated"
    names = ", ".join(
        f"{each.recipe} ({each.not_shown})" if each.not_shown else each.recipe
        for each in report.variants
        if each.verdict == "pass"
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
    command = dict(report.command)
    if report.kind == "gate" and report.run:
        command["deployment_id"] = report.options.deployment_id or report.run
    return command_line(report.kind, command)


def how_to_continue(report: RunReport) -> str:
    """Return how to continue a run."""
    if report.kind != "gate" or report.options.deployment_id:
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
    if champion_of(report) is not None:
        return f"prepare registry {report.registered_name}"
    if report.screened and report.status == "finished":
        return f"prepare report {report.run}"
    if report.tuning is not None and report.tuning.profile is not None:
        checkpoint = report.options.checkpoint or "CHECKPOINT"
        return f"prepare model {checkpoint} --profile {report.tuning.profile}"
    if report.status == "finished" and list_passed(report):
        return f"prepare {'promote' if report.kind == 'model' else 'verify'} {report.run}"
    if not is_shown:
        return f"prepare runs {report.run}"
    if report.status == "running":
        return f"prepare runs {report.run} --follow"
    return (
        f"prepare report {report.run}" if report.status == "finished" else repeating_command(report)
    )


def next_steps(report: RunReport) -> list[str]:
    """Return the likeliest first; ValueError for an unfinished run."""
    command, verdict = f"`{next_command(report)}`", verdict_of(report)
    if verdict == "pass":
        return [f"Next: {command}."]
    if verdict == "fail":
        return [
            "A wider margin is a decision about the product: it belongs in the policy, not in a "
            "second try.",
            f"{command} names the folders with every answer.",
        ]
    if verdict == "undecided":
        return ["Put more questions or minutes into the policy.", how_to_continue(report)]
    if verdict == "interrupted":
        return [how_to_continue(report)]
    hint = from_dict(report.error).hint if report.error is not None else ""
    look = [f"{command} names the logs.", how_to_continue(report)] if report.run else []
    return [*filter(None, [hint]), *look]
