"""Whether a recheck that a registry names was made, and found what it says.

A recheck is kept as a tag of the version, which whoever may write to the registry can set. Its
evidence is in the store that it was made in. So what stands is believed where that store is at
hand, and the evidence gives the verdict; what does not stand is believed always.
"""

from __future__ import annotations

from artifacts.deployable import JudgedTuple
from artifacts.evidence.judged_variant import JudgedVariant
from artifacts.evidence.recompute import check_run, claims_of
from artifacts.kept_runs import find_run
from pipeline.core.digest import digest_json
from pipeline.core.errors import PrepareError
from pipeline.core.store import Store
from pipeline.release.past_verdict import PastVerdict
from pipeline.release.recheck_record import RecheckRecord, stands


def proven_tuple(record: RecheckRecord, past: PastVerdict, store: Store) -> JudgedTuple | None:
    """The tuple that a recheck measured, where the store's evidence gives that the verdict stands.

    Args:
        record: as the registry has it.
        past: the version's verdict, by its evidence.
        store: where the recheck may have been made.

    Returns:
        None where the store has no such run, or the run says something else.
    """
    try:
        run = find_run(store, record.run)
        (check,) = check_run(run, store)
        judged = JudgedVariant.found(store.find, claims_of(run).judges[check.recipe])
        members = judged.deployable(store.find)
        trusted = judged.trust_remote_code
        found = JudgedTuple.of_members(members, f"run {run.run}", trust_remote_code=trusted)
    except (PrepareError, ValueError, LookupError, TypeError):
        return None  # not made here, or not kept: what it says has nothing to stand on
    same = (
        not check.differences
        and check.computed is not None
        and digest_json(members) == record.tuple_digest
        and members["weights"] == past.members["weights"]
        and judged.judge.parameters["policy"] == past.judged.judge.parameters["policy"]
    )
    held = same and stands(past.bundle.variant.verdict, str(check.computed))
    return found if held else None
