"""`prepare recheck`: tests whether a registered version's verdict still holds."""

from __future__ import annotations

from typing import TYPE_CHECKING

from artifacts.requests import RecheckRequest
from pipeline.cli.display import open_display
from pipeline.cli.options import JsonOption, PublicKeyOption, StoreOption, asks
from pipeline.cli.tables import end, print_json, print_table
from prepare.own_command import own_command

if TYPE_CHECKING:
    from eval_gates.gate_result import GateResult
    from pipeline.run.recheck import RecheckOutcome


@asks(RecheckRequest)
def recheck(
    request: RecheckRequest,
    public_key: PublicKeyOption = None,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Check whether a version's verdict still holds; measure again if anything changed.

    The verdict is about a tuple: weights, engine, environments, serving
    arguments and hardware. If none changed, nothing is run. Otherwise the registered
    weights are served with the present tuple, and compared with their own recorded
    answers: is it still what was promoted? If that is not shown, or with --source, the
    source checkpoint is served, too, and both are judged by the same policy as before. The
    outcome names the cause: the engine, quantization, both or neither. Nothing is
    quantized, no alias moves unless --on-fail says so, and the outcome is stored as a tag
    of the version. Run it again to continue.
    --force measures everything again though nothing changed, --remeasure only one gate.

    Examples

      prepare recheck smollm2-135m@champion

      prepare recheck smollm2-135m@3 --weights ./deploy --source ./SmolLM2-135M-Instruct

      prepare recheck llama-8b@champion --profile h200 --json

    Exit codes: 0 the verdict stands, 1 error, 2 usage, 3 unexpected error,
    4 a gate failed, 5 undecided, 130 interrupted.
    """
    from pipeline.environments.settings import load_settings
    from pipeline.run.recheck import run_recheck

    with open_display(as_json=as_json) as progress:
        outcome = run_recheck(request, load_settings(store, public_key), progress)
    if as_json:
        print_json(outcome.to_dict())
    else:
        print_outcome(outcome)
    end(outcome.error if outcome.exit_code else None, outcome.exit_code)


def print_outcome(outcome: RecheckOutcome) -> None:
    """Print changes, gates and consequence."""
    version = outcome.past.version
    name = f"{version.name} version {version.version} ({outcome.past.bundle.recipe})"
    if outcome.refuted is not None:
        refuted = outcome.refuted
        print(
            f"{name}: nothing changed, and the verdict does not stand: the recheck of "
            f"{refuted.when} on this very tuple ended with '{refuted.report.verdict}': "
            f"{refuted.report.words}\n{next_step(outcome)}; --force measures once more"
        )
        return
    if not outcome.runs:
        judged = outcome.past.bundle.variant.verdict
        on_record = "" if judged == "pass" else f" on record, '{judged}',"
        print(f"{name}: the verdict{on_record} stands: nothing changed")
        return
    if outcome.changed:
        rows = [[change.member, change.then, change.now] for change in outcome.changed]
        print_table(["changed", "judged", "here"], rows)
    report = outcome.report
    if report is None:
        return
    if (engine := outcome.variant_of(report.engine)) is not None:
        rows = [[gate.name, *gate_cells(gate), floor_of(gate)] for gate in engine.gates]
        print_table(["gate", "on record to here", "", "noise"], rows)
    if (source := outcome.variant_of(report.source)) is not None:
        then = outcome.past.bundle.variant
        before, after = ({gate.name: gate for gate in report.gates} for report in (then, source))
        rows = [[n, *gate_cells(before.get(n)), *gate_cells(after.get(n))] for n in before | after]
        rows.append(["all", "", then.verdict, "", source.verdict])
        print_table(["gate", "source to variant, then", "", "here", ""], rows)
    words = {True: "the verdict stands", False: "the verdict does not stand", None: "no verdict"}
    print(f"{name}: {words[outcome.stands]}: {report.words}")
    for question, asked in (("the record", report.engine), ("the source", report.source)):
        if asked is not None:
            print(f"  against {question}: {asked.verdict}: {asked.reason}")
            variant = outcome.variant_of(asked)
            for gate in variant.gates if variant is not None else ():
                if gate.blocks:
                    print(f"    {gate.name}: {gate.reason}")
    print(next_step(outcome))


def floor_of(gate: GateResult) -> str:
    """Return what two starts of the engine differ by."""
    floor = getattr(gate, "noise_floor", None)
    return f"{floor.flips} of {floor.n} between two starts" if floor is not None else ""


def gate_cells(gate: GateResult | None) -> list[str]:
    """Return both sides, their difference and the verdict."""
    if gate is None:
        return ["not measured", ""]
    sides = " to ".join(filter(None, gate.show_sides(1)))
    return [f"{sides}: {gate.show_difference(1)}, {gate.counted}", gate.verdict]


def next_step(outcome: RecheckOutcome) -> str:
    """Return the next step."""
    version = outcome.past.version
    look = own_command("report", str(outcome.run))
    if outcome.stands:
        return f"Next: {own_command('serve', f'{version.name}@{version.version}')}"
    if outcome.stands is None:
        return f"Next: {look}; fix the cause, and run the same command again"
    if (moved := outcome.moved) is not None:
        return f"{version.name}@{moved.alias} is version {moved.version} again. Next: {look}"
    back = own_command("rollback", version.name)
    return f"No alias has moved. Next: {look}; `{back}` moves the alias back"
