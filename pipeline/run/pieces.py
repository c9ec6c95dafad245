"""The pieces of a plan that are ready, by the plan and the store.

Questions come first, then weights and their checks, the baseline, variants, and blocks. A variant's
failure does not stop the others; a shared one ends the run.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from artifacts.run_record import report_judged, report_unjudged
from eval_gates.suites.suite_kind import kind_of
from pipeline.plan.data_sources import check_laid_out_clusters
from pipeline.plan.plan import Arm, Piece, PlanProgress, serving_name
from pipeline.preflight.power import check_counted
from pipeline.run.blocks import BlockFinder
from pipeline.run.first_rows import ask_first_rows, compare_prompts
from pipeline.run.run import Run
from pipeline.run.servers import needs_to_serve
from pipeline.stages import questions_role
from pipeline.stages.evaluate import EVALUATE, REFERENCE, is_answered
from pipeline.stages.questions import QUESTIONS
from pipeline.stages.speed import SPEED
from pipeline.stages.verdict import JUDGE
from prepare.errors import PrepareError, ServingError
from prepare.lots import NOTHING, Needs
from prepare.stage import StageSpec
from prepare.store import Store

Failures = Mapping[str, PrepareError]


class BrokenModelError(ServingError):
    """A broken variant, by verdict, or baseline, by error."""


class ArmPieces:
    """The pieces that make, serve and load one arm, for a comparison without verdicts.

    `served` are the stages that its server answers; `gates` are its speed gates.
    """

    def __init__(
        self, run: Run, state: PlanProgress, arm: Arm, gates: Sequence[StageSpec] = ()
    ) -> None:
        self.run = run
        self.state = state
        self._arm = arm
        self._gates = gates
        self._blocks = BlockFinder(run, state.plan.baseline)

    def find(self) -> list[Piece]:
        """Return ready pieces; none once all is done. Raise the error of one that failed."""
        failures = self.run.tries.failures()
        check_sane(self.state, self._arm)
        ready = self._find()
        names = [serving_name(self._arm), *(piece.name for piece in ready)]
        for name in names:
            if name in failures:
                raise failures[name]
        return ready

    def _find(self) -> list[Piece]:
        if making := making_piece(self.run, self._arm):
            return [making]
        served = self._arm.served
        if not self.run.are_done(served):
            return [serving_piece(self.run, self._arm, served, [self._arm])]
        return list(self._blocks.find([(self._arm, spec) for spec in self._gates]))

    def still_asked(self) -> set[str]:
        """Return the arms whose servers stay up: one start answers and is loaded."""
        rules = [SPEED.parameters_of(spec).rule for spec in self._gates]
        stays = any(rule.starts == "once" for rule in rules)
        return {self._arm.recipe.name} if stays else set()


class Pieces:
    """The pieces of one plan, up to its verdicts."""

    def __init__(self, run: Run, state: PlanProgress) -> None:
        self.run = run
        self.state = state
        self._plan = state.plan
        self._going = list(self._plan.variants)
        self._is_checked = False
        self._blocks = BlockFinder(run, self._plan.baseline)
        attempted = tuple(sorted(self._plan.trial.variants))
        resolved = run.log.report().resolved
        run.log.update(resolved=resolved.model_copy(update={"attempted": attempted}))
        for name, suite in self._plan.policy.suites.items():
            if not state.is_done(arm.stages[name] for arm in self._plan.arms):
                kind_of(suite).check_machine(suite)  # model-written code needs its sandbox

    def find(self) -> list[Piece]:
        """Return pieces that are ready and not done, urgent ones first; none once all is done.

        PrepareError: the baseline, or something shared, failed.
        """
        failures = self.run.tries.failures()
        if shared := self._find_shared(failures):
            return shared
        self._check_laid_out()
        self._drop_broken()
        self._drop_failed(failures)
        while True:
            ready = [
                *self._find_making(self._open),
                *self._find_verdicts(failures),
                *self._find_serving(),
                *self._find_blocks(failures),
            ]
            if not self.run.log.is_main:  # all variants wait for the baseline's answers
                baseline = serving_name(self._plan.baseline)
                ready.sort(key=lambda piece: piece.name != baseline)
            # Another copy may have done a variant's last stage while this one looked: without a
            # piece and without a verdict it looks again, or the variant would be left out.
            if ready or not self._going:
                # Only a copy that can take nothing else makes weights that may not be needed.
                return [*ready, *self._find_making(self._ahead)]

    def still_asked(self) -> set[str]:
        """Return the arms that this process may still load, whose servers stay up."""
        names = set()
        for variant in self._open if self._stays_up else ():
            for spec in self.state.speed(variant).values():
                if self.run.reuse(spec) is None:
                    names |= {variant.recipe.name}
                    if SPEED.parameters_of(spec).rule.compares:
                        names |= {self._plan.baseline.recipe.name}
        return names

    @property
    def _stays_up(self) -> bool:
        """Whether servers stay up for the measurement of speed."""
        profile = self._plan.profile
        return profile is not None and profile.starts == "once"

    def _check_laid_out(self) -> None:
        """Refuse unsuitable questions, and what endpoints do not answer."""
        if self._is_checked:
            return
        stages = {
            name: self._plan.shared.get(questions_role(name)) for name in self._plan.policy.suites
        }
        records = {name: self.state.find_current(spec) for name, spec in stages.items() if spec}
        laid_out = {name: QUESTIONS.result_of(record) for name, record in records.items() if record}
        check_laid_out_clusters(self._plan.policy, laid_out, self.run.progress)
        recipes = [variant.recipe for variant in self._plan.variants]
        level = self._plan.trial.level
        check_counted(self._plan.policy, recipes, laid_out, level)
        if self._plan.baseline.recorded is not None:
            compare_prompts(self.state, self.run)
        if not all(arm.is_ours for arm in self._plan.variants):
            ask_first_rows(self.state, self.run)
        self._is_checked = True

    @property
    def _open(self) -> list[Arm]:
        """Variants that are worked on now."""
        return self._going[:1] if self._plan.trial.descent else list(self._going)

    def _find_shared(self, failures: Failures) -> list[Piece]:
        ready = []
        for spec in self._plan.shared.values():
            if self.run.reuse(spec) is None and self._has_inputs(spec):
                piece = Piece("stage", (spec,))
                if error := failures.get(piece.name):
                    raise error
                ready.append(piece)
        return ready

    @property
    def _ahead(self) -> list[Arm]:
        """Variants of a descent that are asked later, if those before them pass."""
        return self._going[1:] if self._plan.trial.descent else []

    def _has_inputs(self, spec: StageSpec) -> bool:
        references = spec.inputs.values()
        return all(self.run.store.find(reference.stage, reference.key) for reference in references)

    def _find_making(self, variants: Sequence[Arm]) -> Iterator[Piece]:
        for variant in variants:
            if making := making_piece(self.run, variant):
                yield making

    def _find_verdicts(self, failures: Failures) -> Iterator[Piece]:
        for variant in self._open:
            measured = list(self.state.speed(variant).values())
            if self._is_asked(variant) and self.run.are_done(measured):
                spec = self.state.judge(variant)
                if self.run.reuse(spec) is not None:
                    self._note_verdict(variant)
                    continue
                piece = Piece("stage", (spec,))
                if error := failures.get(piece.name):
                    self._give_up(variant, error)
                else:
                    yield piece

    def _find_serving(self) -> Iterator[Piece]:
        baseline = self._plan.baseline
        if not self._is_answered(baseline):
            if self._going:
                yield self._serving(baseline)
            return
        for variant in self._open:
            if self.run.are_done(variant.making) and not self._is_answered(variant):
                yield self._serving(variant)

    def _find_blocks(self, failures: Failures) -> list[Piece]:
        """Return blocks once every remaining variant has answered.

        PrepareError: a block failed, not by one variant.
        """
        if not all(map(self._is_asked, self._open)):
            return []
        gates = [
            (variant, spec) for variant in self._open for spec in self.state.speed(variant).values()
        ]
        ready = list(self._blocks.find(gates))
        for piece in ready:
            if error := failures.get(piece.name):
                raise error
        return ready

    def _serving(self, arm: Arm) -> Piece:
        # A lot that suffices for all, if their servers stay up on it.
        arms = self._plan.arms if self._stays_up else [arm]
        return serving_piece(self.run, arm, arm.served, arms)

    def _is_answered(self, arm: Arm) -> bool:
        return self.run.are_done(arm.served)

    def _is_asked(self, variant: Arm) -> bool:
        return (
            self.run.are_done(variant.making)
            and self._is_answered(self._plan.baseline)
            and self._is_answered(variant)
        )

    def _drop_failed(self, failures: Failures) -> None:
        """Add failures to variants' reports, with earlier results."""
        if error := failures.get(serving_name(self._plan.baseline)):
            raise error
        for variant in list(self._going):
            names = [Piece("make", (spec,)).name for spec in variant.making]
            for name in (*names, serving_name(variant)):
                if error := failures.get(name):
                    self._give_up(variant, error)
                    break

    def _drop_broken(self) -> None:
        """Drop a broken variant; BrokenModelError for a baseline."""
        check_sane(self.state, self._plan.baseline)
        for variant in list(self._going):
            try:
                check_sane(self.state, variant)
            except BrokenModelError as error:
                self._give_up(variant, error)

    def _give_up(self, variant: Arm, failure: PrepareError) -> None:
        name = variant.recipe.name
        is_verdict = isinstance(failure, BrokenModelError)
        if not is_verdict:
            self.run.progress.note(f"{name}: {failure}")
        self._going.remove(variant)
        size = self.run.weights_bytes(variant)
        self.run.log.note_variant(
            report_unjudged(name, "fail" if is_verdict else "error", str(failure), size)
        )
        self._end_descent(name)

    def _note_verdict(self, variant: Arm) -> None:
        self._going.remove(variant)
        judged = JUDGE.result_of(self.run.find_finished(self.state.judge(variant)))
        name = variant.recipe.name
        size = self.run.weights_bytes(variant)
        self.run.log.note_variant(report_judged(name, size, judged))
        if judged.verdict != "pass":
            self._end_descent(name)

    def _end_descent(self, failed: str) -> None:
        """Leave out the variants that come after one that did not pass."""
        trial = self._plan.trial
        for left in list(self._going):
            name = left.recipe.name
            if failed not in trial.before(name):
                continue
            self._going.remove(left)
            why = f"not asked: {failed}, which is larger, did not pass (--until pass)"
            weights = self.run.weights_bytes(left)
            self.run.log.note_variant(report_unjudged(name, "skipped", why, weights))


