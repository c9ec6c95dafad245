"""A checkpoint as an OCI artifact: CNCF ModelPack.

Each file of the folder is a layer of its own, unpacked and uncompressed (media types `.raw`), so a
layer's digest is the file's sha256. The manifest has no time in it: the same files with the same
tags have the same digest wherever they are packed.

Specification: https://github.com/modelpack/model-spec (docs/spec.md, docs/config.md, and the names
in specs-go/v1, which were `vnd.cnai` up to v0.0.6), on top of the OCI image specification 1.1
(manifest.md).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from pipeline.digest import digest_bytes
from pipeline.errors import RegistryError

MANIFEST_TYPE = "application/vnd.oci.image.manifest.v1+json"
ARTIFACT_TYPE = "application/vnd.cncf.model.manifest.v1+json"
CONFIG_TYPE = "application/vnd.cncf.model.config.v1+json"
WEIGHT_TYPE = "application/vnd.cncf.model.weight.v1.raw"
WEIGHT_CONFIG_TYPE = "application/vnd.cncf.model.weight.config.v1.raw"
DOC_TYPE = "application/vnd.cncf.model.doc.v1.raw"
CODE_TYPE = "application/vnd.cncf.model.code.v1.raw"
LAYER_TYPES = (WEIGHT_TYPE, WEIGHT_CONFIG_TYPE, DOC_TYPE, CODE_TYPE)

FILEPATH = "org.cncf.model.filepath"
# By this one `oras pull` names the files that it writes.
TITLE = "org.opencontainers.image.title"
# Annotations of other specifications; every other one is a tag of the version.
RESERVED = ("org.opencontainers.", "org.cncf.")

EVIDENCE_FOLDERS = ("prepare-evidence", ".eval_results")
DOC_STEMS = ("readme", "license", "licence", "notice", "use_policy")
DOC_SUFFIXES = (".md", ".pdf")


@dataclass(frozen=True)
class Blob:
    """Some bytes that a manifest names.

    Args:
        digest: `sha256:` and 64 hexadecimal digits.
        size: bytes.
    """

    digest: str
    size: int

    @classmethod
    def of(cls, content: bytes) -> Blob:
        """The blob of these bytes."""
        return cls(f"sha256:{digest_bytes(content)}", len(content))


@dataclass(frozen=True)
class PackedFile:
    """One file of the checkpoint, as a layer.

    Args:
        path: relative to the checkpoint's folder, with slashes.
        blob: its content.
    """

    path: str
    blob: Blob


@dataclass(frozen=True)
class ModelPack:
    """A manifest with what it names.

    Args:
        manifest: its bytes, whose sha256 is the pack's digest.
        config: the bytes of the model's description.
        files: the layers, in the manifest's order.
    """

    manifest: bytes
    config: bytes
    files: tuple[PackedFile, ...]

    @property
    def blob(self) -> Blob:
        """Digest and size of the manifest."""
        return Blob.of(self.manifest)


def pack(
    name: str,
    files: Iterable[PackedFile],
    tags: Mapping[str, str],
    checkpoint_config: Mapping[str, Any],
) -> ModelPack:
    """Describe the files of a checkpoint as a ModelPack.

    Args:
        name: of the model.
        files: all of its files.
        tags: of the version; they become annotations of the manifest.
        checkpoint_config: its config.json; {} where there is none.

    Raises:
        RegistryError: there are no files, or a tag has a name that OCI or ModelPack reserve.
    """
    ordered = tuple(sorted(files, key=lambda f: (LAYER_TYPES.index(media_type(f.path)), f.path)))
    if not ordered:
        raise RegistryError(
            f"there is no file to pack for '{name}'",
            where=name,
            cure="name a folder with a checkpoint in it",
        )
    check_tags(tags)
    config = as_json(
        {
            "descriptor": _descriptor(name, tags, checkpoint_config),
            "config": _execution(checkpoint_config),
            "modelfs": {"type": "layers", "diffIds": [file.blob.digest for file in ordered]},
        }
    )
    described = Blob.of(config)
    manifest = {
        "schemaVersion": 2,
        "mediaType": MANIFEST_TYPE,
        "artifactType": ARTIFACT_TYPE,
        "config": {
            "mediaType": CONFIG_TYPE,
            "digest": described.digest,
            "size": described.size,
        },
        "layers": [
            {
                "mediaType": media_type(file.path),
                "digest": file.blob.digest,
                "size": file.blob.size,
                "annotations": {FILEPATH: file.path, TITLE: file.path},
            }
            for file in ordered
        ],
        "annotations": dict(tags),
    }
    return ModelPack(as_json(manifest), config, ordered)


def read_pack(manifest: bytes, read_blob: Callable[[Blob], bytes]) -> ModelPack:
    """The pack that a manifest describes.

    Args:
        manifest: its bytes.
        read_blob: gives the bytes of the config.

    Raises:
        RegistryError: it is no ModelPack of single files, or a path leads out of the folder.
    """
    try:
        content = json.loads(manifest)
        if content["artifactType"] != ARTIFACT_TYPE:
            raise ValueError(f"its artifactType is {content['artifactType']}")
        if not isinstance(content.get("annotations") or {}, dict):
            raise ValueError("its annotations are no object")
        files = tuple(_packed_file(layer) for layer in content["layers"])
        paths = [file.path for file in files]
        if len(set(paths)) != len(paths):
            raise ValueError("two layers are the same file")
        config = Blob(str(content["config"]["digest"]), int(content["config"]["size"]))
    except (KeyError, TypeError, ValueError) as error:
        raise RegistryError(
            f"the manifest is none that prepare can unpack: {_words(error)}",
            where=Blob.of(manifest).digest,
            cure="name an artifact that was made by `prepare`, or is a CNCF ModelPack with one "
            "file a layer (media types ending in .raw)",
        ) from error
    return ModelPack(manifest, read_blob(config), files)


def tags_of(annotations: Mapping[str, Any]) -> dict[str, str]:
    """The annotations that are a version's tags."""
    return {k: str(v) for k, v in annotations.items() if not k.startswith(RESERVED)}


