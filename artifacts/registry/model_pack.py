"""A checkpoint as an OCI artifact: CNCF ModelPack.

Each file is an uncompressed layer (media types `.raw`), so a layer's digest is the file's sha256.
Without times, equal files and tags have equal digests.

Specification: https://github.com/modelpack/model-spec (spec.md, config.md, and the names in
specs-go/v1, which were `vnd.cnai` up to v0.0.6), and the OCI image specification 1.1 (manifest.md).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from pipeline.core.digest import digest_bytes
from pipeline.core.errors import RegistryError
from pipeline.core.untrusted.file import MEBIBYTE
from pipeline.core.untrusted.json import parse_json

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

# What registries take (OCI distribution specification, "Pushing manifests"), and some 14,000 files.
MANIFEST_BYTES = 4 * MEBIBYTE
MANIFEST_VALUES = 200_000
LARGEST_BLOB = 2**63 - 1
MAX_PATH_CHARACTERS = 1_024  # characters; each part of it may have 255 bytes

EVIDENCE_FOLDERS = ("prepare-evidence", ".eval_results")
DOC_STEMS = ("readme", "license", "licence", "notice", "use_policy")
DOC_SUFFIXES = (".md", ".pdf")


@dataclass(frozen=True)
class Blob:
    """Bytes that a manifest names."""

    digest: str  # `sha256:` and 64 hexadecimal digits
    size: int  # bytes

    @classmethod
    def of(cls, content: bytes) -> Blob:
        return cls(f"sha256:{digest_bytes(content)}", len(content))

    def descriptor(self, media_type: str, **more: Any) -> dict[str, Any]:
        """Return its descriptor for manifests and indexes; `more` adds members."""
        return {"mediaType": media_type, "digest": self.digest, "size": self.size, **more}


@dataclass(frozen=True)
class PackedFile:
    """One file of the checkpoint, as a layer."""

    path: str  # relative to the checkpoint's folder, with slashes
    blob: Blob  # its content


@dataclass(frozen=True)
class ModelPack:
    """A manifest with its config and files."""

    manifest: bytes  # its bytes, whose sha256 is the pack's digest
    config: bytes  # the bytes of the model's description
    files: tuple[PackedFile, ...]  # the layers, in the manifest's order

    @property
    def blob(self) -> Blob:
        return Blob.of(self.manifest)


def pack(
    name: str,
    files: Iterable[PackedFile],
    tags: Mapping[str, str],
    checkpoint_config: Mapping[str, Any],
) -> ModelPack:
    """Describe a checkpoint's files as a ModelPack; tags become annotations.

    Raises:
        RegistryError: there are no files, or OCI or ModelPack reserve a tag's name.
    """
    ordered = tuple(sorted(files, key=lambda f: (LAYER_TYPES.index(media_type(f.path)), f.path)))
    if not ordered:
        raise RegistryError(
            f"there is no file to pack for '{name}'",
            where=name,
            hint="name a folder with a checkpoint in it",
        )
    check_tags(tags)
    config = as_json(
        {
            "descriptor": _texts(
                name=name,
                family=checkpoint_config.get("model_type"),
                revision=tags.get("prepare.source.revision"),
            ),
            "config": _execution(checkpoint_config),
            "modelfs": {"type": "layers", "diffIds": [file.blob.digest for file in ordered]},
        }
    )
    manifest = {
        "schemaVersion": 2,
        "mediaType": MANIFEST_TYPE,
        "artifactType": ARTIFACT_TYPE,
        "config": Blob.of(config).descriptor(CONFIG_TYPE),
        "layers": [
            file.blob.descriptor(
                media_type(file.path), annotations={FILEPATH: file.path, TITLE: file.path}
            )
            for file in ordered
        ],
        "annotations": dict(tags),
    }
    return ModelPack(as_json(manifest), config, ordered)


def read_pack(manifest: bytes, read_blob: Callable[[Blob], bytes]) -> ModelPack:
    """Return the pack of a manifest, with the config that `read_blob` returns.

    Raises:
        RegistryError: it is not a ModelPack of single files, or a path leads out of the folder.
    """
    try:
        content = read_manifest(manifest)
        if content.get("artifactType") != ARTIFACT_TYPE:
            raise ValueError(f"its artifactType is {ascii(content.get('artifactType'))[:80]}")
        files = tuple(_packed_file(layer) for layer in content["layers"])
        paths = [file.path for file in files]
        if len(set(paths)) != len(paths):
            raise ValueError("two layers are the same file")
        folders = {str(parent) for path in paths for parent in PurePosixPath(path).parents}
        if both := sorted(folders & set(paths)):
            raise ValueError(f"{both[0]!r} is a file and a folder")
        config = _blob(content["config"])
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise RegistryError(
            f"prepare cannot unpack this manifest: {_words(error)}",
            where=Blob.of(manifest).digest,
            hint="name an artifact that was made by `prepare`, or is a CNCF ModelPack with one "
            "file a layer (media types ending in .raw)",
        ) from error
    return ModelPack(manifest, read_blob(config), files)


def read_manifest(manifest: bytes) -> dict[str, Any]:
    """Parse a manifest, whose annotations are text.

    Raises:
        ValueError: it is malformed, or larger than registries accept.
    """
    if len(manifest) > MANIFEST_BYTES:
        raise ValueError(f"it is larger than {MANIFEST_BYTES / MEBIBYTE:g} MiB")
    content = parse_json(manifest, values=MANIFEST_VALUES)
    if not isinstance(content, dict):
        raise ValueError("it is not a JSON object")
    annotations_of(content)
    return content


def annotations_of(holder: Mapping[str, Any]) -> dict[str, str]:
    """Return the annotations of a manifest, layer or index line, or {}.

    Raises:
        ValueError: they are not an object of text values.
    """
    found = holder.get("annotations")
    if found is None:
        return {}
    if not isinstance(found, dict) or not all(isinstance(each, str) for each in found.values()):
        raise ValueError("its annotations are not an object of texts")
    return dict(found)


def tags_of(annotations: Mapping[str, str]) -> dict[str, str]:
    """Return the annotations that are a version's tags."""
    return {k: v for k, v in annotations.items() if not k.startswith(RESERVED)}