def check_sane(state: PlanProgress, arm: Arm) -> None:
    """Raise BrokenModelError for a model found broken."""
    if why := state.fault(arm):
        raise BrokenModelError(why)


def making_piece(run: Run, arm: Arm) -> Piece | None:
    """Return the first unfinished stage of the arm's weights and their check."""
    for spec in arm.making:
        if run.reuse(spec) is None:
            return Piece("make", (spec,), (arm,), run.needs_to_make(spec))
    return None


def serving_piece(run: Run, arm: Arm, specs: Sequence[StageSpec], arms: Sequence[Arm]) -> Piece:
    """Return the piece that asks the arm's server, on a lot for the servers of `arms`."""
    needs: Needs = NOTHING
    if any(run.reuse(spec) is None and needs_endpoint(spec, run.store) for spec in specs):
        needs = needs_to_serve(run, arms)
    return Piece("serve", tuple(specs), (arm,), needs)


def needs_endpoint(spec: StageSpec, store: Store) -> bool:
    """Return whether stored answers do not suffice."""
    if spec.stage != EVALUATE.name:
        return True
    before = (
        spec.inputs[role] for role in ("questions", REFERENCE, "baseline") if role in spec.inputs
    )
    if any(store.find(reference.stage, reference.key) is None for reference in before):
        return True
    return not is_answered(spec, store)
