"""`prepare push`: sends a registered version to an OCI registry."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from pipeline.cli.display import open_display
from pipeline.cli.options import (
    InsecureOption,
    JsonOption,
    PublicKeyOption,
    RegistryOption,
    StoreOption,
    argument,
)
from pipeline.cli.registry import find_asked
from pipeline.cli.tables import print_json

if TYPE_CHECKING:
    from artifacts.registry.oci_layout_registry import OciLayoutRegistry
    from artifacts.registry.oci_repository import OciRepository
    from pipeline.core.events import Progress


def push(
    reference: Annotated[
        str,
        argument("Registered name, '@', alias or version.", metavar="NAME@ALIAS"),
    ],
    destination: Annotated[
        str,
        argument(
            "Where to; or oci:///FOLDER. Without a tag: the alias, or v and the version's number.",
            metavar="HOST[:PORT]/REPOSITORY[:TAG]",
        ),
    ],
    insecure: InsecureOption = False,
    public_key: PublicKeyOption = None,
    registry: RegistryOption = None,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Send a registered version to an OCI registry, as a CNCF ModelPack.

    Files that the registry already has are not sent again; the manifest is sent
    last, so the tag never names an incomplete model. Logins are those of
    `docker login`.
    Needs the extra 'oci': pip install '.[oci]' in its clone.

    A folder of OCI layouts on this machine (oci:///FOLDER) needs no extra. It has
    aliases and a separate history, so the alias moves there as by a promotion.

    Examples

      prepare push smollm2-135m@champion registry.example.com/models/smollm2-135m

      prepare push smollm2-135m@3 localhost:5000/smollm2-135m:v3 --insecure

      prepare push smollm2-135m@champion oci:///srv/models

    Exit codes: 0 sent, 1 error, 2 usage.
    """
    from artifacts.registry.oci_repository import OciRepository
    from pipeline.environments.settings import load_settings
    from pipeline.release.oci_push import push_to_folder, push_version

    settings = load_settings(store, public_key=public_key)
    key = settings.signing.public_key
    with open_display(as_json=as_json) as progress:
        target = open_target(destination, insecure=insecure, progress=progress)
        found, version = find_asked(reference, registry, settings)
        wanted = reference.rpartition("@")[2]
        alias = wanted if wanted != version.version else None
        if isinstance(target, OciRepository):
            tag = target.tag or alias or f"v{wanted}"
            sent = push_version(found, version, target, tag, settings.digests, progress, key)
        else:
            sent = push_to_folder(found, version, target, alias, settings.digests, key)
    if as_json:
        print_json({"schema_version": 1, **vars(sent), **version.to_dict()})
        return
    print(
        f"{version.name} version {version.version} is {sent.reference}\n"
        f"  {sent.sent} blobs sent ({sent.sent_bytes / 1e6:,.1f} MB), {sent.present} were there\n"
        f"  {sent.digest}"
    )


def open_target(
    destination: str, *, insecure: bool, progress: Progress
) -> OciRepository | OciLayoutRegistry:
    """Return an OCI repository, or a folder of OCI layouts on this machine.

    Raises:
        UsageError: the destination is neither.
        RegistryError: the client for the network is not installed.
    """
    from artifacts.registry.oci_layout_registry import SCHEME, OciLayoutRegistry
    from artifacts.registry.oci_repository import OciRepository

    if destination.startswith(f"{SCHEME}/"):
        return OciLayoutRegistry(destination)
    return OciRepository(destination, insecure=insecure, progress=progress)
