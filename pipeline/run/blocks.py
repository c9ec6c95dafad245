"""Finds the blocks that speed gates still need, by the store.

All copies of a run get the same block numbers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from pipeline.plan.plan import Arm, Piece
from pipeline.run.run import Run
from pipeline.run.servers import needs_to_serve
from pipeline.stages.block import (
    BASELINE,
    Block,
    BlockArm,
    BlockParameters,
    BlockRuntime,
    block_spec,
    collect,
    digest_of,
    find_blocks,
)
from pipeline.stages.speed import SPEED, count_starts
from prepare.stage import StageSpec


@dataclass(frozen=True)
class GateOfArm:
    """A variant's speed gate, with the number of blocks that it needs."""

    arm: Arm
    spec: StageSpec
    wanted: int = 0

    @property
    def name(self) -> str:
        """The arm's name in blocks."""
        return SPEED.runtime_of(self.spec).arm

    @property
    def workload(self) -> str:
        return SPEED.parameters_of(self.spec).name


@dataclass(frozen=True)
class BlockFinder:
    """Finder of the pieces of speed gates: blocks, then each gate's collected loads."""

    run: Run
    baseline: Arm
    _known: dict[str, Block] = field(default_factory=dict)

    def find(self, gates: Sequence[tuple[Arm, StageSpec]]) -> Iterator[Piece]:
        """Yield ready pieces of these gates; their arms have answered `sanity`."""
        measurements: dict[str, list[tuple[Arm, StageSpec]]] = {}
        for arm, spec in gates:
            if self.run.reuse(spec) is None:
                measured = SPEED.runtime_of(spec).measurement
                measurements.setdefault(measured.identity, []).append((arm, spec))
        for gates_of_one in measurements.values():
            yield from self._find(gates_of_one)

    def _find(self, gates: Sequence[tuple[Arm, StageSpec]]) -> Iterator[Piece]:
        measurement = SPEED.runtime_of(gates[0][1]).measurement
        done = list(find_blocks(measurement, self.run.store, self._known))
        open_gates = []
        for arm, spec in gates:
            wanted = self._count_wanted(spec, done)
            if wanted:
                open_gates.append(GateOfArm(arm, spec, wanted))
            else:
                yield Piece("stage", (spec,))
        most_wanted = max((gate.wanted for gate in open_gates), default=0)
        numbers = {block.number for block in done}
        number = 0
        for place in range(most_wanted):
            while number in numbers:
                number += 1
            needing = [gate for gate in open_gates if gate.wanted > place]
            yield self._block(measurement, number, needing)
            number += 1

    def _count_wanted(self, spec: StageSpec, done: Sequence[Block]) -> int:
        """Return how many blocks the gate needs at most; 0 if it is decided."""
        parameters = SPEED.parameters_of(spec)
        name = SPEED.runtime_of(spec).arm
        rule = parameters.rule
        sanities = {
            BASELINE if side == "baseline" else name: digest_of(reference, self.run.store)
            for side, reference in spec.inputs.items()
        }
        taken, loads = collect(parameters, name, sanities, done)
        if not rule.needs_more(loads, count_starts(spec, self.run.store)):
            return 0
        missing = rule.blocks - len(rule.sort(loads).quiet)
        return max(1, min(missing, 2 * rule.blocks - len(taken)))

    def _block(
        self, measurement: BlockParameters, number: int, gates: Sequence[GateOfArm]
    ) -> Piece:
        arms = {gate.name: gate.arm for gate in gates}
        taking_part = {gate.name: _taking_part(gate.spec, "candidate") for gate in gates}
        first = gates[0].spec
        if measurement.rule.compares:
            arms[BASELINE] = self.baseline
            taking_part[BASELINE] = _taking_part(first, "baseline")
        files = {gate.workload: SPEED.runtime_of(gate.spec).file for gate in gates}
        runtime = BlockRuntime(
            environment=SPEED.runtime_of(first).environment,
            arms=taking_part,
            also={name: file for name, file in files.items() if name != measurement.name},
            tokenizer=SPEED.runtime_of(first).tokenizer,
            gate=SPEED.runtime_of(first).gate,
            file=SPEED.runtime_of(first).first_file,
            counted=SPEED.runtime_of(first).counted,
        )
        spec = block_spec(measurement, number, runtime, self.run.store.root)
        served = list(arms.values())
        return Piece("block", (spec,), tuple(served), needs_to_serve(self.run, served))


def _taking_part(spec: StageSpec, side: str) -> BlockArm:
    return BlockArm(served=SPEED.parameters_of(spec).sides[side], sanity=spec.inputs[side])
