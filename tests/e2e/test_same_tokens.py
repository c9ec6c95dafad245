"""How real classes and a real server read a tokenizer.json, compared before anything is asked."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from run_in_evaluate import run_in_evaluate

from pipeline.environments.settings import load_settings
from pipeline.preflight.tokenizer_faults import reading_faults
from pipeline.serving.server import Server
from prepare.errors import CheckpointError
from recipes.accelerator import Accelerator
from recipes.checkpoints.checkpoint import read_folder

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]

ALL = ("quantize", "serve", "evaluate")
ASK = """
import json, sys
sys.path.insert(0, sys.argv[1])
from eval_gates.model_tokenizer import Tokenizer
from eval_gates.server_tokens import check_server_tokens
from prepare.errors import StageError

notes = []
spec = {"url": "http://localhost", "socket": sys.argv[3], "model": "model", "concurrency": 4,
        "tokenizer": sys.argv[4]}
found = {}
try:
    check_server_tokens(spec, Tokenizer.load(sys.argv[4], {}, trust=False), notes.append)
except StageError as error:
    found = error.to_dict()
print("RESULT " + json.dumps({"notes": notes, "error": found}))
"""

LOAD = """
import json, sys
sys.path.insert(0, sys.argv[1])
from eval_gates.model_tokenizer import Tokenizer
from prepare.errors import StageError

found = {}
try:
    Tokenizer.load(sys.argv[3], {}, trust=sys.argv[4] == "trust")
except StageError as error:
    found = error.to_dict()
print("RESULT " + json.dumps(found))
"""
AS_WRITTEN = "import transformers\nclass AsWritten(transformers.PreTrainedTokenizerFast): pass\n"


@pytest.fixture
def changed(demo_model: Path, tmp_path: Path) -> Callable[..., Path]:
    """A copy of the demo checkpoint's small files; keys of its tokenizer are changed."""

    def make(file: str, **keys: object) -> Path:
        folder = tmp_path / "changed"
        folder.mkdir()
        for path in demo_model.iterdir():
            shutil.copy(path, folder)
        content = json.loads((folder / file).read_text())
        (folder / file).write_text(json.dumps(content | keys))
        return folder

    return make


def faults_of(folder: Path, home: Path) -> list[CheckpointError]:
    """Faults by the built environments, which nothing has accepted before."""
    settings = load_settings()
    fresh = home / "fresh"
    fresh.mkdir(exist_ok=True)
    (fresh / "environments").symlink_to(settings.home / "environments")
    own = settings.model_copy(update={"home": fresh})
    return list(reading_faults(read_folder(folder), ALL, Accelerator.CPU, own))


def test_every_environment_reads_the_demo_model_alike(demo_model: Path, tmp_path: Path) -> None:
    assert faults_of(demo_model, tmp_path) == []
    assert list((tmp_path / "fresh" / "accepted-tokenizers").iterdir())


@pytest.mark.parametrize("name", ["LlamaTokenizerFast", "CodeLlamaTokenizer", "GemmaTokenizer"])
def test_a_class_that_loses_spaces(changed: Callable[..., Path], tmp_path: Path, name: str) -> None:
    folder = changed("tokenizer_config.json", tokenizer_class=name)
    faults = faults_of(folder, tmp_path)
    assert faults
    for fault in faults:
        assert "key tokenizer_class" in fault.where
        assert fault.hint


@pytest.mark.parametrize(
    ("model_type", "named", "cure"),
    [
        ("llama", "LlamaTokenizerFast", {"tokenizer_class": "PreTrainedTokenizerFast"}),
        (
            *("qwen2", "Qwen2Tokenizer"),
            {
                "tokenizer_class": "PreTrainedTokenizerFast",
                "auto_map": {"AutoTokenizer": [None, "as_written.AsWritten"]},
            },
        ),
    ],
)
def test_the_hint_makes_the_class_read_the_file(
    changed: Callable[..., Path],
    tmp_path: Path,
    model_type: str,
    named: str,
    cure: dict[str, object],
) -> None:
    folder = changed("config.json", model_type=model_type)
    file = folder / "tokenizer_config.json"
    config = json.loads(file.read_text()) | {"tokenizer_class": named}
    file.write_text(json.dumps(config))
    fault = run_in_evaluate(LOAD, tmp_path, str(folder), "trust")
    for key, value in cure.items():
        assert f'"{key}": {json.dumps(value)}' in fault["hint"]
    (folder / "as_written.py").write_text(AS_WRITTEN)
    for line in AS_WRITTEN.splitlines() if "auto_map" in cure else ():
        assert f"'{line}'" in fault["hint"]
    file.write_text(json.dumps(config | cure))
    for trust in ("trust", "distrust"):  # `prepare gate` loads no code
        assert run_in_evaluate(LOAD, tmp_path, str(folder), trust) == {}


def test_a_file_that_no_class_loads(changed: Callable[..., Path], tmp_path: Path) -> None:
    folder = changed("tokenizer.json", pre_tokenizer={"type": "Unheard"})
    faults = faults_of(folder, tmp_path)
    assert faults
    assert all("tokenizer.json" in fault.where for fault in faults)


def test_the_server_is_compared_with_our_tokenizer(
    server: Server, demo_model: Path, changed: Callable[..., Path], tmp_path: Path
) -> None:
    same = run_in_evaluate(ASK, tmp_path, str(server.socket), str(demo_model))
    assert same == {"notes": [], "error": {}}
    # Capitals are other tokens in the model's file, and in the middle of a text too.
    other = changed("tokenizer.json", normalizer={"type": "Lowercase"})
    differing = run_in_evaluate(ASK, tmp_path, str(server.socket), str(other))
    assert differing["error"]["where"].startswith(f"{other}/tokenizer_config.json")
