"""A recipe that changes some keys of another: merged deep, explained where it cannot be."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from prepare.errors import UsageError
from recipes import catalog
from recipes.quantizers.awq import AwqQuantization
from recipes.quantizers.gptq import GptqQuantization


def write(path: Path, **data: Any) -> str:
    path.write_text(yaml.safe_dump(data))
    return str(path)


def refused(name: str) -> UsageError:
    with pytest.raises(UsageError) as caught:
        catalog.load_recipe(name)
    assert caught.value.hint
    return caught.value


class TestMerging:
    def test_what_is_not_changed_stays(self, tmp_path: Path) -> None:
        changes = {"calibration": {"samples": 8}, "ignore": ["lm_head", "*.o_proj"]}
        mine = catalog.load_recipe(
            write(tmp_path / "m.yaml", name="m", extends="awq-w4a16", quantization=changes)
        )
        base = catalog.load_recipe("awq-w4a16")
        assert isinstance(mine.quantization, AwqQuantization)
        assert isinstance(base.quantization, AwqQuantization)
        calibration = base.quantization.calibration.model_copy(update={"samples": 8})
        expected = base.quantization.model_copy(
            update={"calibration": calibration, "ignore": ["lm_head", "*.o_proj"]}
        )
        assert mine.quantization == expected
        assert (mine.name, mine.family, mine.summary) == ("m", base.family, base.summary)
        assert mine.minimum_compute_capability == base.minimum_compute_capability

    def test_several_steps_from_files_beside_each_other(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        folder = tmp_path / "deep"
        folder.mkdir()
        write(tmp_path / "a.yaml", name="a", extends="gptq-w4a16", quantization={"dampening": 0.1})
        write(folder / "b.yaml", name="b", extends="../a.yaml", quantization={"group_size": 64})
        name = write(folder / "c.yaml", name="c", extends="./b.yaml", summary="third")
        monkeypatch.chdir("/")
        found = catalog.load_recipe(name)
        assert isinstance(found.quantization, GptqQuantization)
        assert (found.quantization.dampening, found.quantization.group_size) == (0.1, 64)
        assert (found.name, found.summary) == ("c", "third")


class TestRefusals:
    def test_in_a_circle(self, tmp_path: Path) -> None:
        write(tmp_path / "b.yaml", name="b", extends="./c.yaml")
        write(tmp_path / "c.yaml", name="c", extends="../" + tmp_path.name + "/a.yaml")
        error = refused(write(tmp_path / "a.yaml", name="a", extends="b.yaml"))
        assert error.message.endswith("a.yaml -> b.yaml -> c.yaml -> a.yaml")
        assert error.where.startswith(str(tmp_path / "c.yaml"))

    def test_a_fault_of_the_extended_file_is_told_of_that_file(self, tmp_path: Path) -> None:
        base = write(tmp_path / "base.yaml", name="base", extends="awq-w4a16", famly="int4")
        error = refused(write(tmp_path / "a.yaml", name="a", extends=base))
        assert error.where == f"{base}, key famly"
