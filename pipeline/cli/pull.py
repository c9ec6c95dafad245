"""`prepare pull`: copies a version's files, and checks that they are the judged ones."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

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
from prepare.credentials import strip_credentials
from prepare.errors import UsageError

if TYPE_CHECKING:
    from artifacts.registry import Version


def pull(
    reference: Annotated[
        str,
        argument(
            "Registered name, '@', alias or version; or the address of a copy.",
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
            "Tag that the version must have, such as prepare.manifest=DIGEST; repeatable.",
            metavar="TAG=VALUE",
        ),
    ] = None,
    registry: RegistryOption = None,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Copy a registered version's files into a new folder, digests checked.

    The folder appears when it is complete and equal to the judged files. What
    `prepare push` sent is hf://ORG/REPO@COMMIT or oci://HOST/REPOSITORY@DIGEST.

    Examples

      prepare pull smollm2-135m@champion ./deploy

      prepare pull smollm2-135m@3 ./deploy --registry http://mlflow.example:5000

      prepare pull smollm2-135m@champion ./deploy --public-key signer.pub

      prepare pull oci://registry.example.com/models/smollm2-135m@sha256:... ./deploy

    Exit codes: 0 copied, 1 error (also: files that differ from the
    judged ones), 2 usage.
    """
    from artifacts.deploy.registered import fetch_copy, pull_version
    from pipeline.environments.settings import load_settings

    settings = load_settings(store, public_key=public_key)
    key = settings.signing.public_key
    required = dict(word.partition("=")[::2] for word in require or ())
    if unfit := [word for word in require or () if "=" not in word]:
        raise UsageError(
            f"'{unfit[0]}' requires no value of a tag",
            where=f"--require {unfit[0]}",
            hint="write --require TAG=VALUE",
        )
    asked = None if "://" in reference else find_asked(reference, registry, settings)
    with open_display(as_json=as_json) as progress:

        def fetch(folder: Path) -> Version:
            if asked is None:
                return fetch_copy(reference, folder, progress, insecure=insecure)
            asked[0].fetch(asked[1], folder)
            return asked[1]

        version, files = pull_version(fetch, destination, key, required)
    folder = str(destination.resolve())
    if as_json:
        print_json({"schema_version": 1, "folder": folder, "files": files, **version.to_dict()})
        return
    print(f"{version.name} version {version.version}: {files} files, as judged\n  {folder}")
