"""A recheck by pretended models; planner, loop and judge are the real ones."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fake_run import IDENTITIES, Sources, policy
from listener import Listener
from pretend_stages import PretendModels, PretendRun, PretendServers, Score
from some_node import NODE

from artifacts.deploy.recheck_record import RecheckRecord, rechecks_of
from artifacts.deploy.registered import RegisteredVersion, find_version, open_version
from artifacts.deploy.serve import accepted_tuples
from artifacts.evidence.verify import check_run
from artifacts.registry import Registry
from artifacts.requests import RecheckRequest
from artifacts.run_record import RunReport, find_run
from pipeline.environments.settings import Settings
from pipeline.plan.choice import Choice
from pipeline.plan.registered_arm import Here
from pipeline.run.recheck import Recheck, RecheckOutcome, choose_own_profile, open_past
from pipeline.run.run import Run
from pipeline.run.servers import Servers
from prepare.digest import digest_json
from prepare.store import Store
from recipes.checkpoints.known_checkpoints import Checkpoints


class PretendRecheck(Recheck):
    """A recheck whose servers and workers are pretended."""

    models: PretendModels

    def open_run(self, resolved: Any) -> Run:
        """Pretend its stages."""
        real = super().open_run(resolved)
        run = PretendRun.__new__(PretendRun)
        run.__dict__.update(real.__dict__)
        run.models = self.models
        return run

    def open_servers(self, run: Run) -> Servers:
        """Pretend them."""
        assert isinstance(run, PretendRun)
        return PretendServers(run)

    def survey(self, choices: Choice, run: Run) -> Any:
        """Tiny matrices are no real model's, and questions are the judged run's."""
        return Sources(self.models)


@dataclass
class Machine:
    """One that rechecks: its store, registry, engine and what the models answer there.

    Args:
        store: of the user.
        registry: that has the version.
        models: what answers here.
        engine: version of the engine that is here.
        identities: of the environments that are here.
    """

    store: Store
    registry: Registry
    models: PretendModels
    engine: str = "0.33.0"
    identities: Mapping[str, str] = field(default_factory=lambda: IDENTITIES)
    said: Listener = field(default_factory=Listener)

    @property
    def settings(self) -> Settings:
        """The machine's own."""
        return Settings(home=self.store.root.parent / "home", store=self.store.root)

    def upgrade(self, engine: str = "0.34.0") -> None:
        """Install another engine."""
        self.engine = engine
        self.models.engine_version = engine
        self.identities = {**self.identities, "serve": digest_json(engine)}

    def request(self, **options: Any) -> RecheckRequest:
        """As a user asks."""
        options = {"reference": "model@champion", **options}
        return RecheckRequest(registry=self.registry.uri, **options)

    def recheck(self, **options: Any) -> RecheckOutcome:
        """As `prepare recheck`."""
        request = self.request(**options)
        past = open_past(request, self.registry, self.settings)
        profile = choose_own_profile(request, past, NODE, self.store.root)
        here = Here(NODE, profile, self.identities, self.engine)
        made = PretendRecheck(
            request, past, here, self.registry, self.settings, Checkpoints(), self.said
        )
        made.models = self.models
        return made.run()

    @property
    def past(self) -> RegisteredVersion:
        """The champion."""
        version = find_version(self.registry, "model@champion")
        return open_version(version, Path(version.source), trust_remote_code=False)

    def rechecks(self) -> list[RecheckRecord]:
        """What the registry keeps of rechecks."""
        return rechecks_of(find_version(self.registry, "model@champion"))

    def accepted(self, store: Store | None = None) -> list[str]:
        """Serving environments that `prepare serve` accepts."""
        tuples = accepted_tuples(self.past, store or self.store)
        return [accepted.serve_environment for accepted in tuples]


def statuses(run: RunReport) -> dict[tuple[str, str], str]:
    """How each stage of a run ended, by its name and variant."""
    return {(stage.name, stage.variant): stage.status for stage in run.stages}


RECIPE = "fp8-dynamic"
QUESTIONS = 600


def as_before(variant: str, suite: str, number: int) -> float:
    return float(number % 2)


def loses(*variants: str) -> Score:
    """These variants answer every other question that they answered then."""

    def score(variant: str, suite: str, number: int) -> float:
        return float(number % 4 == 1 if variant in variants else number % 2)

    return score


BOTH = ("baseline", RECIPE)


def policy_of(**changes: Any) -> Any:
    return policy(margins={"fp8": 0.1}, noise_floor_questions=16, **changes)


def differences(site: Machine, run: RunReport) -> tuple[str, ...]:
    (check,) = check_run(find_run(site.store, run.run), site.store)
    return check.differences
