"""Works on pieces until none is left; as many copies as there are GPUs or nodes may do so.

A copy finds a ready piece, takes its resources and lock, and does it. It never waits while it holds
resources: its servers end first.
"""

from __future__ import annotations

from contextlib import ExitStack

from eval_gates.ask import RateLimitError, TooLongError, UnansweredError
from pipeline.plan.plan import Arm, Piece, PlanProgress
from pipeline.run.copies import Lead
from pipeline.run.pieces import ArmPieces, Pieces, needs_endpoint
from pipeline.run.servers import BlockServers, Servers
from pipeline.run.tries import TRIED, empty
from pipeline.stages.block import BLOCK
from pipeline.stages.evaluate import EVALUATE, REFERENCE
from pipeline.stages.sanity import SANITY
from prepare.errors import PrepareError, StageLostError, is_of_disk
from prepare.file_locks import doing, is_locked
from prepare.interruption import is_interruption
from prepare.lots import Lot
from prepare.stage import StageSpec


def finish_plan(servers: Servers, state: PlanProgress, further_copies: int = 0) -> None:
    """Do all pieces of the plan, up to its verdicts.

    The main copy starts `further_copies` here. PrepareError: the baseline, or something shared,
    failed.
    """
    run = servers.run
    if run.log.is_main:
        empty(run.log.folder / TRIED)
    with Lead(run.log, run.progress, further_copies) as lead:
        do_pieces(servers, Pieces(run, state), lead)


def do_pieces(servers: Servers, pieces: Pieces | ArmPieces, lead: Lead | None = None) -> None:
    """Do pieces until none is left; raise as their `find`."""
    run = servers.run
    with servers:
        while True:
            if lead is not None:
                lead.try_to()
            ready = pieces.find()
            if not ready:
                return
            servers.end_all_but(pieces.still_asked())
            if any(try_piece(servers, pieces.state, piece) for piece in ready):
                continue
            servers.give_back()
            if (piece := run.wait_for_others(ready)) is not None:
                try_piece(servers, pieces.state, piece, wait=True)


def try_piece(servers: Servers, state: PlanProgress, piece: Piece, *, wait: bool = False) -> bool:
    """Do the piece, or find it done; return whether so."""
    run = servers.run
    if not wait and servers.are_up and is_locked(run.lock_of(piece)):  # else they may end for it
        return False
    if piece.kind == "make":  # it needs the memory of what is up
        servers.give_back()
        run.workers.end()
    with ExitStack() as held:
        held.enter_context(doing(piece.title))
        # First the node's resources, then the piece: a process never waits while it holds a piece.
        lot = servers.take(piece.needs, wait=wait)
        held.callback(servers.give_back_unused)
        if lot is None or not held.enter_context(run.store.hold(piece.name, wait=False)):
            return False
        if not _is_done(servers, state, piece):
            _try(servers, state, piece, lot)
        return True


def _is_done(servers: Servers, state: PlanProgress, piece: Piece) -> bool:
    if servers.run.are_done(piece.specs):
        return True
    return piece.kind == "serve" and bool(state.fault(piece.arms[0]))


def _try(servers: Servers, state: PlanProgress, piece: Piece, lot: Lot) -> None:
    run = servers.run
    try_file = run.tries.begin(piece.name, piece.title)
    if try_file is None:
        return
    try:
        do(servers, state, piece, lot)
    except StageLostError as error:
        run.lose(piece, error)  # the other process goes on with it
    except PrepareError as error:
        # A full or broken disk says nothing of the variant, whose place another one would take.
        if is_interruption(error) or is_of_disk(error):
            raise
        run.tries.fail(piece.name, error)
    finally:
        try_file.unlink(missing_ok=True)


def do(servers: Servers, state: PlanProgress, piece: Piece, lot: Lot) -> None:
    """Do a piece on its lot; raise its error."""
    match piece.kind:
        case "stage" | "make":
            for spec in piece.specs:
                servers.run.run_stage(spec)
        case "serve":
            _serve(servers, state, piece)
        case "block":
            _measure(servers, state, piece, lot)


def _serve(servers: Servers, state: PlanProgress, piece: Piece) -> None:
    """Run the arm's unfinished stages; end early if the model is broken.

    What is asked twice is asked of two starts where the second answers decide.
    """
    (arm,) = piece.arms
    was_again = False
    for spec in piece.specs:
        if servers.run.reuse(spec) is not None:
            continue
        if needs_endpoint(spec, servers.run.store):
            is_again = spec.stage == EVALUATE.name and EVALUATE.parameters_of(spec).is_again
            is_after = was_again and not is_again
            if REFERENCE in spec.inputs or (is_after and arm.is_ours):
                servers.end_servers([arm.recipe.name])
            was_again = is_again
            _ask(servers, arm, spec)
        else:
            servers.run.run_stage(spec)
        if spec.stage == SANITY.name and state.fault(arm):
            return


def _ask(servers: Servers, arm: Arm, spec: StageSpec) -> None:
    name = arm.recipe.name
    try:
        servers.run.run_stage(spec, servers.open(arm))
    except TooLongError as error:
        if not arm.is_ours or EVALUATE.runtime_of(spec).halved:
            raise
        servers.run.progress.note(f"{error.message}; once more, with half the tokens")
        servers.end_servers([name])
        halved = {**spec.runtime, "halved": True}
        _ask(servers, arm, spec.model_copy(update={"runtime": halved}))
        return
    except PrepareError as error:
        servers.check_alive([name])  # a dead server is the better explanation
        if isinstance(error, UnansweredError) and not isinstance(error, RateLimitError):
            servers.note_failure(name, error)  # it hangs, or its owner lost it
        raise
    servers.check_alive([name])  # else something else may have answered
    servers.note_answers([name])


def _measure(servers: Servers, state: PlanProgress, piece: Piece, lot: Lot) -> None:
    run = servers.run
    (spec,) = piece.specs
    parameters = BLOCK.parameters_of(spec)
    own = parameters.identity if parameters.measurement_number > 1 else ""
    arms = {arm.recipe.name: arm for arm in piece.arms}
    speed = state.plan.policy.speed
    is_alone = not run.is_on_gpus or (speed is not None and speed.quiet == "node")
    with ExitStack() as held:
        if is_alone and any(arm.is_ours for arm in piece.arms):
            held.enter_context(lot.quiet(run.tell_of_waiting))
        run.run_stage(spec, servers=BlockServers(servers, arms, parameters.identity, own))