def check_tags(tags: Mapping[str, str]) -> None:
    """Raise RegistryError for a tag under a name that OCI or ModelPack reserve."""
    for key in tags:
        if key.startswith(RESERVED):
            raise RegistryError(
                f"'{key}' cannot be a tag: annotations of that name belong to another standard",
                where=key,
                cure=f"choose a name that does not begin with {' or '.join(RESERVED)}",
            )


def files_in(folder: Path) -> Iterator[tuple[str, Path]]:
    """Every file below a folder, sorted: its relative path with slashes, and where it is."""
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            yield path.relative_to(folder).as_posix(), path


def checkpoint_config(folder: Path) -> dict[str, Any]:
    """The checkpoint's config.json; {} where there is none, or none that can be read."""
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return config if isinstance(config, dict) else {}


def media_type(path: str) -> str:
    """What ModelPack calls a file of that path."""
    pure = PurePosixPath(path)
    name = pure.name.lower()
    if name.endswith(".safetensors"):
        return WEIGHT_TYPE
    if pure.parts[0] in EVIDENCE_FOLDERS or name.endswith(DOC_SUFFIXES):
        return DOC_TYPE
    if name.partition(".")[0] in DOC_STEMS or name == "model.sig":
        return DOC_TYPE
    return CODE_TYPE if name.endswith(".py") else WEIGHT_CONFIG_TYPE


def as_json(value: Any) -> bytes:
    """The value as JSON, in one way only: equal data has equal bytes."""
    return json.dumps(value, sort_keys=True, indent=2, allow_nan=False).encode("ascii")


def _packed_file(layer: Mapping[str, Any]) -> PackedFile:
    if layer["mediaType"] not in LAYER_TYPES:
        raise ValueError(f"a layer of media type {layer['mediaType']}")
    path = str(layer["annotations"][FILEPATH])
    pure = PurePosixPath(path)
    plain = pure.parts and not pure.is_absolute() and ".." not in pure.parts
    if not plain or "\0" in path or str(pure) != path:
        raise ValueError(f"{path!r} is no plain relative path")
    check_digest(str(layer["digest"]))
    return PackedFile(path, Blob(str(layer["digest"]), int(layer["size"])))


def check_digest(digest: str) -> None:
    """Raise ValueError where this is no sha256 digest as OCI writes them."""
    algorithm, _, encoded = digest.partition(":")
    if algorithm != "sha256" or len(encoded) != 64 or set(encoded) - set("0123456789abcdef"):
        raise ValueError(f"{digest!r} is no sha256 digest")


def _descriptor(name: str, tags: Mapping[str, str], config: Mapping[str, Any]) -> dict[str, Any]:
    known = {
        "name": name,
        "family": config.get("model_type"),
        "revision": tags.get("prepare.source.revision"),
    }
    return {key: value for key, value in known.items() if isinstance(value, str) and value}


def _execution(config: Mapping[str, Any]) -> dict[str, Any]:
    architectures = config.get("architectures")
    quantization = config.get("quantization_config")
    known = {
        "architecture": architectures[0]
        if isinstance(architectures, list) and architectures
        else None,
        "format": "safetensors",
        "precision": config.get("dtype") or config.get("torch_dtype"),
        "quantization": quantization.get("quant_method")
        if isinstance(quantization, dict)
        else None,
    }
    return {key: value for key, value in known.items() if isinstance(value, str) and value}


def _words(error: Exception) -> str:
    return f"it has no {error}" if isinstance(error, KeyError) else str(error)
