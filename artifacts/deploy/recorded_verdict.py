"""A registered version's verdict, from its evidence."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from artifacts.deployable import Deployable
from artifacts.evidence.bundle import BundleVerdict, open_bundle
from artifacts.evidence.verify import check_bundle, find_bundle, read_verdict
from artifacts.registry import POLICY_TAG, TUPLE_TAG, WEIGHTS_TAG, Version
from artifacts.verdict_inputs import Find, VerdictInputs, record_of
from eval_gates.suites.sources import QuestionSource
from pipeline.core.errors import CheckpointError, EvidenceError, RegistryError
from pipeline.stages.judge import JUDGE, policy_digest
from pipeline.stages.questions import QUESTIONS
from recipes.checkpoints.weight_files import BUNDLE
from recipes.policy import Policy
from recipes.schema import Family, Recipe, ServingProfile
from recipes.workload import read_pinned

SHOWN = 100
TRUST_OPTION = "--trust-remote-code"


@dataclass(frozen=True)
class RecordedVerdict:
    """A version's verdict and its inputs."""

    bundle: BundleVerdict
    judged: VerdictInputs
    deployable: Deployable
    source: str  # with the commit if it is on the Hub
    families: Mapping[str, Family]
    sources: Mapping[str, QuestionSource]  # by suite

    @property
    def policy(self) -> Policy:
        return self.judged.judge.parameters.policy

    @property
    def tags(self) -> dict[str, str]:
        bundle = self.bundle
        return self.judged.tags(
            self.deployable, bundle.recipe, bundle.variant.verdict, bundle.override
        )

    @property
    def checkpoint_digest(self) -> str:
        return self.judged.screen.parameters.checkpoint

    @property
    def recipe(self) -> Recipe:
        return Recipe(
            name=self.bundle.recipe,
            summary="registered weights",
            family=self.judged.judge.parameters.family,
            quantization=self.judged.quantize.parameters.quantization,
        )

    @property
    def tried(self) -> tuple[Recipe, ...]:
        """Recipes of the correction; only number and families count."""
        own = self.recipe
        others = [name for name in self.bundle.attempted if name != own.name]
        family = own.family
        return (
            own,
            *(
                own.model_copy(update={"name": name, "family": self.families.get(name, family)})
                for name in others
            ),
        )

    @property
    def profile(self) -> ServingProfile:
        """Serving profile as used."""
        self.deployable.check_servable(f"{BUNDLE}/stages/screen")
        judge = self.judged.judge.parameters
        assert judge.profile is not None
        if judge.profile.speculative is not None and judge.profile.speculative.model is not None:
            raise EvidenceError(
                "it was judged with a draft model, and its evidence does not say where that lies",
                where=f"{BUNDLE}/stages/screen",
                hint="name a serving profile to judge with, whose key speculative.model does: "
                "--profile",
            )
        own = judge.policy.speed.workloads if judge.policy.speed is not None else {}
        workloads = {
            each.name: read_pinned(each.workload)
            for each in [measured.parameters for measured in self.judged.speed.values()][::-1]
            if "file" not in each.workload and each.name not in own
        }
        profile = judge.profile.model_copy(update={"workloads": workloads})
        return profile.apply_cpu_overrides(profile.cpu_overrides)


