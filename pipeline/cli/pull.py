"""`prepare pull`: copies a version's files, and checks that they are the judged ones."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pipeline.cli.display import open_display
from pipeline.cli.options import (
    InsecureOption,
    JsonOption,
    PublicKeyOption,
    RegistryOption,
    StoreOption,
    argument,
    option,
    parse_path,
)
from pipeline.cli.registry import find_asked
from pipeline.cli.tables import print_json
from pipeline.core.credentials import strip_credentials


def pull(
    reference: Annotated[
        str,
        argument(
            "Registered name, '@', alias or version; or oci://HOST/REPOSITORY:TAG.",
            metavar="NAME@ALIAS",
            parser=strip_credentials,
        ),
    ],
    destination: Annotated[Path, argument("Folder to make.", metavar="DEST", parser=parse_path)],
    insecure: InsecureOption = False,
    public_key: PublicKeyOption = None,
    require: Annotated[
        list[str] | None,
        option(
            "--require",
            "Tag that the version must have, such as prepare.weights=DIGEST; repeatable.",
            metavar="TAG=VALUE",
        ),
    ] = None,
    registry: RegistryOption = None,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Copy a registered version's files into a new folder, digests checked.

    The folder appears when it is complete and equal to the judged files. A version
    that `prepare push` sent is oci://HOST/REPOSITORY:TAG or @DIGEST.

    Examples

      prepare pull smollm2-135m@champion ./deploy

      prepare pull smollm2-135m@3 ./deploy --registry http://mlflow.example:5000

      prepare pull smollm2-135m@champion ./deploy --public-key signer.pub

      prepare pull oci://registry.example.com/models/smollm2-135m:champion ./deploy

    Exit codes: 0 copied, 1 error (also: files that differ from the
    judged ones), 2 usage.
    """
    from artifacts.registry.oci_repository import SCHEME, OciRepository
    from pipeline.environments.settings import load_settings
    from pipeline.release.deployment import pull_version

    settings = load_settings(store, public_key=public_key)
    key = settings.signing.public_key
    required = dict(each.partition("=")[::2] for each in require or ())
    if reference.startswith(SCHEME):
        with open_display(as_json=as_json) as progress:
            remote = OciRepository(reference, insecure=insecure, progress=progress)
            version = remote.version()
            files = pull_version(remote, version, destination, key, required)
    else:
        found, version = find_asked(reference, registry, settings)
        files = pull_version(found, version, destination, key, required)
    folder = str(destination.resolve())
    if as_json:
        print_json({"schema_version": 1, "folder": folder, "files": files, **version.to_dict()})
        return
    print(f"{version.name} version {version.version}: {files} files, as judged\n  {folder}")
