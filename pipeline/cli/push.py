"""`prepare push`: sends a registered version to an OCI registry."""

from __future__ import annotations

from typing import Annotated

from pipeline.cli.display import open_display
from pipeline.cli.options import (
    InsecureOption,
    JsonOption,
    RegistryOption,
    StoreOption,
    argument,
)
from pipeline.cli.registry import find_asked
from pipeline.cli.tables import print_json


def push(
    reference: Annotated[
        str,
        argument("Registered name, '@', alias or version.", metavar="NAME@ALIAS"),
    ],
    destination: Annotated[
        str,
        argument(
            "Where to. Without a tag: the alias, or v and the version's number.",
            metavar="HOST[:PORT]/REPOSITORY[:TAG]",
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
    from artifacts.registry.remote_repository import RemoteRepository
    from pipeline.environments.settings import load_settings
    from pipeline.release.publication import push_version

    settings = load_settings(store)
    with open_display(as_json=as_json) as progress:
        repository = RemoteRepository(destination, insecure=insecure, progress=progress)
        found, version = find_asked(reference, registry, settings)
        wanted = reference.rpartition("@")[2]
        tag = repository.tag or (f"v{wanted}" if wanted == version.version else wanted)
        sent = push_version(found, version, repository, tag, settings.digests, progress)
    if as_json:
        print_json({"schema_version": 1, **vars(sent), **version.to_dict()})
        return
    print(
        f"{version.name} version {version.version} is {sent.reference}\n"
        f"  {sent.sent} blobs sent ({sent.sent_bytes / 1e6:,.1f} MB), {sent.present} were there\n"
        f"  {sent.digest}"
    )
