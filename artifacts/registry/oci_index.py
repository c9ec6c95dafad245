"""The index of an OCI layout in prepare's terms: versions, aliases, tags, counts.

The ref name `v3` is version 3; other ref names are aliases of the version with that manifest.
"""

from __future__ import annotations

import re
from typing import Any

from artifacts.registry.model_pack import Blob, annotations_of, read_manifest, tags_of
from artifacts.registry.oci_layout import OciLayout
from pipeline.core.errors import RegistryError

REF_NAME = "org.opencontainers.image.ref.name"
# Annotations of the index, about the layout as a whole.
APPLIED = "prepare.applied"
LAST_VERSION = "prepare.last_version"
# What registries take as a tag (OCI distribution specification, "Pulling manifests").
TAG = re.compile(r"[a-zA-Z0-9_][a-zA-Z0-9._-]{0,127}")
VERSION_REF = re.compile(r"v([1-9][0-9]{0,17})")

Index = dict[str, Any]
Descriptor = dict[str, Any]


def index_by_version(index: Index) -> dict[int, Descriptor]:
    """Return the index line of each version, by number."""
    matches = ((VERSION_REF.fullmatch(ref_name(each)), each) for each in index["manifests"])
    return {int(match[1]): descriptor for match, descriptor in matches if match}


def pointers(index: Index) -> dict[str, str]:
    """Return versions by alias, without those of other programs."""
    numbers = {
        each["digest"]: str(number) for number, each in sorted(index_by_version(index).items())
    }
    return {
        ref_name(each): numbers[each["digest"]]
        for each in index["manifests"]
        if is_no_versions_tag(ref_name(each)) and each["digest"] in numbers
    }


def ref_name(descriptor: Descriptor) -> str:
    """Return an index line's name; '' for none."""
    return str(descriptor.get("annotations", {}).get(REF_NAME, ""))


def is_no_versions_tag(name: str) -> bool:
    """Return whether it is a valid tag, but no version's."""
    return TAG.fullmatch(name) is not None and VERSION_REF.fullmatch(name) is None


def number_of(version: str) -> int:
    """Return the version's number, or 0, which no version has."""
    match = VERSION_REF.fullmatch(f"v{version}")
    return int(match[1]) if match else 0


def blob_of(descriptor: Descriptor) -> Blob:
    """Return the manifest of an index line."""
    return Blob(str(descriptor["digest"]), int(descriptor["size"]))


def version_tags(layout: OciLayout, descriptor: Descriptor) -> dict[str, str]:
    """Return a version's tags; those of its index line override its manifest's.

    Raises:
        RegistryError: the manifest is missing or damaged.
    """
    blob = blob_of(descriptor)
    try:
        manifest = read_manifest(layout.read_blob(blob))
        return tags_of(annotations_of(manifest) | annotations_of(descriptor))
    except ValueError as error:
        raise RegistryError(
            f"the manifest of a version is damaged: {error}",
            where=str(layout.blob_path(blob.digest)),
            hint="a user changed the layout: restore a copy of it, or register the version in "
            "another registry",
        ) from error


def count_of(layout: OciLayout, annotation: str) -> int:
    """Return a number of the whole layout from the index, or 0.

    Raises:
        RegistryError: it is not a number.
    """
    text = str(layout.read_index().get("annotations", {}).get(annotation, "0"))
    if not (text.isascii() and text.isdigit() and len(text) < 19):
        raise RegistryError(
            f"the annotation {annotation} of the index is not a number: {ascii(text)[:80]}",
            where=str(layout.folder),
            hint="a user changed it; set it to the largest number that the history, or the "
            "versions, have",
        )
    return int(text)
