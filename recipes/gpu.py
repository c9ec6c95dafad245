"""Data files of GPU types, for `prepare plan --gpu`."""

from __future__ import annotations

from pydantic import Field

from recipes.config_model import ConfigModel, Name


class GpuType(ConfigModel):
    """One type of GPU."""

    name: Name
    summary: str
    driver_name: str = Field(description="name that the driver reports; profiles are chosen by it")
    memory_gib: float = Field(
        gt=0,
        le=100_000,
        description="memory that a process can use, in GiB: less than the advertised size, because "
        "the driver reserves some; PyTorch prints it as 'total capacity'",
    )
    compute_capability: float = Field(gt=0, le=100, description="such as 8.9; FP8 needs 8.9")

    @property
    def memory_bytes(self) -> int:
        return int(self.memory_gib * 2**30)
