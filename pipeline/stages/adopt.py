"""Takes existing weights instead of quantizing.

Registered weights become links; others are copied, as they may change.
"""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path

from pydantic import Field

from pipeline.stages.context import StageContext
from pipeline.stages.quantize import QuantizeResult, WeightsProvenance
from prepare.digest import digest_file
from prepare.errors import StageError, raise_as
from prepare.record import Record
from prepare.stage import Stage
from recipes.checkpoints.weight_files import weight_files, weights_digest


class AdoptParameters(WeightsProvenance):
    """The weights, and how they were made."""

    files: dict[str, str] = Field(description="digest of each, by name")
    made: QuantizeResult | None = Field(None, description="None for others' weights")
    copied: bool = Field(False, description="so that they can be promoted")


class AdoptRuntime(Record):
    """Place of the weights."""

    folder: str


ADOPT = Stage("adopt", 2, AdoptParameters, AdoptRuntime, QuantizeResult)


# Another file system, one without hard links, or another user's files (fs.protected_hardlinks).
NO_HARD_LINK = (errno.EXDEV, errno.EPERM, errno.EACCES, errno.EMLINK, errno.ENOTSUP)


def run(context: StageContext[AdoptParameters, AdoptRuntime]) -> QuantizeResult:
    """Link or copy the files that count."""
    folder = Path(context.runtime.folder)
    output = context.output_folder()
    wanted = context.parameters.files
    for number, (name, digest) in enumerate(sorted(wanted.items())):
        context.advance("adopt", number, len(wanted), "files")
        source = folder / name
        place = output / name
        with raise_as(StageError, "a file of the variant cannot be taken over", str(source)):
            place.parent.mkdir(exist_ok=True)
            if context.parameters.copied:
                shutil.copyfile(source, place)
            else:
                link(source, place)
            present = digest_file(place)
        if present != digest:
            raise StageError(
                "a file of the weights changed while it was read",
                where=str(source),
                hint="run the command again; get registered weights again by prepare pull "
                "NAME@ALIAS",
            )
    context.advance("adopt", len(wanted), len(wanted), "files")
    made = context.parameters.made or QuantizeResult(weights_digest="", weights_bytes=0)
    return made.model_copy(
        update={
            "weights_digest": weights_digest(output, lambda file: wanted[file.name]),
            "weights_bytes": sum(file.stat().st_size for file in weight_files(output)),
        }
    )


def link(source: Path, place: Path) -> None:
    """Link the file there."""
    try:
        # A link in the folder is followed, so that no link points to a link.
        os.link(source.resolve(), place)
    except OSError as error:
        if error.errno not in NO_HARD_LINK:
            raise
        place.symlink_to(source.resolve())
