"""Runs a plan: makes the variants, measures each on one server life, judges, promotes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any, Literal

from filelock import FileLock, Timeout

from pipeline.errors import ExitCode, PrepareError, ServingError
from pipeline.plan import Plan, VariantPlan, stage_spec
from pipeline.records import (
    StageReference,
    StageReport,
    StageSpec,
    StageStatus,
    VariantReport,
)
from pipeline.serving import Server, engine_facts
from pipeline.stage_runner import StageRunner


class Runner:
    """Runs one plan.

    Args:
        plan: what to do.
        stages: runs single stages.
        server_lock: file locked while a server is up; of this machine, whatever the store, so
            that two runs neither share a GPU's memory nor spoil each other's benchmark.
    """

    def __init__(self, plan: Plan, stages: StageRunner, server_lock: Path) -> None:
        self._server_lock = server_lock
        self._plan = plan
        self._stages = stages
        self._log = stages.log
        self._server: Server | None = None
        self._server_facts: dict[str, Any] = {}

    def run(self, *, name: str, registry: str) -> ExitCode:
        """Run every stage, judge, promote; a variant that fails does not stop the others.

        All variants are quantized and verified first: what can fail in minutes should not fail
        after an hour of measuring the baseline.

        Raises:
            PrepareError: the baseline or something that all variants share failed.
        """
        try:
            for spec in self._plan.shared.values():
                self._stages.run(spec)
            sound = [variant for variant in self._plan.variants if self._try(variant, self._make)]
            if sound:
                self._measure(self._plan.baseline)
            for variant in sound:
                self._try(variant, self._measure_and_judge)
            return self._promote(name, registry)
        finally:
            self._stages.cancel()
            self._close_server()

    def _try(self, variant: VariantPlan, work: Callable[[VariantPlan], None]) -> bool:
        """Do the work; a failure becomes the variant's report."""
        try:
            work(variant)
        except PrepareError as error:
            self._stages.progress.note(f"{variant.recipe.name}: {error}")
            report = unjudged(variant.recipe.name, "error", str(error), self._weights(variant))
            self._log.variant(report)
            return False
        return True

    def _make(self, variant: VariantPlan) -> None:
        for role in ("quantize", "verify"):
            self._stages.run(variant.stages[role])

    def _measure(self, variant: VariantPlan) -> None:
        """All stages that one life of the variant's server answers; none opens when all is done.

        Raises:
            IncoherentModelError: the model does not speak; nothing more is asked of it.
        """
        specs = [variant.stages[role] for role in variant.served]
        if all(self._stages.is_reusable(spec) for spec in specs):
            lock: AbstractContextManager[None] = nullcontext()
        else:
            lock = self._only_server()
        try:
            with lock:
                self._measure_stages(variant, specs)
        finally:
            self._close_server()

    def _measure_stages(self, variant: VariantPlan, specs: list[StageSpec]) -> None:
        try:
            for spec in specs:
                record = self._stages.run(spec, lambda: self._endpoint(variant))
                if spec.stage == "coherence" and record.result["incoherent"]:
                    raise IncoherentModelError(record.result["incoherent"])
        except PrepareError:
            if self._server is not None:
                self._server.check_alive()  # a dead server is the better explanation
            raise

    @contextmanager
    def _only_server(self) -> Iterator[None]:
        """Wait until no other run on this machine has a server up."""
        self._server_lock.parent.mkdir(parents=True, exist_ok=True)
        lock = FileLock(self._server_lock)
        try:
            lock.acquire(timeout=0)
        except Timeout:
            self._stages.progress.note("waiting for another run's server on this machine to end")
            lock.acquire()
        try:
            yield
        finally:
            # The next server must find the memory free, so ours goes first.
            self._close_server()
            lock.release()

    def _measure_and_judge(self, variant: VariantPlan) -> None:
        try:
            self._measure(variant)
        except IncoherentModelError as error:
            report = unjudged(variant.recipe.name, "fail", str(error), self._weights(variant))
            self._log.variant(report)
        else:
            self._log.variant(self._judge(variant))

    def _judge(self, variant: VariantPlan) -> VariantReport:
        judged = self._stages.run(variant.stages["judge"])
        return VariantReport(
            recipe=variant.recipe.name,
            weights_bytes=self._weights(variant),
            verdict=judged.result["verdict"],
            reason=judged.result["reason"],
            promoted=False,
            registry_version=None,
            gates=judged.result["gates"],
            throughput=judged.result["throughput"],
        )

    def _endpoint(self, variant: VariantPlan) -> dict[str, Any]:
        """What a stage must know of the variant's server, which is started if need be."""
        if self._server is None:
            log = self._log.folder / f"server.{variant.recipe.name}.log"
            # Kept before it starts, so that it is stopped whatever happens.
            self._server = Server(
                self._stages.python_of("serve"),
                variant.model,
                variant.arguments,
                log,
                trust_remote_code=variant.trust_remote_code,
            )
            ready = self._start_server(self._server, variant.recipe.name)
            facts = {"ready_seconds": ready, "command": self._server.command[1:]}
            self._server_facts = {
                "url": self._server.url,
                "server_log": str(log),
                "server": {**facts, **engine_facts(log)},
            }
        return self._server_facts

    def _start_server(self, server: Server, variant: str) -> float:
        """Start it; the run's record has a row for it, though a server is no stage."""
        progress = self._stages.progress
        started = time.monotonic()
        status: StageStatus = "failed"
        try:
            ready = server.start(self._plan.profile.ready_timeout_seconds, progress)
            status = "ran"
        finally:
            seconds = time.monotonic() - started
            self._log.stage(
                StageReport(name="serve", variant=variant, status=status, seconds=seconds, key=None)
            )
        progress.note(f"{variant}: server ready ({ready:.1f} s)")
        return ready

    def _close_server(self) -> None:
        if self._server is not None:
            self._server.stop()
            self._server = None
            self._server_facts = {}

    def _promote(self, name: str, registry: str) -> ExitCode:
        passed = [
            (variant, report)
            for variant in self._plan.variants
            if (report := self._log.variant_named(variant.recipe.name)).verdict == "pass"
        ]
        if not passed:
            return exit_code_of([report.verdict for report in self._log.variants()])
        spec = self._promotion_stage(passed, name, registry)
        record = self._stages.run(spec)
        for _, report in passed:
            champion = record.result["champion"]
            is_champion = report.recipe == champion
            self._log.variant(
                report.model_copy(
                    update={
                        "promoted": is_champion,
                        "registry_version": record.result["versions"][report.recipe],
                        "reason": report.reason
                        if is_champion
                        else f"{report.reason}; registered, but {champion} was preferred for the "
                        f"alias ({self._plan.policy.promotion.prefer})",
                    }
                )
            )
        return ExitCode.PROMOTED

    def _promotion_stage(
        self, passed: list[tuple[VariantPlan, VariantReport]], name: str, registry: str
    ) -> StageSpec:
        inputs: dict[str, StageReference] = {}
        candidates = []
        for variant, report in passed:
            recipe = variant.recipe.name
            inputs[f"weights.{recipe}"] = variant.stages["quantize"].as_reference()
            inputs[f"judge.{recipe}"] = variant.stages["judge"].as_reference()
            if report.throughput is None:
                raise ValueError(f"{recipe} passed without a throughput report")
            candidates.append(
                {
                    "recipe": recipe,
                    "weights_bytes": report.weights_bytes,
                    "throughput_ratio": report.throughput.ratio,
                    "deployable": self._deployable(variant),
                }
            )
        return stage_spec(
            "promote",
            "registry",
            {
                "policy": self._plan.policy.model_dump(),
                "candidates": candidates,
                "name": name,
                "registry": registry,
                "source": {
                    "checkpoint": self._plan.checkpoint.digest,
                    "ref": self._plan.checkpoint.ref,
                    "revision": self._plan.checkpoint.revision or "",
                },
            },
            inputs,
            {},
            self._stages.store.root,
        )

    def _deployable(self, variant: VariantPlan) -> dict[str, Any]:
        """The tuple that the verdict is about: a change in any member makes it say nothing."""
        served = variant.stages["coherence"].parameters
        benchmark = self._stages.finished(variant.stages["benchmark"]).result
        return {
            "weights": self._stages.finished(variant.stages["quantize"]).result["weights_digest"],
            "engine_version": benchmark["engine_version"],
            "environment.serve": served["engine"],
            "environment.evaluate": variant.stages[next(iter(self._plan.policy.suites))].parameters[
                "environment"
            ],
            "environment.quantize": variant.stages["quantize"].parameters["environment"],
            "serving": served["serving"],
            "hardware": served["hardware"],
        }

    def _weights(self, variant: VariantPlan) -> int | None:
        spec = variant.stages["quantize"]
        record = self._stages.store.find(spec.stage, spec.key)
        return int(record.result["weights_bytes"]) if record else None


class IncoherentModelError(ServingError):
    """A served model that does not speak: of a variant a verdict, of a baseline an error."""


def unjudged(
    recipe: str, verdict: Literal["fail", "error"], reason: str, weights: int | None
) -> VariantReport:
    """The report of a variant that did not get as far as the gates."""
    return VariantReport(
        recipe=recipe,
        weights_bytes=weights,
        verdict=verdict,
        reason=reason,
        promoted=False,
        registry_version=None,
        gates=[],
        throughput=None,
    )


def exit_code_of(verdicts: list[str]) -> ExitCode:
    """How a run ends in which no variant passed."""
    if "error" in verdicts:
        return ExitCode.EXPECTED_ERROR
    if "fail" in verdicts:
        return ExitCode.GATES_FAILED
    return ExitCode.UNDECIDED
