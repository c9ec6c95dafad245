"""The pieces of a run that are ready, by the plan and the store.

Questions come first, then weights and their checks, the baseline, variants, and blocks. A variant's
failure does not stop the others; a shared one ends the run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from artifacts.run_record import report_judged, report_unjudged
from eval_gates.suites.suite_kind import kind_of
from pipeline.plan.data_sources import check_independence
from pipeline.plan.plan import Arm
from pipeline.plan.progress import PlanProgress
from pipeline.preflight.power import check_counted
from pipeline.run.blocks import BlockPieces
from pipeline.run.copies import Lead
from pipeline.run.serving import BrokenModelError, Serving
from pipeline.run.session import RunSession
from pipeline.run.work import TRIED, Copy, Failures, Piece, empty
from pipeline.stages.questions import QUESTIONS
from pipeline.stages.verdict import JUDGE
from prepare.errors import PrepareError
from prepare.lots import NOTHING, Lot, Needs
from prepare.stage import StageSpec


def carry_out(
    state: PlanProgress,
    session: RunSession,
    before_asking: Callable[[], None] = lambda: None,
    further_copies: int = 0,
) -> None:
    """Work on the plan up to its verdicts.

    The main copy starts `further_copies` here. PrepareError: the baseline, or something shared,
    failed.
    """
    log = session.log
    copy = Copy(session.stages.store, log.folder, session.node, session.progress)
    if log.is_main:
        empty(log.folder / TRIED)
    with Lead(log, session.progress, further_copies) as lead:
        Pieces(session.serving(state), copy, before_asking).do(lead.try_to)


@dataclass
class Pieces:
    """The pieces of one plan.

    `before_asking` is called once questions are prepared; it may raise a PrepareError.
    """

    serving: Serving
    copy: Copy
    before_asking: Callable[[], None] = lambda: None
    _is_checked: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        self._state = self.serving.state
        self._stages = self.serving.stages
        self._plan = self._state.plan
        self._log = self._stages.log
        self._going = list(self._plan.variants)

        def give_up(variant: Arm, error: PrepareError) -> None:
            self.copy.fail(_name_of_serving(variant), error)

        self._blocks = BlockPieces(self.serving, give_up)

    def do(self, before_each: Callable[[], object] = lambda: None) -> None:
        """Work up to the verdicts; call `before_each` before each search."""
        attempted = tuple(sorted(self._plan.trial.variants))
        resolved = self._log.report().resolved
        self._log.update(resolved=resolved.model_copy(update={"attempted": attempted}))
        for name, suite in self._plan.policy.suites.items():
            if not self._state.is_done(arm.stages[name] for arm in self._plan.arms):
                kind_of(suite).check_machine(suite)  # model-written code needs its sandbox

        def find(failures: Failures) -> list[Piece]:
            before_each()
            return self.find(failures)

        self.copy.work(find)

    def find(self, failures: Failures) -> list[Piece]:
        if shared := self._find_shared(failures):
            return shared
        self._check_laid_out()
        self._drop_broken()
        self._drop_failed(failures)
        while True:
            found = [
                *self._find_making(),
                *self._find_verdicts(failures),
                *self._find_serving(),
                *self._find_blocks(failures),
            ]
            if not self._log.is_main:  # all variants wait for the baseline's answers
                baseline = _name_of_serving(self._plan.baseline)
                found.sort(key=lambda piece: piece.name != baseline)
            # Another copy may have done a variant's last stage while this one looked: without a
            # piece and without a verdict it looks again, or the variant would be left out.
            if found or not self._going:
                return found

    def _check_laid_out(self) -> None:
        """Refuse unsuitable questions, and what the caller refuses."""
        if self._is_checked:
            return
        stages = {
            name: self._plan.shared.get(f"questions.{name}") for name in self._plan.policy.suites
        }
        found = {name: self._state.find(spec) for name, spec in stages.items() if spec}
        laid_out = {name: QUESTIONS.result_of(record) for name, record in found.items() if record}
        check_independence(self._plan.policy, self._stages.progress, laid_out)
        recipes = [variant.recipe for variant in self._plan.variants]
        check_counted(self._plan.policy, recipes, laid_out, self._stages.progress)
        self.before_asking()
        self._is_checked = True

    @property
    def _open(self) -> list[Arm]:
        """Variants that are worked on now."""
        return self._going[:1] if self._plan.until_pass else list(self._going)

    def _find_shared(self, failures: Failures) -> list[Piece]:
        found = []
        for spec in self._plan.shared.values():
            if self._stages.reuse(spec) is None:
                piece = self._piece("", [spec], NOTHING)
                if error := failures.get(piece.name):
                    raise error
                found.append(piece)
        return found

    def _find_making(self) -> Iterator[Piece]:
        for variant in self._open:
            if self._undone(made := variant.making):
                yield self._piece("make", made, self._stages.needs_to_make(made))

    def _find_verdicts(self, failures: Failures) -> Iterator[Piece]:
        for variant in self._open:
            measured = list(self._state.fresh(variant).values())
            if self._is_asked(variant) and not self._undone(measured):
                spec = self._state.judge(variant)
                if self._stages.reuse(spec) is not None:
                    self._note_verdict(variant)
                    continue
                piece = self._piece("", [spec], NOTHING)
                if error := failures.get(piece.name):
                    self._give_up(variant, error)
                else:
                    yield piece

    def _find_serving(self) -> Iterator[Piece]:
        baseline = self._plan.baseline
        if self._unanswered(baseline):
            if self._going:
                yield self._serving_piece(baseline)
            return
        for variant in self._open:
            is_made = not self._undone(variant.making)
            if is_made and self._unanswered(variant):
                yield self._serving_piece(variant)

    def _find_blocks(self, failures: Failures) -> list[Piece]:
        """Return blocks once every remaining variant has answered.

        PrepareError: a block failed, not by one variant.
        """
        if not all(map(self._is_asked, self._open)):
            return []
        found = list(self._blocks.find(self._open))
        for piece in found:
            if error := failures.get(piece.name):
                raise error
        return found

    def _serving_piece(self, variant: Arm) -> Piece:
        def do(lot: Lot) -> None:
            self.serving.run(variant, self._state.served(variant), lot)

        def is_done() -> bool:
            return not self._unanswered(variant) or bool(self._state.fault(variant))

        needs = self.serving.needs(variant, self._state.served(variant))
        title = f"serves {variant.recipe.name}"
        return Piece(_name_of_serving(variant), title, do, is_done, needs)

    def _piece(self, kind: str, specs: Sequence[StageSpec], needs: Needs) -> Piece:
        """Return the piece of these stages, named by the last."""
        last = specs[-1]

        def do(lot: Lot) -> None:
            for spec in specs:
                self._stages.run(spec)

        name = f"{kind or last.stage}.{last.key}"
        title = f"{kind or last.stage} {last.variant}"
        return Piece(name, title, do, lambda: not self._undone(specs), needs)

    def _unanswered(self, variant: Arm) -> list[StageSpec]:
        return self.serving.undone(self._state.served(variant))

    def _undone(self, specs: Sequence[StageSpec]) -> bool:
        return any(self._stages.reuse(spec) is None for spec in specs)

    def _is_asked(self, variant: Arm) -> bool:
        return not (
            self._undone(variant.making)
            or self._unanswered(self._plan.baseline)
            or self._unanswered(variant)
        )

    def _drop_failed(self, failures: Failures) -> None:
        """Add failures to variants' reports, with earlier results."""
        if error := failures.get(_name_of_serving(self._plan.baseline)):
            raise error
        for variant in list(self._going):
            names = [f"make.{spec.key}" for spec in variant.making[-1:]]
            for name in (*names, _name_of_serving(variant)):
                if error := failures.get(name):
                    self._give_up(variant, error)
                    break

    def _drop_broken(self) -> None:
        """Drop a broken variant; BrokenModelError for a baseline."""
        self.serving.check_sane(self._plan.baseline)
        for variant in list(self._going):
            try:
                self.serving.check_sane(variant)
            except BrokenModelError as error:
                self._give_up(variant, error)

    def _give_up(self, variant: Arm, failure: PrepareError) -> None:
        name = variant.recipe.name
        is_verdict = isinstance(failure, BrokenModelError)
        if not is_verdict:
            self._stages.progress.note(f"{name}: {failure}")
        self._going.remove(variant)
        size = self._stages.weights_bytes(variant)
        self._log.note_variant(
            report_unjudged(name, "fail" if is_verdict else "error", str(failure), size)
        )

    def _note_verdict(self, variant: Arm) -> None:
        self._going.remove(variant)
        found = JUDGE.result_of(self._stages.find_finished(self._state.judge(variant)))
        name = variant.recipe.name
        self._log.note_variant(report_judged(name, self._stages.weights_bytes(variant), found))
        while self._plan.until_pass and found.verdict == "pass" and self._going:
            left = self._going.pop()
            why = f"not needed: {name}, which is smaller, passed (--until pass)"
            weights = self._stages.weights_bytes(left)
            self._log.note_variant(report_unjudged(left.recipe.name, "skipped", why, weights))


def _name_of_serving(variant: Arm) -> str:
    return f"serve.{variant.stages['sanity'].key}"
