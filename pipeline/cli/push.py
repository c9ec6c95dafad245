"""`prepare push`: copies a registered version to the Hub or to an OCI registry."""

from __future__ import annotations

import tempfile
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
            "hf://ORG/REPO[@TAG] or oci://HOST[:PORT]/REPOSITORY[:TAG]. Without a tag: the alias, "
            "or v and the version's number.",
            metavar="ADDRESS",
        ),
    ],
    with_questions: Annotated[
        bool,
        option("--with-questions", "Send the recorded questions and answers, too."),
    ] = False,
    insecure: InsecureOption = False,
    public_key: PublicKeyOption = None,
    registry: RegistryOption = None,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Copy a registered version to the Hugging Face Hub or to an OCI registry.

    The files are checked first. A copy has no aliases: `prepare pull` fetches it by
    the digest that is printed. Files that are there already are not sent again. A
    repository on the Hub is made private. Without --with-questions the copy has the
    weights, the numbers and the digests, and `prepare verify` cannot judge it again.
    Logins are those of `hf auth login` and
    `docker login`.

    Examples

      prepare push smollm2-135m@champion hf://my-org/smollm2-135m-fp8

      prepare push smollm2-135m@3 oci://registry.example.com/models/smollm2-135m

    Exit codes: 0 sent, 1 error, 2 usage.
    """
    from artifacts.deploy.registered import check_files
    from artifacts.push import push as send
    from pipeline.environments.settings import load_settings

    settings = load_settings(store, public_key=public_key)
    registered, version = find_asked(reference, registry, settings)
    wanted = reference.rpartition("@")[2]
    tag = wanted if wanted != version.version else f"v{wanted}"
    with open_display(as_json=as_json) as progress, tempfile.TemporaryDirectory() as temporary:
        folder = Path(version.source)
        if not folder.is_dir():
            folder = Path(temporary)
            registered.fetch(version, folder)
        check_files(version, folder, settings.digests, public_key=settings.signing.public_key)
        sent = send(
            version,
            folder,
            destination,
            tag,
            with_questions=with_questions,
            digests=settings.digests,
            progress=progress,
            insecure=insecure,
        )
    if as_json:
        print_json({"schema_version": 1, **vars(sent), **version.to_dict()})
        return
    print(
        f"{version.name} version {version.version} is {sent.reference}\n"
        f"  {sent.files} files, {sent.sent_bytes / 1e6:,.1f} MB sent\n"
        f"  {sent.digest_reference}"
    )
