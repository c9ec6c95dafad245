"""`prepare serve`: serves a registered version as it was judged, or names the differences."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

from pipeline.cli.display import open_display
from pipeline.cli.options import (
    JsonOption,
    PublicKeyOption,
    ReferenceArgument,
    RegistryOption,
    StoreOption,
    TrustOption,
    WeightsOption,
    option,
)
from pipeline.cli.registry import find_asked
from pipeline.cli.tables import print_json


def serve(
    reference: ReferenceArgument,
    port: Annotated[
        int, option("--port", "Port on --host.", show_default=True, min=1, max=65535)
    ] = 8000,
    host: Annotated[
        str,
        option(
            "--host",
            "IP address to listen on. An address other than the loopback needs a key in "
            "VLLM_API_KEY.",
            show_default=True,
        ),
    ] = "127.0.0.1",
    weights: WeightsOption = None,
    draft_model: Annotated[
        Path | None,
        option("--draft-model", "Folder of the draft model, if the version was judged with one."),
    ] = None,
    allow_mismatch: Annotated[
        bool, option("--allow-mismatch", "Serve even if this machine differs from the judged one.")
    ] = False,
    trust_remote_code: TrustOption = False,
    check: Annotated[
        bool, option("--check", "Only check whether it would be the judged tuple.")
    ] = False,
    ready_timeout: Annotated[
        float,
        option("--ready-timeout", "Seconds until it must answer.", show_default=True, min=1),
    ] = 1800,
    public_key: PublicKeyOption = None,
    registry: RegistryOption = None,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Serve a registered version with exactly the engine and arguments it was judged with.

    The digests of its files are checked. The arguments come from the evidence next
    to its weights; tags that differ are refused. If engine, environment, hardware or
    the kernels of the started server are not those of the verdict, it refuses and
    names the difference. Ctrl-C ends it.

    It listens on this machine only. With --host 0.0.0.0 it answers every client
    that has the key, over plain HTTP. Every path needs the key, except that of
    the server's health. The port opens when the kernels are checked.

    Examples

      prepare serve smollm2-135m@champion --port 8000

      VLLM_API_KEY=... prepare serve smollm2-135m@champion --host 0.0.0.0

      prepare serve smollm2-135m@champion --check --json

    Exit codes: 1 error (also: this machine differs), 2 usage, 130 ended by Ctrl-C.
    """
    from artifacts.deploy.serve import Deployment
    from pipeline.environments.settings import load_settings
    from pipeline.serving.front import format_for_url, reachable_address
    from prepare.escape import make_visible

    settings = load_settings(store, public_key=public_key)
    _, version = find_asked(reference, registry, settings)
    with open_display(as_json=as_json) as progress:
        deployment = Deployment(
            version,
            weights,
            settings,
            progress,
            trust_remote_code=trust_remote_code,
            draft=draft_model,
        )
        differences = deployment.differences()
        deployment.check_host(host)
        if differences and not allow_mismatch:
            deployment.refuse(differences)
        facts = {
            "schema_version": 1,
            "name": version.name,
            "version": version.version,
            "differences": differences,
            "weights": str(deployment.weights),
            "arguments": deployment.judged.serving.to_dict(),
            "started_with": deployment.judged.kernels or {},
        }
        if check:
            if as_json:
                print_json(facts)
            else:
                words = "; ".join(differences) or "nothing differs from what was judged"
                print(f"{version.name} version {version.version}: {words}")
                for fact, told in (deployment.judged.kernels or {}).items():
                    print(make_visible(f"  judged with {fact.replace('_', ' ')}: {told}"))
            return
        url = f"http://{format_for_url(reachable_address(deployment.check_host(host)))}:{port}"
        with deployment.start_server(
            port, ready_timeout, host, allow_mismatch=allow_mismatch
        ) as server:
            if as_json:
                # One line, immediately: its reader waits for it.
                line = json.dumps({**facts, "url": f"{url}/v1", "host": host, "model": "model"})
                print(line, flush=True)
            else:
                print(
                    f"{version.name} version {version.version} answers at {url}/v1 as "
                    f"'model', listening on {host}; Ctrl-C ends it",
                    flush=True,
                )
            deployment.watch(server)