def check_tags(tags: Mapping[str, str]) -> None:
    """Raise RegistryError for a tag name that OCI or ModelPack reserve."""
    for key in tags:
        if key.startswith(RESERVED):
            raise RegistryError(
                f"'{key}' cannot be a tag: annotations of that name belong to another standard",
                where=key,
                hint=f"choose a name that does not begin with {' or '.join(RESERVED)}",
            )


def files_in(folder: Path) -> Iterator[tuple[str, Path]]:
    """Yield the relative path, with slashes, and the path of every file in a folder, sorted."""
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            yield path.relative_to(folder).as_posix(), path


def checkpoint_config(folder: Path) -> dict[str, Any]:
    """Return the checkpoint's config.json; {} if missing or unreadable."""
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return config if isinstance(config, dict) else {}


def media_type(path: str) -> str:
    """Return ModelPack's media type for a path."""
    pure = PurePosixPath(path)
    name = pure.name.lower()
    if name.endswith((".safetensors", ".gguf")):
        return WEIGHT_TYPE
    if pure.parts[0] in EVIDENCE_FOLDERS or name.endswith(DOC_SUFFIXES):
        return DOC_TYPE
    if name.partition(".")[0] in DOC_STEMS or name == "model.sig":
        return DOC_TYPE
    return CODE_TYPE if name.endswith(".py") else WEIGHT_CONFIG_TYPE


def as_json(value: Any) -> bytes:
    """Serialize as canonical JSON: equal data gives equal bytes."""
    return json.dumps(value, sort_keys=True, indent=2, allow_nan=False).encode("ascii")


def _packed_file(layer: Mapping[str, Any]) -> PackedFile:
    if layer["mediaType"] not in LAYER_TYPES:
        raise ValueError(f"a layer of media type {ascii(layer['mediaType'])[:80]}")
    path = annotations_of(layer)[FILEPATH]
    pure = PurePosixPath(path)
    plain = pure.parts and not pure.is_absolute() and ".." not in pure.parts
    short = len(path) <= MAX_PATH_CHARACTERS and all(
        len(part.encode()) <= 255 for part in pure.parts
    )
    if not plain or not path.isprintable() or str(pure) != path or not short:
        raise ValueError(f"{ascii(path)[:80]} is not a plain relative path")
    return PackedFile(path, _blob(layer))


def _blob(described: Mapping[str, Any]) -> Blob:
    digest, size = described["digest"], described["size"]
    if not isinstance(digest, str):
        raise ValueError("a digest is not a text")
    check_digest(digest)
    if type(size) is not int or not 0 <= size <= LARGEST_BLOB:
        raise ValueError(f"{ascii(size)[:40]} is not a size of a file")
    return Blob(digest, size)


def check_digest(digest: str) -> None:
    """Raise ValueError unless this is a sha256 digest in OCI's form."""
    algorithm, _, encoded = digest.partition(":")
    if algorithm != "sha256" or len(encoded) != 64 or set(encoded) - set("0123456789abcdef"):
        raise ValueError(f"{ascii(digest)[:80]} is not a sha256 digest")


def _execution(config: Mapping[str, Any]) -> dict[str, str]:
    architectures = config.get("architectures")
    quantization = config.get("quantization_config")
    return _texts(
        architecture=architectures[0] if isinstance(architectures, list) and architectures else "",
        format="safetensors",
        precision=config.get("dtype") or config.get("torch_dtype"),
        quantization=quantization.get("quant_method") if isinstance(quantization, dict) else "",
    )


def _texts(**known: Any) -> dict[str, str]:
    """Return the values that are non-empty text; a checkpoint's config may have any values."""
    return {key: value for key, value in known.items() if isinstance(value, str) and value}


def _words(error: Exception) -> str:
    return f"it has no {error}" if isinstance(error, KeyError) else str(error)
