"""Forged and damaged evidence, by kind: each is found."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fake_run import judged_run
from hypothesis import given, settings
from hypothesis import strategies as st
from measured_refusal import refusal
from pretend_stages import edit
from spoilt_bundle import (
    RECIPE,
    change_file,
    check_bundle,
    found,
    opened,
    rename_stage,
    rewrite_manifest,
    stage_folder,
)

from artifacts.evidence import bundle_check
from artifacts.evidence.bundle import RECORDS, VERDICT
from artifacts.evidence.manifest import MANIFEST, ManifestFile
from pipeline.checkpoint.weights_folder_files import BUNDLE
from pipeline.core.digest import digest_bytes, digest_json
from pipeline.core.errors import EvidenceError
from pipeline.core.store import RECORD

# Answers lost, with which it passes alone and not next to another, and the first of them.
CLOSE, FIRST = 4, 58


@pytest.fixture(scope="module")
def close(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One variant passes alone (p = 0.03), not with the other, which fails."""
    store = tmp_path_factory.mktemp("close") / "store"
    run = judged_run(store, {RECIPE: CLOSE, "bad": 40}, first=FIRST)
    kept = {v.recipe: v for v in run.report.variants}
    assert kept[RECIPE].verdict == "undecided"
    assert kept[RECIPE].p_value is not None
    assert 0.025 < kept[RECIPE].p_value < 0.05
    return run.bundle(override="to be spoilt")


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return judged_run(tmp_path_factory.mktemp("sound") / "store").bundle()


