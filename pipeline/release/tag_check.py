"""Holds a registered version's tags against the evidence beside its weights.

Whoever may write to the registry may set a tag; nobody can make the evidence say it.
"""

from __future__ import annotations

from artifacts.registry.registry import TUPLE_TAG, WEIGHTS_TAG, Version
from pipeline.core.digest import digest_json
from pipeline.core.errors import RegistryError
from pipeline.release.past_verdict import POLICY_TAG, PastVerdict
from pipeline.stages.promote import as_tag

# Versions of before there were these tags have none of them, and nothing is taken from them.
LATER_TAGS = ("prepare.override", "prepare.trust_remote_code", POLICY_TAG)
SHOWN = 100  # characters of a value


def refuse_changed_tags(version: Version, past: PastVerdict) -> None:
    """Raise RegistryError, which names each tag that is not what the evidence says."""
    found = tag_differences(version, past)
    if found:
        raise RegistryError(
            "the registry's tags are not what was judged: " + "; ".join(found),
            where=f"{version.name} version {version.version}",
            cure="somebody changed them after the promotion; `prepare promote` the run again, and "
            "check who may write to the registry",
        )


def tag_differences(version: Version, past: PastVerdict) -> list[str]:
    """Every tag of a promotion that is not what the evidence says, in words."""
    variant = past.bundle.variant
    wanted = {
        TUPLE_TAG: digest_json(past.members),
        POLICY_TAG: digest_json(past.judged.judge.parameters["policy"]),
        "prepare.recipe": past.bundle.recipe,
        "prepare.verdict": variant.verdict,
        "prepare.override": past.bundle.override or "",
        "prepare.trust_remote_code": as_tag(past.judged.trust_remote_code),
        WEIGHTS_TAG: str(past.members["weights"]),
        **{f"prepare.{name}": as_tag(member) for name, member in past.members.items()},
    }
    return [
        f"{tag} says {_shown(version.tags.get(tag))}, the evidence {_shown(value)}"
        for tag, value in wanted.items()
        if version.tags.get(tag, value if tag in LATER_TAGS else None) != value
    ]


def _shown(value: str | None) -> str:
    text = "nothing" if value is None else ascii(value)
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}..."
