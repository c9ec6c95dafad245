"""Where a checkpoint is found, and which are refused before any work is done."""

from __future__ import annotations

from pathlib import Path

import pytest
from asked_run import Checkpoints, refused, request_for, speculative_profile
from listener import Listener
from quantized_checkpoint import quantization_config, source_files
from small_checkpoint import checkpoint_files, write_files

from pipeline.environments.settings import Settings
from pipeline.plan.choice import choose
from pipeline.plan.locator import Locator

pytestmark = pytest.mark.usefixtures("programs")


class TestCheckpoint:
    def test_a_folder(self, checkpoints: Checkpoints) -> None:
        checkpoints.write()
        found = checkpoints.located(checkpoints.choices())
        assert (found.kind, found.path) == ("folder", checkpoints.folder)
        assert found.ref == str(checkpoints.folder)

    def test_missing(self, checkpoints: Checkpoints) -> None:
        assert "folder does not exist" in checkpoints.fault().message

    def test_released_weights_are_the_baseline_and_recipes_start_in_16_bits(
        self, checkpoints: Checkpoints
    ) -> None:
        checkpoints.write(quantization_config=quantization_config("awq"))
        write_files(checkpoints.wide, source_files())
        found = checkpoints.located(checkpoints.choices())
        assert (found.path, found.quantized) == (checkpoints.folder, "INT4")
        assert found.recipe_source.path == checkpoints.wide
        assert found.recipe_source.digest != found.digest
        (stage,) = checkpoints.made
        assert stage.stage == "dequantize"
        assert stage.parameters["converter"] == "compressed-tensors"

    def test_released_weights_that_cannot_be_converted(self, checkpoints: Checkpoints) -> None:
        checkpoints.write(quantization_config={"quant_method": "unheard-of"})
        assert "recipes need 16-bit weights" in checkpoints.fault().message

    def test_code_of_its_own_only_when_allowed(self, checkpoints: Checkpoints) -> None:
        checkpoints.write(
            model_type="mine", auto_map={"AutoModelForCausalLM": "modeling_mine.MineForCausalLM"}
        )
        error = checkpoints.fault()
        assert "its own Python code" in error.message
        assert "--trust-remote-code" in error.hint
        allowed = checkpoints.choices(trust_remote_code=True)
        assert checkpoints.located(allowed).code_file


class TestDraft:
    """The checkpoint that drafts."""

    @pytest.mark.parametrize("draft", ["no such thing", "./nothing-here"])
    def test_a_draft_that_is_none(self, draft: str, tmp_path: Path, settings: Settings) -> None:
        asked = request_for(
            profile=speculative_profile(tmp_path, method="draft_model", model=draft)
        )
        assert "speculative.model" in refused(asked, settings).where

    def test_a_draft_is_found_as_a_checkpoint(self, tmp_path: Path, settings: Settings) -> None:
        small = tmp_path / "small"
        write_files(small, checkpoint_files())
        named = speculative_profile(tmp_path, method="draft_model", model=str(small))
        choices = choose(request_for(profile=named), settings)
        draft = Locator(
            choices.profile, settings, lambda _: small, Listener(), choices.checkpoints
        ).draft()
        assert draft is not None
        assert draft.path == small
