"""The shape of the GPUs' data files: what `prepare plan --gpu` knows of a kind of GPU."""

from __future__ import annotations

from pydantic import Field

from recipes.config_model import ConfigModel, Name


class GpuType(ConfigModel):
    """One kind of GPU."""

    name: Name
    summary: str
    driver_name: str = Field(description="as the driver gives it; profiles are chosen by it")
    memory_gib: float = Field(
        gt=0,
        le=100_000,
        description="all memory that a process sees, in GiB: less than on the box, since the "
        "driver keeps some; what PyTorch prints as 'total capacity'",
    )
    compute_capability: float = Field(gt=0, le=100, description="such as 8.9; FP8 needs 8.9")
    memory_bandwidth_gb_per_s: float = Field(
        gt=0, le=1_000_000, description="published, in 10^9 bytes a second"
    )
    tflops_16_bit: float | None = Field(
        None,
        gt=0,
        le=1_000_000,
        description="published, of dense 16-bit matrices, in 10^12 a second; without it no time of "
        "a calibration is estimated",
    )

    @property
    def memory_bytes(self) -> int:
        """Bytes that a process sees."""
        return int(self.memory_gib * 2**30)