def read_past(version: Version, folder: Path) -> RecordedVerdict:
    """Read the bundle in a version's checked folder."""
    bundle = find_bundle(folder)
    if bundle is None:
        raise EvidenceError(
            f"version {version.version} of '{version.name}' has no evidence next to its weights, "
            "so how it was judged is not known",
            where=str(folder / BUNDLE),
            hint=f"`prepare promote {version.tags.get('prepare.run') or 'RUN'}` in the store of "
            "that run registers it with its evidence",
        )
    check = check_bundle(bundle)
    if check.faults:
        raise EvidenceError(
            f"the evidence does not give the verdict: {check.faults[0]}",
            where=str(bundle),
            hint=f"`prepare verify {bundle}` names every difference; get the version again with "
            "`prepare pull`",
        )
    if check.answers_withheld:
        raise EvidenceError(
            "this copy lacks the recorded answers, so its verdict cannot be computed again",
            where=str(bundle),
            hint="pull it from the registry, or from a copy of `prepare push --with-questions`",
        )
    verdict = read_verdict(bundle)
    with open_bundle(bundle) as (store, _):
        judged = VerdictInputs.load_by_key(store.find, verdict.judges[verdict.recipe])
        deployable = judged.deployable(store.find)
        check_same(version, judged, deployable, bundle)
        judges = {
            name: store.find("judge", key)
            for name, key in verdict.judges.items()
            if name != verdict.recipe
        }
        return RecordedVerdict(
            bundle=verdict,
            judged=judged,
            deployable=deployable,
            source=source_of(version, verdict),
            families={n: JUDGE.parameters_of(j).family for n, j in judges.items() if j is not None},
            sources=sources_of(judged, store.find),
        )


def source_of(version: Version, verdict: BundleVerdict) -> str:
    """Return the source's name; only the tags have a folder's path."""
    ref = version.tags.get("prepare.source.ref") or verdict.source.ref
    revision = verdict.source.revision
    is_folder = ref.startswith((".", "/", "~")) or Path(ref).exists()
    return f"{ref.partition('@')[0]}@{revision}" if revision and not is_folder else ref


def sources_of(judged: VerdictInputs, find: Find) -> dict[str, QuestionSource]:
    """Return each suite's question source."""
    return {
        suite: QUESTIONS.parameters_of(
            record_of(find, judged.judge.record.inputs[f"questions.{suite}"])
        ).source
        for suite in judged.judge.parameters.policy.suites
    }


def check_same(
    version: Version, judged: VerdictInputs, deployable: Deployable, bundle: Path
) -> None:
    """Raise EvidenceError if registry and evidence differ."""
    pairs = {
        WEIGHTS_TAG: ("weights", deployable.weights),
        TUPLE_TAG: ("deployable tuple", deployable.digest),
        POLICY_TAG: ("policy", policy_digest(judged.judge.record)),
    }
    for tag, (words, digest) in pairs.items():
        if version.tags.get(tag) != digest:
            raise EvidenceError(
                f"the {words} of the evidence is not the one of the version: its digest is "
                f"{digest[:12]}, registered is {str(version.tags.get(tag))[:12]}",
                where=f"{bundle} and {version.name} version {version.version}, tag {tag}",
                hint="a user changed one of them after the promotion; "
                f"`prepare verify {bundle}` checks the evidence",
            )


def refuse_changed_tags(version: Version, past: RecordedVerdict) -> None:
    """Raise RegistryError if an (untrusted) tag differs from the evidence."""
    found = tag_differences(version, past)
    if found:
        raise RegistryError(
            "the registry's tags are not what was judged: " + "; ".join(found),
            where=f"{version.name} version {version.version}",
            hint="a user changed them after the promotion; `prepare promote` the run again, and "
            "check who may write to the registry",
        )


def tag_differences(version: Version, past: RecordedVerdict) -> list[str]:
    """Describe the promotion's differing tags."""
    return [
        f"{tag} says {_show(version.tags.get(tag))}, the evidence {_show(value)}"
        for tag, value in past.tags.items()
        if version.tags.get(tag) != value
    ]


def refuse_code(version: Version, past: RecordedVerdict) -> None:
    """Raise CheckpointError for code without a user's consent."""
    if past.judged.trust_remote_code:
        raise CheckpointError(
            "it was judged with Python code that comes with the checkpoint, and serving it runs "
            "that code here",
            where=f"{version.name} version {version.version}",
            hint="read the *.py files next to its weights; where you trust them, add "
            f"{TRUST_OPTION}",
        )


def _show(value: str | None) -> str:
    text = "nothing" if value is None else ascii(value)
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}..."
