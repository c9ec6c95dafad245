"""`prepare export`: writes files that deploy a registered version elsewhere."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pipeline.cli.options import (
    JsonOption,
    PublicKeyOption,
    ReferenceArgument,
    RegistryOption,
    StoreOption,
    TrustOption,
    WeightsOption,
    argument,
    option,
    parse_path,
)
from pipeline.cli.registry import find_asked
from pipeline.cli.tables import print_json
from prepare.credentials import strip_credentials
from prepare.errors import UsageError


def export(
    reference: ReferenceArgument,
    destination: Annotated[Path, argument("Folder to make.", metavar="DIR", parser=parse_path)],
    target: Annotated[
        str,
        option(
            "--for",
            "What reads the files: kubernetes, argo-rollouts, litellm, monitoring or watch.",
            metavar="TARGET",
        ),
    ],
    image: Annotated[
        str | None,
        option("--image", "Image of `make image`. Default: prepare:cpu or prepare:cuda."),
    ] = None,
    source: Annotated[
        str | None,
        option(
            "--from",
            "Where containers fetch the files: a registry, or what `prepare push` printed, "
            "oci://HOST/REPOSITORY@sha256:... Default: the registry.",
            parser=strip_credentials,
            metavar="ADDRESS",
        ),
    ] = None,
    canary: Annotated[
        str | None,
        option("--canary", "Alias or version that gets a share of the requests."),
    ] = None,
    canary_weight: Annotated[
        int, option("--canary-weight", "Its share in percent.", show_default=True, min=1, max=99)
    ] = 10,
    weights: WeightsOption = None,
    trust_remote_code: TrustOption = False,
    public_key: PublicKeyOption = None,
    registry: RegistryOption = None,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Write commented files that deploy a registered version as it was judged.

    Files, tags and evidence are checked as by `prepare serve`. Arguments, environment
    and limits come from the evidence. Nothing is applied.

    Examples

      prepare export smollm2-135m@champion ./deploy --for kubernetes --image HOST/prepare@sha256:...

      prepare export smollm2-135m@champion ./alerts --for monitoring

    Exit codes: 0 written, 1 error, 2 usage.
    """
    from artifacts.deploy.export import TARGETS, other_versions, read_version, write_export
    from pipeline.environments.settings import load_settings

    if target not in TARGETS:
        raise UsageError(
            f"there is no export for '{target}'", where="--for", hint=f"known: {', '.join(TARGETS)}"
        )
    settings = load_settings(store, public_key=public_key)
    registered, version = find_asked(reference, registry, settings)
    canary_version, previous = other_versions(registered, version, canary)
    made = read_version(
        version,
        weights,
        settings,
        trust_remote_code=trust_remote_code,
        image=image,
        source=source or registered.uri,
        canary=canary_version,
        canary_weight=canary_weight,
        previous=previous,
    )
    files = write_export(made, target, destination)
    if as_json:
        facts = {"name": version.name, "version": version.version, "target": target}
        print_json({"schema_version": 1, **facts, "files": [str(file) for file in files]})
        return
    print(f"{version.name} version {version.version} for {target}; nothing was applied")
    for file in files:
        print(f"  {file}")
