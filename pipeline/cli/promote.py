"""`prepare promote`: registers a finished run's variant and moves the alias to it."""

from __future__ import annotations

from typing import Annotated

import typer

from pipeline.cli.display import open_display
from pipeline.cli.options import (
    IfCurrentOption,
    JsonOption,
    NameOption,
    RegistryOption,
    SignOption,
    StoreOption,
    option,
)
from pipeline.cli.tables import print_json
from prepare.own_command import own_command


def promote(
    run: Annotated[
        str,
        typer.Argument(
            metavar="RUN[:VARIANT]",
            help="Run id, its beginning, or 'latest'; VARIANT is a recipe. Default: of those that "
            "passed, the one that the policy prefers.",
        ),
    ] = "latest",
    override: Annotated[
        str | None,
        option(
            "--override",
            "Promote a variant that did not pass; the reason is kept in the history.",
            metavar="REASON",
        ),
    ] = None,
    name: NameOption = None,
    registry: RegistryOption = None,
    alias: Annotated[str | None, option("--alias", "Alias to move. Default: the policy's.")] = None,
    if_current: IfCurrentOption = None,
    sign: SignOption = False,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Promote a variant of a finished run.

    Its verdict is first computed again from the kept answers. If another user moves
    the alias in the meantime, nothing moves.

    Examples

      prepare promote

      prepare promote 20261121-0915:awq-w4a16

      prepare promote latest --alias candidate

      prepare promote latest:fp8-dynamic --override "agreed with the team: short-lived test"

    Exit codes: 0 promoted, 1 error (also: the alias moved meanwhile), 2 usage
    (also: no variant passed).
    """
    from artifacts.candidate import PromotionRequest
    from artifacts.evidence.signing import find_signer
    from artifacts.promotion import promote_run
    from artifacts.run_record import find_run
    from pipeline.environments.settings import load_settings

    settings = load_settings(store)
    opened = settings.open_store()
    run_id, _, variant = run.partition(":")
    report = find_run(opened, run_id, judged=True)
    order = PromotionRequest(
        registry=settings.registry_uri(registry or report.registry),
        variant=variant or None,
        override=override,
        name=name,
        alias=alias,
        replaces=if_current,
        signer=find_signer(settings, sign=sign),
    )
    with open_display(as_json=as_json) as progress:
        promoted = promote_run(report, opened, order, progress)
    if as_json:
        print_json({"schema_version": 1, "run": report.run, **promoted.model_dump()})
        return
    why = f", {promoted.preferred}" if promoted.preferred else ""
    replaced = f", replacing version {promoted.replaced}" if promoted.replaced else ""
    history = own_command("registry", promoted.name, "--history", registry=report.registry)
    print(
        f"{promoted.name}@{promoted.alias} is version {promoted.versions[promoted.champion]} "
        f"({promoted.champion}{why}){replaced}\n  {promoted.registry}\n"
        f"Next: {history}"
    )
