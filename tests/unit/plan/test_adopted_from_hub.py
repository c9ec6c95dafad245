"""A variant on the Hub: found by its headers, fetched at a revision, and named in the recipe.

huggingface_hub reads its settings when it is imported, so this is done in a child process.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from foreign_variants import foreign_files
from hub_stand_in import HubStandIn, Repository
from small_checkpoint import write_files
from sound_variants import source_files

CHILD = """
import json, sys
from pathlib import Path
sys.path[:0] = [sys.argv[1], sys.argv[1] + "/.."]
from asked_run import request_for
from listener import Listener
from pipeline.environments.settings import Settings
from pipeline.plan.adopted_variants import with_facts
from pipeline.plan.checkpoint_resolver import Locator
from pipeline.plan.resolved_options import choose

folder = Path(sys.argv[2])
settings = Settings(home=folder / "home", store=folder / "store", environments={})
request = request_for(str(folder / "source"), variants=("vendor/It-FP8@v1",), profile="cpu")
choices = choose(request, settings)
found = Locator(choices.profile, settings, lambda _: folder, Listener()).all(choices).adopted
(variant,) = with_facts(choices.adopted, found)
print(json.dumps(variant.recipe.model_dump(mode="json")))
"""
CARD = b"---\nlicense: other\nlicense_name: vendor-terms\n---\n"


def test_a_revision_of_a_vendor(tmp_path: Path) -> None:
    write_files(tmp_path / "source", source_files())
    with HubStandIn() as hub:
        files = foreign_files("modelopt-nvfp4") | {"README.md": CARD}
        hub.models["vendor/It-FP8"] = Repository(files, ("main", "v1"))
        environment = {k: v for k, v in os.environ.items() if not k.startswith("HF_")}
        done = subprocess.run(
            [sys.executable, "-c", CHILD, str(Path(__file__).parents[1]), str(tmp_path)],
            env=environment
            | {
                "HF_ENDPOINT": hub.url,
                "HF_HOME": str(tmp_path / "hf"),
                "HF_HUB_DISABLE_XET": "1",
                "NO_PROXY": "127.0.0.1,localhost",
            },
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        commit = hub.models["vendor/It-FP8"].commit
    assert done.returncode == 0, done.stderr[-3000:]
    recipe = json.loads(done.stdout)
    assert (recipe["name"], recipe["family"]) == ("it-fp8", "fp4")
    made = recipe["quantization"]
    assert (made["origin"], made["revision"]) == ("vendor/It-FP8", commit)
    assert (made["license"], made["producer"]) == ("vendor-terms", "modelopt 0.33.0")
    assert len(made["digest"]) == 64
