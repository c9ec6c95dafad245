"""A checkpoint's files as a ModelPack manifest, and what is refused to be unpacked."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import pytest

from artifacts.registry.model_pack import (
    FILEPATH,
    Blob,
    ModelPack,
    PackedFile,
    media_type,
    pack,
    read_pack,
    tags_of,
)
from pipeline.core.errors import RegistryError

CONFIG = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "dtype": "bfloat16",
    "quantization_config": {"quant_method": "compressed-tensors"},
}
CONTENTS = {
    "tokenizer.json": b"{}",
    "model-00002-of-00002.safetensors": b"two",
    "model-00001-of-00002.safetensors": b"one",
    "README.md": b"# card",
    "prepare-evidence/answers/mmlu.jsonl.gz": b"answers",
    "modeling_own.py": b"print()",
    "empty": b"",
}
TAGS = {"prepare.tuple": "abc", "prepare.override": "", "prepare.source.revision": "f00"}


def packed(**changes: Any) -> ModelPack:
    files = [PackedFile(path, Blob.of(content)) for path, content in CONTENTS.items()]
    arguments = {"name": "m", "files": files, "tags": TAGS, "checkpoint_config": CONFIG}
    return pack(**(arguments | changes))


def changed(**changes: Any) -> bytes:
    """The manifest with some keys changed."""
    return json.dumps(json.loads(packed().manifest) | changes).encode()


def layer(**changes: Any) -> dict[str, Any]:
    """One layer with some keys changed."""
    return json.loads(packed().manifest)["layers"][0] | changes


def test_the_manifest_is_what_the_specifications_say() -> None:
    made = packed()
    manifest = json.loads(made.manifest)
    assert manifest["schemaVersion"] == 2
    assert manifest["mediaType"] == "application/vnd.oci.image.manifest.v1+json"
    assert manifest["artifactType"] == "application/vnd.cncf.model.manifest.v1+json"
    assert manifest["annotations"] == TAGS
    assert manifest["config"] == {
        "mediaType": "application/vnd.cncf.model.config.v1+json",
        "digest": f"sha256:{hashlib.sha256(made.config).hexdigest()}",
        "size": len(made.config),
    }
    for each in manifest["layers"]:
        content = CONTENTS[each["annotations"][FILEPATH]]
        assert each["digest"] == f"sha256:{hashlib.sha256(content).hexdigest()}"
        assert each["size"] == len(content)
    assert made.blob.digest == f"sha256:{hashlib.sha256(made.manifest).hexdigest()}"


def test_the_config_describes_the_model() -> None:
    made = packed()
    config = json.loads(made.config)
    layers = json.loads(made.manifest)["layers"]
    assert config == {
        "descriptor": {"name": "m", "family": "llama", "revision": "f00"},
        "config": {
            "architecture": "LlamaForCausalLM",
            "format": "safetensors",
            "precision": "bfloat16",
            "quantization": "compressed-tensors",
        },
        "modelfs": {"type": "layers", "diffIds": [each["digest"] for each in layers]},
    }


def test_a_config_that_says_nothing_is_no_obstacle() -> None:
    strange = {"architectures": "x", "quantization_config": 3, "dtype": None, "model_type": 7}
    for config in ({}, strange):
        described = json.loads(packed(checkpoint_config=config, tags={}).config)
        assert described["descriptor"] == {"name": "m"}
        assert described["config"] == {"format": "safetensors"}


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("model.safetensors", "weight.v1.raw"),
        ("config.json", "weight.config.v1.raw"),
        ("model.safetensors.index.json", "weight.config.v1.raw"),
        ("chat_template.jinja", "weight.config.v1.raw"),
        ("README.md", "doc.v1.raw"),
        ("LICENSE", "doc.v1.raw"),
        ("LICENSE.txt", "doc.v1.raw"),
        ("prepare-evidence/manifest.json", "doc.v1.raw"),
        (".eval_results/mmlu.yaml", "doc.v1.raw"),
        ("model.sig", "doc.v1.raw"),
        ("modeling_own.py", "code.v1.raw"),
    ],
)
def test_each_file_has_its_kind(path: str, kind: str) -> None:
    assert media_type(path) == f"application/vnd.cncf.model.{kind}"


def test_the_order_of_the_files_does_not_matter() -> None:
    files = [PackedFile(path, Blob.of(content)) for path, content in CONTENTS.items()]
    assert packed(files=files[::-1]).manifest == packed().manifest
    assert [file.path for file in packed().files][:2] == [
        "model-00001-of-00002.safetensors",
        "model-00002-of-00002.safetensors",
    ]


def test_nothing_to_pack() -> None:
    with pytest.raises(RegistryError) as caught:
        packed(files=[])
    assert caught.value.where == "m"


def test_a_tag_of_another_standard() -> None:
    with pytest.raises(RegistryError) as caught:
        packed(tags={"org.opencontainers.image.ref.name": "v1"})
    assert caught.value.where == "org.opencontainers.image.ref.name"
    assert tags_of({"org.opencontainers.image.title": "x", "prepare.run": "r"}) == {
        "prepare.run": "r"
    }


def test_what_was_packed_is_read_again() -> None:
    made = packed()
    assert read_pack(made.manifest, lambda blob: made.config) == made


@pytest.mark.parametrize(
    ("manifest", "reason"),
    [
        (b"{", "Expecting property name"),
        (b"[]", "not a JSON object"),
        (b"{}", "its artifactType is None"),
        (changed(artifactType="application/x"), "its artifactType is 'application/x'"),
        (changed(layers=None), "not iterable"),
        (changed(layers=[layer(mediaType="a/tar")]), "a layer of media type 'a/tar'"),
        (changed(layers=[layer(annotations={})]), FILEPATH),
        (changed(layers=[layer(digest="md5:0")]), "md5:0"),
        (changed(layers=[layer(), layer()]), "two layers are the same file"),
        (changed(config={}), "it has no 'digest'"),
    ],
)
def test_another_manifest_is_refused(manifest: bytes, reason: str) -> None:
    with pytest.raises(RegistryError) as caught:
        read_pack(manifest, lambda blob: b"")
    assert reason in caught.value.message


@pytest.mark.parametrize(
    "path", ["../out", "/etc/passwd", "a/../../out", "", ".", "a//b", "./a", "a/", "..", "a\0b"]
)
def test_a_path_out_of_the_folder_is_refused(path: str) -> None:
    bad = changed(layers=[layer(annotations={FILEPATH: path})])
    with pytest.raises(RegistryError, match="plain relative path"):
        read_pack(bad, lambda blob: b"")