@pytest.fixture(scope="module")
def copy_to_spoil(sound: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy in which a test undoes what it does."""
    return Path(shutil.copytree(sound, tmp_path_factory.mktemp("spoil") / "deployed"))


@pytest.fixture
def deployed(sound: Path, tmp_path: Path) -> Path:
    """A copy of a sound folder, which a test may spoil."""
    return Path(shutil.copytree(sound, tmp_path / "deployed"))


@pytest.mark.parametrize("path", [".gitattributes/x", "model.sig/x.py"])
def test_a_folder_in_the_place_of_a_file_that_may_come_later(deployed: Path, path: str) -> None:
    (deployed / path).parent.mkdir()
    (deployed / path).write_text("x")
    assert "the file was added" in found(check_bundle(deployed))


class TestForgedSides:
    """Nobody can make answers that pass, but others that do lie in the bundle already."""

    def swap(self, folder: Path, role: str, stage: str, of: str) -> str:
        """Judge the variant by another stage, and make every key and digest right."""
        judge = stage_folder(folder, "judge")
        other = json.loads((stage_folder(folder, stage, of) / RECORD).read_text())

        def change(record: dict[str, Any]) -> None:
            record["inputs"][role]["key"] = other["key"]
            record["input_digests"][role] = digest_json(other["result"])

        edit(judge / RECORD, change)
        rename_stage(folder, judge)
        rewrite_manifest(folder)
        check = check_bundle(folder)
        assert not check.is_sound
        return found(check)

    def test_answers_of_another_variant(self, deployed: Path) -> None:
        text = self.swap(deployed, "candidate.code", "evaluate", "awq-w4a16")
        assert "the weights are not those that were judged" in text

    def test_the_baseline_as_the_variant(self, deployed: Path) -> None:
        text = self.swap(deployed, "candidate.code", "evaluate", "baseline")
        assert "this verdict is on endpoints" in text

    def test_a_variant_as_the_baseline(self, deployed: Path) -> None:
        text = self.swap(deployed, "baseline.code", "evaluate", "awq-w4a16")
        assert "candidate.code: it followed other 'baseline'" in text


class TestForgedRules:
    """Rules follow from policy, profile and trial; answers to other rules are found."""

    @pytest.mark.parametrize("rule", [{"margin": {"points": 0.5}}, {"alpha": 0.4}])
    def test_asked_by_another_rule_than_the_policys(
        self, deployed: Path, rule: dict[str, Any]
    ) -> None:
        place, judge = stage_folder(deployed, "evaluate"), stage_folder(deployed, "judge")
        edit(place / RECORD, lambda record: record["parameters"]["rule"].update(rule))
        rename_stage(deployed, place)
        key = json.loads((stage_folder(deployed, "evaluate") / RECORD).read_text())["key"]
        named = "candidate.code"
        edit(judge / RECORD, lambda record: record["inputs"][named].update(key=key))
        rename_stage(deployed, judge)
        rewrite_manifest(deployed)
        assert "candidate.code: asked by another rule" in found(check_bundle(deployed))

    def test_a_wider_margin(self, deployed: Path) -> None:
        judge = stage_folder(deployed, "judge")

        def widen(record: dict[str, Any]) -> None:
            record["parameters"]["policy"]["suites"]["code"]["margins"]["fp8"]["points"] = 0.5

        edit(judge / RECORD, widen)
        rename_stage(deployed, judge)
        rewrite_manifest(deployed)
        text = found(check_bundle(deployed))
        assert "the trial has other criteria than the policy" in text

    @pytest.mark.parametrize("key", ["gates", "cost", "speed"])
    def test_rules_that_are_written_into_the_record(self, deployed: Path, key: str) -> None:
        judge = stage_folder(deployed, "judge")
        edit(judge / RECORD, lambda record: record["parameters"].update({key: {}}))
        rename_stage(deployed, judge)
        rewrite_manifest(deployed)
        with contextlib.suppress(EvidenceError):
            assert not check_bundle(deployed).is_sound


class TestForgedCounts:
    """A pass depends on how many variants were tried, so each of them is held to its evidence.

    The manifest is rewritten to match every time, as who may write all of the bundle would.
    """

    @pytest.fixture
    def forged(self, close: Path, tmp_path: Path) -> Path:
        """A copy with the verdict that the variant would have had alone."""
        folder = Path(shutil.copytree(close, tmp_path / "deployed"))
        assert check_bundle(folder).is_sound

        def alone(verdict: dict[str, Any]) -> None:
            verdict["override"] = None
            for variant in verdict["variants"]:
                if variant["recipe"] == RECIPE:
                    assert variant["verdict"] == "undecided"
                    variant.update(verdict="pass")

        edit(folder / BUNDLE / VERDICT, alone)
        return folder

    def drop(self, folder: Path) -> None:
        """Take the variant that failed out of all that names it."""

        def change(verdict: dict[str, Any]) -> None:
            verdict["variants"] = [v for v in verdict["variants"] if v["recipe"] == RECIPE]
            verdict["attempted"] = [RECIPE]
            verdict["judges"].pop("bad")

        edit(folder / BUNDLE / VERDICT, change)

    def finish(self, folder: Path) -> str:
        rewrite_manifest(folder)
        check = check_bundle(folder)
        assert not check.is_sound
        return found(check)

    def test_the_others_are_left_out(self, forged: Path) -> None:
        self.drop(forged)
        text = self.finish(forged)
        assert "no verdict depends on this stage" in text
        assert f"its trial is of bad, {RECIPE}" in text

    def test_and_their_stages_too(self, forged: Path) -> None:
        self.drop(forged)
        for stage in ("judge", "quantize", "check_weights", "screen", "evaluate"):
            shutil.rmtree(stage_folder(forged, stage, "bad"))
        text = self.finish(forged)
        assert "no verdict rests" not in text
        assert f"its trial is of bad, {RECIPE}" in text

    def test_and_the_count_with_its_key(self, forged: Path) -> None:
        """The rounds were asked at a level that says how many there were."""
        self.drop(forged)
        judge = stage_folder(forged, "judge")
        edit(judge / RECORD, lambda record: record["parameters"]["trial"]["variants"].pop("bad"))
        rename_stage(forged, judge)
        text = self.finish(forged)
        assert "its trial is of" not in text
        assert "candidate.code: asked by another rule" in text

    def test_one_without_evidence_is_said_to_be_sure(self, forged: Path) -> None:
        """Holm would let the others through after it."""

        def change(verdict: dict[str, Any]) -> None:
            verdict["judges"].pop("bad")
            for variant in verdict["variants"]:
                if variant["recipe"] == "bad":
                    variant.update(verdict="error", p_value=1e-9)

        edit(forged / BUNDLE / VERDICT, change)
        text = self.finish(forged)
        assert "has gates of 'bad', and names no stage 'judge'" in text
        assert "verdict: kept 'pass', computed 'undecided'" in text

    @pytest.mark.parametrize("of", ["judge", "variant", "attempted"])
    def test_one_is_doubled(self, forged: Path, of: str) -> None:
        def change(verdict: dict[str, Any]) -> None:
            if of == "judge":
                verdict["judges"]["bad"] = verdict["judges"][RECIPE]
            elif of == "variant":
                verdict["variants"] = [v for v in verdict["variants"] if v["recipe"] == RECIPE] * 2
            else:
                verdict["attempted"] = [RECIPE, RECIPE]

        edit(forged / BUNDLE / VERDICT, change)
        text = self.finish(forged)
        assert "twice" in text or "the same stage 'judge'" in text

    def test_one_is_added(self, deployed: Path) -> None:
        def change(verdict: dict[str, Any]) -> None:
            extra = {**verdict["variants"][0], "recipe": "another"}
            verdict["variants"].append({**extra, "verdict": "error", "p_value": None})
            verdict["attempted"].append("another")

        edit(deployed / BUNDLE / VERDICT, change)
        assert "and another, awq-w4a16" in self.finish(deployed)

    def test_nobody_was_tried(self, deployed: Path) -> None:
        edit(deployed / BUNDLE / VERDICT, lambda verdict: verdict.update(attempted=[]))
        assert "says that nothing was tried" in self.finish(deployed)


class TestForgedAnswers:
    """No stage's key covers what came out of it, so results and their digests can be rewritten."""

    def record(self, folder: Path, stage: str, variant: str, **result: Any) -> None:
        """Change a stage's result, and the digest of it wherever it was an input."""
        place = stage_folder(folder, stage, variant)
        edit(place / RECORD, lambda record: record["result"].update(result))
        changed = json.loads((place / RECORD).read_text())

        def follow(record: dict[str, Any]) -> None:
            for role, reference in record["inputs"].items():
                if reference["key"] == changed["key"]:
                    record["input_digests"][role] = digest_json(changed["result"])

        for file in opened(folder).glob(f"*/*/{RECORD}"):
            edit(file, follow)

    def answer(self, folder: Path, variant: str, rows: list[dict[str, Any]]) -> None:
        """Put these rows in the place of the answers, with every digest of them."""
        content = "".join(json.dumps(row) + "\n" for row in rows).encode()
        self.put(folder, variant, content, len(rows))

    def put(self, folder: Path, variant: str, content: bytes, n: int) -> None:
        file = stage_folder(folder, "evaluate", variant) / "answers.jsonl"
        file.write_bytes(content)
        found = {"n": n, "answers_digest": digest_bytes(content)}
        self.record(folder, "evaluate", variant, **found)

    def rows(self, folder: Path, variant: str) -> list[dict[str, Any]]:
        file = stage_folder(folder, "evaluate", variant) / "answers.jsonl"
        return [json.loads(line) for line in file.read_bytes().splitlines()]

    def judge_again(self, folder: Path) -> str:
        """The verdict that follows from what is there now, as a forger would have it."""
        for _ in range(2):  # what was rewritten last is judged by what it then says
            rewrite_manifest(folder)
            check = check_bundle(folder)
        assert not check.is_sound
        return found(check)

    def test_the_answers_that_suit_are_picked(self, deployed: Path) -> None:
        for variant in ("baseline", RECIPE):
            rows = self.rows(deployed, variant)
            self.answer(deployed, variant, [row for row in rows if int(row["id"]) % 3])
        text = self.judge_again(deployed)
        assert f"{RECIPE}: candidate.code" not in text
        assert "candidate.code: its answers are not those to the first of the questions" in text
        assert "baseline.code: 96 questions had to be asked, and 64 were answered" in text

    def test_a_fixed_number_that_is_not_reached(self, deployed: Path) -> None:
        self.answer(deployed, "baseline", self.rows(deployed, "baseline")[:50])
        assert "baseline.code: 96 questions had to be asked, and 50 were" in self.judge_again(
            deployed
        )

    def test_an_answer_twice(self, deployed: Path) -> None:
        rows = self.rows(deployed, RECIPE)
        self.answer(deployed, RECIPE, [*rows[:-1], rows[0]])
        assert "candidate.code: its answers are not those" in self.judge_again(deployed)

    @pytest.mark.parametrize("depth", [1, 100_000])
    def test_rows_that_are_none(self, deployed: Path, depth: int) -> None:
        self.put(deployed, RECIPE, b"[" * depth + b"]" * depth + b"\n", 1)
        assert "a file is gone or damaged" in self.judge_again(deployed)

    def test_more_questions_than_there_are(self, deployed: Path) -> None:
        self.record(deployed, "questions", "code", questions=500)
        assert "questions.code: its record counts 500 questions of 96" in self.judge_again(deployed)

    def test_clusters_that_there_are_none_of(self, deployed: Path) -> None:
        self.record(deployed, "questions", "code", clusters=3)
        assert "counts clusters, and the suite has none" in self.judge_again(deployed)

    def test_what_the_stage_judge_itself_says(self, deployed: Path) -> None:
        self.record(deployed, "judge", RECIPE, p_value=0.01)
        assert "its stage 'judge': p_value: kept 0.01, computed" in self.judge_again(deployed)

    @pytest.mark.parametrize(
        "reason", ["all 1 gates passed, and we vouch for it", "all 1 gates passed; registered, but"]
    )
    def test_words_that_were_added(self, deployed: Path, reason: str) -> None:
        def change(verdict: dict[str, Any]) -> None:
            verdict["variants"][0]["reason"] = f"{reason} nobody"

        edit(deployed / BUNDLE / VERDICT, change)
        assert "reason" in self.judge_again(deployed)

    def test_another_source(self, deployed: Path) -> None:
        edit(
            deployed / BUNDLE / VERDICT,
            lambda verdict: verdict["source"].update(digest="0" * 64),
        )
        assert "the source is not the checkpoint" in self.judge_again(deployed)


class TestTampering:
    """Each spoils one thing; `rewritten` is where the manifest was made to match afterwards."""

    @pytest.fixture(params=[False, True], ids=["plain", "rewritten"])
    def finish(self, request: pytest.FixtureRequest) -> Callable[[Path], str]:
        def check(deployed: Path) -> str:
            if request.param:
                rewrite_manifest(deployed)
            result = check_bundle(deployed)
            assert not result.is_sound
            return found(result)

        return check

    def test_a_byte_of_the_weights(self, deployed: Path, finish: Callable[[Path], str]) -> None:
        weights = deployed / "model.safetensors"
        weights.write_bytes(weights.read_bytes()[:-1] + b"\1")
        text = finish(deployed)
        assert "model.safetensors: the file was changed" in text or "those that were judged" in text

    @pytest.mark.parametrize(
        "name",
        [
            *("config.json", "tokenizer.json", "generation_config.json", "chat_template.jinja"),
            *("modeling_x.py", "consolidated.safetensors"),
        ],
    )
    def test_a_file_beside_the_weights(
        self, deployed: Path, finish: Callable[[Path], str], name: str
    ) -> None:
        (deployed / name).write_text('{"another": "one"}')
        text = finish(deployed)
        assert "other files are not those that were judged" in text

    def test_a_byte_of_an_answer(self, deployed: Path, finish: Callable[[Path], str]) -> None:
        file = stage_folder(deployed, "evaluate") / "answers.jsonl"
        change_file(file, lambda text: text.replace(b'"x ', b'"y ', 1))
        assert "answers.jsonl: the file was changed" in finish(deployed)

    def test_a_missing_answer(self, deployed: Path, finish: Callable[[Path], str]) -> None:
        file = stage_folder(deployed, "evaluate") / "answers.jsonl"
        change_file(file, lambda text: text[: text.rindex(b"\n", 0, -1) + 1])
        assert "answers.jsonl: the file was changed" in finish(deployed)

    def test_all_answers_missing(self, deployed: Path, finish: Callable[[Path], str]) -> None:
        (stage_folder(deployed, "evaluate") / "answers.jsonl").unlink()
        assert "answers.jsonl is missing" in finish(deployed)

    def test_a_damaged_file(self, deployed: Path, finish: Callable[[Path], str]) -> None:
        file = deployed / BUNDLE / RECORDS
        file.write_bytes(file.read_bytes()[:-5])
        with pytest.raises(EvidenceError, match="cannot be read"):
            finish(deployed)

    def test_a_question(self, deployed: Path, finish: Callable[[Path], str]) -> None:
        file = stage_folder(deployed, "questions", "code") / "questions.jsonl"
        change_file(file, lambda text: text.replace(b"95", b"94"))
        assert "questions.jsonl: the file was changed" in finish(deployed)

    def test_the_policy(self, deployed: Path, finish: Callable[[Path], str]) -> None:
        def widen(record: dict[str, Any]) -> None:
            record["parameters"]["policy"]["suites"]["code"]["margins"]["fp8"]["points"] = 0.5

        edit(stage_folder(deployed, "judge") / RECORD, widen)
        text = finish(deployed)
        assert "were changed afterwards" in text
        assert "the trial has other criteria than the policy" in text

    def test_the_engines_version(self, deployed: Path, finish: Callable[[Path], str]) -> None:
        edit(
            stage_folder(deployed, "screen") / RECORD,
            lambda record: record["result"].update(engine_version="0.99"),
        )
        text = finish(deployed)
        assert "depends on another 'screen'" in text

    def test_a_record_far_from_the_verdict(
        self, deployed: Path, finish: Callable[[Path], str]
    ) -> None:
        edit(
            stage_folder(deployed, "quantize") / RECORD,
            lambda record: record["parameters"].update(environment="another"),
        )
        assert "were changed afterwards" in finish(deployed)

    def test_a_stage_that_is_left_out(self, deployed: Path, finish: Callable[[Path], str]) -> None:
        shutil.rmtree(stage_folder(deployed, "screen", "baseline"))
        assert "is missing" in finish(deployed)

    def test_the_verdict(self, deployed: Path, finish: Callable[[Path], str]) -> None:
        def better(verdict: dict[str, Any]) -> None:
            verdict["variants"][0]["gates"][0]["candidate"] = 0.99

        edit(deployed / BUNDLE / VERDICT, better)
        assert "gates[0].candidate: kept 0.99" in finish(deployed)

    def test_another_variants_p_value(self, deployed: Path, finish: Callable[[Path], str]) -> None:
        """It has a part in the correction, so its own evidence is there, too."""
        edit(
            deployed / BUNDLE / VERDICT,
            lambda verdict: verdict["variants"][0].update(p_value=0.9),
        )
        assert "p_value: kept 0.9" in finish(deployed)

    def test_of_which_variant_it_is(self, deployed: Path, finish: Callable[[Path], str]) -> None:
        edit(deployed / BUNDLE / VERDICT, lambda verdict: verdict.update(recipe="awq-w4a16"))
        text = finish(deployed)
        assert f"is about '{RECIPE}'" in text
        assert "the weights are not those that were judged" in text


class TestOneByte:
    """Whichever byte of whichever file is changed, it is seen."""

    @settings(max_examples=40, deadline=None)
    @given(data=st.data())
    def test_anywhere(self, copy_to_spoil: Path, data: st.DataObject) -> None:
        files = sorted(p for p in copy_to_spoil.rglob("*") if p.is_file() and p.name != MANIFEST)
        file = data.draw(st.sampled_from(files))
        content = bytearray(file.read_bytes())
        place = data.draw(st.integers(0, len(content) - 1))
        before = bytes(content)
        content[place] ^= data.draw(st.integers(1, 255))
        # The weights' copy here is a separate file, so nothing else changes with it.
        file.write_bytes(content)
        try:
            assert not bundle_check.check_bundle(copy_to_spoil).is_sound
        except EvidenceError:
            pass  # what says the verdict itself cannot be read any more
        finally:
            file.write_bytes(before)


class TestFiles:
    @pytest.mark.parametrize("place", ["added.py", f"{BUNDLE}/added.json", "sub/added"])
    def test_one_added(self, deployed: Path, place: str) -> None:
        (deployed / place).parent.mkdir(exist_ok=True)
        (deployed / place).write_text("x")
        assert f"{place}: the file was added" in found(check_bundle(deployed))

    def test_one_removed(self, deployed: Path) -> None:
        (deployed / "tokenizer.json").unlink()
        assert "tokenizer.json: the file is missing" in found(check_bundle(deployed))

    def test_a_card_edited(self, deployed: Path) -> None:
        (deployed / "README.md").write_text("better than ever")
        assert "README.md: the file was changed" in found(check_bundle(deployed))

    @pytest.mark.parametrize("name", [".git/hooks/x", ".github/x", ".cache/huggingface/x"])
    def test_what_git_and_the_hub_keep_is_not_covered(self, deployed: Path, name: str) -> None:
        (deployed / name).parent.mkdir(parents=True, exist_ok=True)
        (deployed / name).write_text("x")
        assert f"{name}: the file was added" in found(check_bundle(deployed))

    def test_what_the_hub_puts_into_every_repository(self, deployed: Path) -> None:
        (deployed / ".gitattributes").write_text("x")
        assert check_bundle(deployed).is_sound

    def test_a_link_is_refused(self, deployed: Path, tmp_path: Path) -> None:
        config = deployed / "config.json"
        config.rename(tmp_path / "config.json")
        config.symlink_to(tmp_path / "config.json")
        with pytest.raises(EvidenceError) as caught:
            check_bundle(deployed)
        assert caught.value.where == str(config)

    def test_evidence_that_is_a_link(self, deployed: Path, tmp_path: Path) -> None:
        shutil.move(deployed / BUNDLE, tmp_path / "another")
        (deployed / BUNDLE).symlink_to(tmp_path / "another")
        with pytest.raises(EvidenceError) as caught:
            check_bundle(deployed)
        assert caught.value.where == str(deployed / BUNDLE)

    @pytest.mark.parametrize("part", ["evidence_files", "model_files"])
    def test_a_path_that_is_listed_twice(self, deployed: Path, part: str) -> None:
        edit(deployed / BUNDLE / MANIFEST, lambda listed: listed[part].append(listed[part][0]))
        with pytest.raises(EvidenceError, match=r"manifest\.json"):
            check_bundle(deployed)

    def test_a_pipe_does_not_keep_it_waiting(self, deployed: Path) -> None:
        (deployed / BUNDLE / VERDICT).unlink()
        os.mkfifo(deployed / BUNDLE / VERDICT)
        with pytest.raises(EvidenceError) as caught:
            check_bundle(deployed)
        assert caught.value.where == str(deployed / BUNDLE / VERDICT)

    def test_no_bundle(self, tmp_path: Path) -> None:
        with pytest.raises(EvidenceError) as caught:
            check_bundle(tmp_path)
        assert caught.value.where == str(tmp_path / BUNDLE)

    @pytest.mark.parametrize("name", [MANIFEST, VERDICT])
    def test_what_says_it_all_is_damaged(self, deployed: Path, name: str) -> None:
        (deployed / BUNDLE / name).write_text("{")
        with pytest.raises(EvidenceError) as caught:
            check_bundle(deployed)
        assert caught.value.where == str(deployed / BUNDLE / name)

    @pytest.mark.parametrize("path", ["/etc/passwd", "../x", "a/../../x", "", "a//b", "./a"])
    def test_no_path_leads_out(self, path: str) -> None:
        with pytest.raises(ValueError, match="path"):
            ManifestFile(path=path, size=1, sha256="0" * 64)

    def test_a_manifest_whose_paths_lead_out(self, deployed: Path) -> None:
        edit(
            deployed / BUNDLE / MANIFEST,
            lambda manifest: manifest["evidence_files"][0].update(path="../../config.json"),
        )
        with pytest.raises(EvidenceError, match=r"\.\./\.\./config\.json"):
            check_bundle(deployed)


SECONDS, MIB = 2.0, 300.0
PATIENCE = 2  # times as long where other tests have the cores


class TestSizes:
    """What is too much is refused before it is held."""

    def held(self, folder: Path) -> str:
        rewrite_manifest(folder)
        ended = refusal("spoilt_bundle:refuse", folder)
        assert ended.seconds < SECONDS * PATIENCE
        assert ended.mib < MIB
        return str(ended.error)

    def test_answers_that_unpack_to_very_much(self, deployed: Path) -> None:
        place = stage_folder(deployed, "evaluate") / "answers.jsonl"
        with place.open("wb") as file:
            file.truncate(400 * 2**20)
        assert "larger" in self.held(deployed)

    @pytest.mark.parametrize("name", [VERDICT, MANIFEST, RECORD])
    @pytest.mark.parametrize(
        "text", [b'{"a": "' + b"x" * 2**25 + b'"}', b'{"bundle": [' + b"{}," * 2**20 + b"{}]}",
                 b"[" * 100_000 + b"]" * 100_000]
    )  # fmt: skip
    def test_records(self, deployed: Path, name: str, text: bytes) -> None:
        folder = stage_folder(deployed, "evaluate") if name == RECORD else deployed / BUNDLE
        (folder / name).write_bytes(text)
        if name != MANIFEST:
            rewrite_manifest(deployed)
        ended = refusal("spoilt_bundle:refuse", deployed)
        assert ended.error is not None
        assert len(ended.error) < 5_000
        assert ended.seconds < SECONDS * PATIENCE
        assert ended.mib < MIB


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=6,
)


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Where each value of plain data is."""
    children = list(value.items() if isinstance(value, dict) else enumerate(value))
    found = [(*path, key) for key, _ in children]
    for key, child in children:
        if isinstance(child, dict | list):
            found += places(child, (*path, key))
    return found


@settings(max_examples=80, deadline=None)
@given(data=st.data())
def test_records_of_a_stranger_raise_nothing_but_our_error(
    copy_to_spoil: Path, data: st.DataObject
) -> None:
    """Anything in the place of any value of any record, with the digests made right."""
    bundle, stages = copy_to_spoil / BUNDLE, opened(copy_to_spoil)
    files = sorted([*bundle.glob("*.json"), *stages.rglob("*.json")])
    file = data.draw(st.sampled_from(files))
    manifest = (bundle / MANIFEST).read_bytes()
    before = file.read_bytes()
    record = json.loads(before)
    path = data.draw(st.sampled_from(places(record)))
    place = record
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = data.draw(JSON)
    try:
        file.write_text(json.dumps(record))
        if file.name != MANIFEST:
            rewrite_manifest(copy_to_spoil)
        with contextlib.suppress(EvidenceError):
            check_bundle(copy_to_spoil)
    finally:
        file.write_bytes(before)
        (bundle / MANIFEST).write_bytes(manifest)
