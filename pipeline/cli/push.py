"""`prepare push`: sends a registered version to an OCI registry."""

from __future__ import annotations

from typing import Annotated

import typer

from pipeline.cli.options import JsonOption, RegistryOption, StoreOption
from pipeline.cli.pull import InsecureOption


def push(
    reference: Annotated[
        str,
        typer.Argument(
            metavar="NAME@ALIAS",
            help="Registered name, '@', alias or version.",
            show_default=False,
        ),
    ],
    destination: Annotated[
        str,
        typer.Argument(
            metavar="HOST[:PORT]/REPOSITORY[:TAG]",
            help="Where to. Without a tag: the alias, or v and the version's number.",
            show_default=False,
        ),
    ],
    insecure: InsecureOption = False,
    registry: RegistryOption = None,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Send a registered version to an OCI registry, as a CNCF ModelPack.

    Files that the registry has already are not sent again; the manifest goes
    last, so the tag never names half a model. Logins are those of `docker login`.
    Needs the extra 'oci': pip install '.[oci]' in its clone.

    Examples

      prepare push smollm2-135m@champion registry.example.com/models/smollm2-135m

      prepare push smollm2-135m@3 localhost:5000/smollm2-135m:v3 --insecure

    Exit codes: 0 sent, 1 error, 2 usage.
    """
    from artifacts.registry.registry import open_registry
    from artifacts.registry.remote_repository import RemoteRepository
    from pipeline.cli.display import open_display
    from pipeline.cli.tables import print_json
    from pipeline.environments.settings import load_settings
    from pipeline.plan.prepare import registry_uri
    from pipeline.release.deployment import find_version
    from pipeline.release.publication import push_version

    settings = load_settings(store)
    with open_display(as_json=as_json) as progress:
        repository = RemoteRepository(destination, insecure=insecure, progress=progress)
        found = open_registry(registry_uri(registry, settings))
        version = find_version(found, reference)
        wanted = reference.rpartition("@")[2]
        tag = repository.tag or (f"v{wanted}" if wanted == version.version else wanted)
        sent = push_version(found, version, repository, tag, settings.digests, progress)
    if as_json:
        print_json(
            {
                "schema_version": 1,
                "reference": sent.reference,
                "digest": sent.digest,
                "sent": sent.sent,
                "sent_bytes": sent.sent_bytes,
                "present": sent.present,
                **version.to_dict(),
            }
        )
        return
    print(
        f"{version.name} version {version.version} is {sent.reference}\n"
        f"  {sent.sent} blobs sent ({sent.sent_bytes / 1e6:,.1f} MB), {sent.present} were there\n"
        f"  {sent.digest}"
    )
