"""Pieces of speed gates with fresh starts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

from pipeline.environments.definition import Accelerator
from pipeline.plan.plan import Arm
from pipeline.run.serving import Serving
from pipeline.run.work import Copy, Failures, Piece
from pipeline.stages.block import (
    BASELINE,
    Block,
    BlockArm,
    BlockParameters,
    BlockRuntime,
    SideLostError,
    block_spec,
    collect,
    digest_of,
    find_blocks,
)
from pipeline.stages.sanity import SANITY
from pipeline.stages.speed import SPEED, count_starts
from pipeline.stages.starts import StartLedger
from prepare.errors import PrepareError, ServingError, StageLostError, StoreError
from prepare.interruption import hold_interruptions, is_interruption
from prepare.lots import NOTHING, Lot, Needs
from prepare.stage import StageSpec
from recipes.engine_arguments import count_gpus

GiveUp = Callable[[Arm, PrepareError], None]


@dataclass(frozen=True)
class _Gate:
    variant: Arm
    spec: StageSpec
    arm: str
    wanted: int


@dataclass(frozen=True)
class BlockPieces:
    """Finder of pieces for speed gates with fresh starts.

    All copies of a run get the same block numbers. `give_up` receives a variant whose server
    failed.
    """

    serving: Serving
    give_up: GiveUp
    _known: dict[str, Block] = field(default_factory=dict)

    def find(self, variants: Sequence[Arm]) -> Iterator[Piece]:
        """Yield ready pieces of otherwise passed variants."""
        measurements: dict[str, list[tuple[Arm, StageSpec]]] = {}
        for variant in variants:
            for spec in self.serving.state.fresh(variant).values():
                if self.serving.stages.reuse(spec) is None:
                    root = self.serving.stages.store.root
                    first = block_spec(_measurement(spec), 0, BlockRuntime(), root)
                    measurements.setdefault(first.key, []).append((variant, spec))
        for gates in measurements.values():
            yield from self._find(gates)

    def _find(self, gates: Sequence[tuple[Arm, StageSpec]]) -> Iterator[Piece]:
        measurement = _measurement(gates[0][1])
        done = list(find_blocks(measurement, self.serving.stages.store, self._known))
        open_gates = []
        for variant, spec in gates:
            gate = self._gate(variant, spec, measurement, done)
            if gate.wanted:
                open_gates.append(gate)
            else:
                yield self._collecting(spec)
        wanted = max((gate.wanted for gate in open_gates), default=0)
        numbers = {block.number for block in done}
        number = 0
        for place in range(wanted):
            while number in numbers:
                number += 1
            needing = [gate for gate in open_gates if gate.wanted > place]
            yield self._block(measurement, number, needing)
            number += 1

    def _gate(
        self,
        variant: Arm,
        spec: StageSpec,
        measurement: BlockParameters,
        done: Sequence[Block],
    ) -> _Gate:
        arm = SPEED.runtime_of(spec).arm
        sanities = {
            BASELINE if side == BASELINE else arm: digest_of(each, self.serving.stages.store)
            for side, each in spec.inputs.items()
        }
        parameters = SPEED.parameters_of(spec)
        taken, loads = collect(parameters, arm, sanities, done)
        rule = parameters.rule
        wanted = 0
        if rule.needs_more(loads, count_starts(spec, self.serving.stages.store)):
            missing = rule.blocks - len(rule.sort(loads).quiet)
            wanted = max(1, min(missing, 2 * rule.blocks - len(taken)))
        return _Gate(variant, spec, arm, wanted)

    def _collecting(self, spec: StageSpec) -> Piece:
        def do(lot: Lot) -> None:
            self.serving.stages.run(spec)

        def is_done() -> bool:
            return self.serving.stages.reuse(spec) is not None

        return Piece(f"speed.{spec.key}", f"collects loads of {spec.variant}", do, is_done)

    def _block(
        self,
        measurement: BlockParameters,
        number: int,
        gates: Sequence[_Gate],
    ) -> Piece:
        plans = {gate.arm: gate.variant for gate in gates}
        first = SPEED.runtime_of(gates[0].spec)
        arms = {gate.arm: _arm(gate.spec, "candidate") for gate in gates}
        if measurement.rule.compares:
            plans[BASELINE] = self.serving.state.plan.baseline
            arms[BASELINE] = _arm(gates[0].spec, BASELINE)
        others = [gate.spec for gate in gates if _name(gate.spec) != measurement.name]
        runtime = BlockRuntime(
            environment="serve",
            arms=arms,
            also={_name(spec): SPEED.runtime_of(spec).file for spec in others},
            tokenizer=first.tokenizer,
            gate=first.gate,
            file=first.first_file,
            counted=first.counted,
        )
        spec = block_spec(measurement, number, runtime, self.serving.stages.store.root)
        servers = _Servers(self.serving, plans, self.give_up, measurement)

        def do(lot: Lot) -> None:
            with ExitStack() as held:
                if self.serving.is_alone:
                    held.enter_context(lot.quiet(self.serving.tell_of_waiting))
                self.serving.stages.run(spec, servers=servers)

        def is_done() -> bool:
            return self.serving.stages.store.find(spec.stage, spec.key) is not None

        arguments = [each.identity.serving for each in plans.values() if each.is_ours]
        needs = NOTHING  # else what one server needs, the largest of the arms
        if arguments and self.serving.stages.accelerator is not Accelerator.CUDA:
            needs = Needs(cores=True)
        elif arguments:
            needs = Needs(gpus=max(count_gpus(each.engine_arguments) for each in arguments))
        title = f"measures {first.gate}, block {number + 1}"
        return Piece(f"block.{spec.key}", title, do, is_done, needs)


def measure_blocks(variant: Arm, serving: Serving) -> None:
    """Measure a variant's speed gates with fresh starts.

    PrepareError: a server did not start or ended.
    """

    def give_up(variant: Arm, error: PrepareError) -> None:
        raise error

    stages = serving.stages
    blocks = BlockPieces(serving, give_up)

    def find(failures: Failures) -> list[Piece]:
        for error in failures.values():
            raise error
        return list(blocks.find([variant]))

    Copy(stages.store, stages.log.folder, serving.node, stages.progress).work(find)


@dataclass(frozen=True)
class _Servers:
    """Servers of a block's arms, one after another."""

    serving: Serving
    plans: Mapping[str, Arm]
    give_up: GiveUp
    measurement: BlockParameters

    @contextmanager
    def up(self, arm: str) -> Iterator[dict[str, Any]]:
        model = self.plans[arm]
        try:
            yield self.serving.open(model, self.measurement.identity)
            self.serving.check_alive()  # else something else may have answered
        except PrepareError as error:
            self.serving.check_alive()  # a dead server is the better explanation
            if isinstance(error, SideLostError):
                self.serving.note_failure(model.recipe.name, error)
            raise
        finally:
            with hold_interruptions():
                self.serving.close()

    def leave(self, arm: str, error: PrepareError) -> None:
        if isinstance(error, StoreError | StageLostError) or is_interruption(error):
            raise error
        if not isinstance(error, ServingError):  # such as the load generator's
            if arm == BASELINE:
                raise error
            self.give_up(self.plans[arm], error)
            return
        stages = self.serving.stages
        model = self.plans[arm]
        own = self.measurement.identity if self.measurement.measurement > 1 else ""
        count = StartLedger(stages.store, model.stages[SANITY.name].key).count(own)
        if arm == BASELINE and not count.is_over:
            raise error
        then = "its gates end" if count.is_over else "once more"
        stages.progress.note(f"{arm}: a start of its server failed; {then}: {error.message}")


def _measurement(spec: StageSpec) -> BlockParameters:
    found = SPEED.runtime_of(spec).measurement
    assert found is not None
    return found


def _name(spec: StageSpec) -> str:
    return SPEED.parameters_of(spec).name


def _arm(spec: StageSpec, side: str) -> BlockArm:
    return BlockArm(served=SPEED.parameters_of(spec).sides[side], sanity=spec.inputs[side])
