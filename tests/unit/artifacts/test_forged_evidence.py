"""Forged and damaged evidence: one table of forgeries, and what finds each."""

from __future__ import annotations

import contextlib
import gzip
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
    repack,
    rewrite_manifest,
    stage_folder,
)

from artifacts.evidence import verify
from artifacts.evidence.bundle import VERDICT
from artifacts.evidence.manifest import MANIFEST
from prepare.digest import digest_bytes, digest_json
from prepare.errors import EvidenceError
from prepare.store import RECORD
from recipes.checkpoints.weight_files import ARCHIVE, BUNDLE, CARD, RESULTS

# Answers lost, with which it passes alone and not next to another, and the first of them.
CLOSE, FIRST = 4, 58
OTHER = "awq-w4a16"
Change = Callable[[dict[str, Any]], Any]
Forge = Callable[[Path], Any]


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


def verdict(change: Change) -> Forge:
    """Change verdict.json."""
    return lambda folder: edit(folder / BUNDLE / VERDICT, change)


def record(stage: str, change: Change, variant: str = RECIPE) -> Forge:
    """Change a stage's record and nothing that depends on it."""
    return lambda folder: edit(stage_folder(folder, stage, variant) / RECORD, change)


def judge(change: Change) -> Forge:
    """Change the judge stage's record, and its key wherever it is named."""

    def forge(folder: Path) -> None:
        place = stage_folder(folder, "judge")
        edit(place / RECORD, change)
        rename_stage(folder, place)

    return forge


def result(stage: str, variant: str = RECIPE, **changes: Any) -> Forge:
    """Change a stage's result, and the digest of it wherever it was an input: no key covers it."""

    def forge(folder: Path) -> None:
        place = stage_folder(folder, stage, variant)
        edit(place / RECORD, lambda kept: kept["result"].update(changes))
        changed = json.loads((place / RECORD).read_text())

        def follow(kept: dict[str, Any]) -> None:
            for role, reference in kept["inputs"].items():
                if reference["key"] == changed["key"]:
                    kept["input_digests"][role] = digest_json(changed["result"])

        for file in opened(folder).glob(f"*/*/{RECORD}"):
            edit(file, follow)

    return forge


def answers(pick: Callable[[list[str]], list[str]], *variants: str) -> Forge:
    """Put other lines in the place of the answers, with every digest of them."""

    def forge(folder: Path) -> None:
        for variant in variants or (RECIPE,):
            file = stage_folder(folder, "evaluate", variant) / "answers.jsonl"
            lines = pick(file.read_text().splitlines(keepends=True))
            file.write_text("".join(lines))
            digest = digest_bytes(file.read_bytes())
            result("evaluate", variant, n=len(lines), answers_digest=digest)(folder)

    return forge


def swap(role: str, of: str) -> Forge:
    """Judge by another stage's answers, with every key and digest right."""

    def forge(folder: Path) -> None:
        other = json.loads((stage_folder(folder, "evaluate", of) / RECORD).read_text())

        def change(kept: dict[str, Any]) -> None:
            kept["inputs"][role]["key"] = other["key"]
            kept["input_digests"][role] = digest_json(other["result"])

        judge(change)(folder)

    return forge


def asked_by(rule: dict[str, Any]) -> Forge:
    """Change the rule that the answers were asked by, with every key right."""

    def forge(folder: Path) -> None:
        place = stage_folder(folder, "evaluate")
        edit(place / RECORD, lambda kept: kept["parameters"]["rule"].update(rule))
        rename_stage(folder, place)
        key = json.loads((stage_folder(folder, "evaluate") / RECORD).read_text())["key"]
        judge(lambda kept: kept["inputs"]["candidate.code"].update(key=key))(folder)

    return forge


def written(name: str, text: str) -> Forge:
    """Write a file next to the weights or the evidence."""

    def forge(folder: Path) -> None:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)

    return forge


def spoilt(stage: str, name: str, change: Callable[[bytes], bytes], of: str = RECIPE) -> Forge:
    """Change a stage's file, without its digest."""
    return lambda folder: change_file(stage_folder(folder, stage, of) / name, change)


def widen(kept: dict[str, Any]) -> None:
    kept["parameters"]["policy"]["suites"]["code"]["margins"]["fp8"]["points"] = 0.5


def add_variant(kept: dict[str, Any]) -> None:
    extra = {**kept["variants"][0], "recipe": "another"}
    kept["variants"].append({**extra, "verdict": "error", "p_value": None})
    kept["attempted"].append("another")


def first(**changes: Any) -> Forge:
    """Change the first variant's verdict."""
    return verdict(lambda kept: kept["variants"][0].update(changes))


JUDGED = "are not those that were judged"
# Forgeries by a writer of the whole bundle, who makes every digest of a file right, and a part of
# what is found.
FORGERIES: dict[str, tuple[Forge, str]] = {
    "answers of another variant": (swap("candidate.code", OTHER), JUDGED),
    "the baseline as the variant": (swap("candidate.code", "baseline"), "verdict is on endpoints"),
    "a variant as the baseline": (swap("baseline.code", OTHER), "it followed other 'baseline'"),
    "asked by a wider margin": (asked_by({"margin": {"points": 0.5}}), "asked by another rule"),
    "asked at another level": (asked_by({"alpha": 0.4}), "asked by another rule"),
    "a wider margin": (judge(widen), "the trial has other criteria than the policy"),
    "another policy for one variant": (
        judge(lambda kept: kept["parameters"]["policy"].update(summary="another")),
        "judged by different policies",
    ),
    "a wider margin, not its key": (record("judge", widen), "were changed afterwards"),
    "a record far from the verdict": (
        record("quantize", lambda kept: kept["parameters"].update(environment="another")),
        "were changed afterwards",
    ),
    "the engine's version": (
        record("sanity", lambda kept: kept["result"].update(engine_version="0.99")),
        "its result is not the one that was used",
    ),
    "a stage that is left out": (
        lambda folder: shutil.rmtree(stage_folder(folder, "sanity", "baseline")),
        "is missing",
    ),
    "the stage 'judge' left out": (
        lambda folder: shutil.rmtree(stage_folder(folder, "judge")),
        "judge: stages/judge/",
    ),
    "answers that suit are picked": (
        answers(lambda lines: [each for n, each in enumerate(lines) if n % 3], "baseline", RECIPE),
        "its answers are not those to the first of the questions",
    ),
    "a fixed number that is not reached": (
        answers(lambda lines: lines[:50], "baseline"),
        "96 questions had to be asked, and 50 were answered",
    ),
    "an answer twice": (
        answers(lambda lines: [*lines[:-1], lines[0]]),
        "its answers are not those to the first of the questions",
    ),
    "a row that is none": (answers(lambda _: ["[]\n"]), "a file is gone or damaged"),
    "a row that is deep": (
        answers(lambda _: ["[" * 100_000 + "]" * 100_000 + "\n"]),
        "a file is gone or damaged",
    ),
    "a byte of an answer": (
        spoilt("evaluate", "answers.jsonl", lambda text: text.replace(b'"x ', b'"y ', 1)),
        "answers.jsonl: the file was changed",
    ),
    "a missing answer": (
        spoilt("evaluate", "answers.jsonl", lambda text: text[: text.rindex(b"\n", 0, -1) + 1]),
        "answers.jsonl: the file was changed",
    ),
    "all answers missing": (
        lambda folder: (stage_folder(folder, "evaluate") / "answers.jsonl").unlink(),
        "answers.jsonl is missing",
    ),
    "a question": (
        spoilt("questions", "questions.jsonl", lambda text: text.replace(b"95", b"94"), "code"),
        "questions.jsonl: the file was changed",
    ),
    "more questions than there are": (
        result("questions", "code", questions=500),
        "its record counts 500 questions of 96",
    ),
    "clusters that there are none of": (
        result("questions", "code", clusters=3),
        "counts clusters, and the suite has none",
    ),
    "the stage 'judge' itself": (result("judge", p_value=0.01), "'judge': p_value: kept 0.01"),
    "words that were added": (first(reason="the gate passed, we vouch"), "reason: kept"),
    "words of a promotion": (
        first(reason="the gate passed; registered, but not preferred"),
        "reason: kept",
    ),
    "another source": (
        verdict(lambda kept: kept["source"].update(digest="0" * 64)),
        "the source is not the checkpoint",
    ),
    "a figure of a gate": (
        verdict(lambda kept: kept["variants"][0]["gates"][0].update(candidate=0.99)),
        "gates[0].candidate: kept 0.99",
    ),
    "another variant's p-value": (first(p_value=0.9), "p_value: kept 0.9"),
    "another variant's name": (verdict(lambda kept: kept.update(recipe=OTHER)), JUDGED),
    "a variant is added": (verdict(add_variant), "and another, awq-w4a16"),
    "nothing was tried": (verdict(lambda kept: kept.update(attempted=[])), "nothing was tried"),
    "a signature that is gone": (
        verdict(lambda kept: kept.update(signer="us")),
        "the signature is missing",
    ),
    "weights": (
        lambda folder: change_file(folder / "model.safetensors", lambda x: x[:-1] + b"\1"),
        JUDGED,
    ),
    **{
        f"a file next to the weights: {name}": (written(name, '{"a": "b"}'), JUDGED)
        for name in (
            *("config.json", "tokenizer.json", "generation_config.json", "chat_template.jinja"),
            *("modeling_x.py", "consolidated.safetensors"),
        )
    },
}


@pytest.mark.parametrize("name", FORGERIES)
def test_a_forgery_is_found(deployed: Path, name: str) -> None:
    forge, finding = FORGERIES[name]
    forge(deployed)
    assert not check_bundle(deployed).is_sound
    rewrite_manifest(deployed)
    assert finding in found(check_bundle(deployed))


@pytest.mark.parametrize("key", ["gates", "cost", "speed"])
def test_rules_that_are_written_into_the_record(deployed: Path, key: str) -> None:
    judge(lambda kept: kept["parameters"].update({key: {}}))(deployed)
    rewrite_manifest(deployed)
    with contextlib.suppress(EvidenceError):
        assert not check_bundle(deployed).is_sound


def drop(folder: Path) -> None:
    """Take the variant that failed out of all that names it."""

    def change(kept: dict[str, Any]) -> None:
        kept["variants"] = [v for v in kept["variants"] if v["recipe"] == RECIPE]
        kept["attempted"] = [RECIPE]
        kept["judges"].pop("bad")

    verdict(change)(folder)


def drop_stages(folder: Path) -> None:
    drop(folder)
    for stage in ("judge", "quantize", "check_weights", "sanity", "evaluate"):
        shutil.rmtree(stage_folder(folder, stage, "bad"))


def drop_count(folder: Path) -> None:
    """Leave it out of the trial; but the answers were asked at a level for two."""
    drop(folder)
    judge(lambda kept: kept["parameters"]["trial"]["variants"].pop("bad"))(folder)


def unjudge(kept: dict[str, Any]) -> None:
    """Holm would let the others through after it."""
    kept["judges"].pop("bad")
    for variant in kept["variants"]:
        if variant["recipe"] == "bad":
            variant.update(verdict="error", p_value=1e-9)


COUNTS: dict[str, tuple[Forge, tuple[str, ...]]] = {
    "left out": (drop, ("no verdict depends on this stage", f"its trial is of bad, {RECIPE}")),
    "left out with its stages": (drop_stages, (f"its trial is of bad, {RECIPE}",)),
    "left out of the trial": (drop_count, ("candidate.code: asked by another rule",)),
    "said to be sure": (
        verdict(unjudge),
        ("a variant has gates, and no stage 'judge'", "kept 'pass', computed 'undecided'"),
    ),
    "judged by another's stage": (
        verdict(lambda kept: kept["judges"].update(bad=kept["judges"][RECIPE])),
        ("two variants have the same stage 'judge'",),
    ),
    "doubled": (
        verdict(lambda kept: kept["variants"].append(kept["variants"][-1])),
        ("was tried, and there are verdicts on",),
    ),
    "attempted twice": (
        verdict(lambda kept: kept.update(attempted=[RECIPE, RECIPE])),
        ("was tried, and there are verdicts on",),
    ),
}


@pytest.mark.parametrize("name", COUNTS)
def test_a_variant_that_counts_cannot_be_hidden(close: Path, tmp_path: Path, name: str) -> None:
    """A pass depends on how many variants were tried, so each of them is held to its evidence."""
    folder = Path(shutil.copytree(close, tmp_path / "deployed"))
    assert check_bundle(folder).is_sound

    def alone(kept: dict[str, Any]) -> None:
        kept["override"] = None
        for variant in kept["variants"]:
            if variant["recipe"] == RECIPE:
                variant.update(verdict="pass")

    verdict(alone)(folder)
    forge, findings = COUNTS[name]
    forge(folder)
    rewrite_manifest(folder)
    check = check_bundle(folder)
    assert not check.is_sound
    assert all(each in found(check) for each in findings)


@pytest.mark.parametrize(
    ("forge", "finding"),
    [
        (written("added.py", "x"), "added.py: the file was added"),
        (written(f"{BUNDLE}/added.json", "x"), "added.json: the file was added"),
        (written("sub/added", "x"), "added: the file was added"),
        (written(".git/hooks/x", "x"), ".git/hooks/x: the file was added"),
        (written(".github/x", "x"), ".github/x: the file was added"),
        (written(".cache/huggingface/x", "x"), "x: the file was added"),
        # A folder in the place of a file that may come later.
        (written(".gitattributes/x", "x"), "the file was added"),
        (written("model.sig/x.py", "x"), "the file was added"),
        (written("README.md", "better than ever"), "README.md: the file was changed"),
        (lambda folder: (folder / "tokenizer.json").unlink(), "tokenizer.json: the file is mis"),
    ],
)
def test_a_file_that_is_not_listed_so(deployed: Path, forge: Forge, finding: str) -> None:
    forge(deployed)
    assert finding in found(check_bundle(deployed))


@pytest.mark.parametrize("place", [CARD, RESULTS])
def test_a_folder_in_the_place_of_a_card_is_found(deployed: Path, place: str) -> None:
    (deployed / place).unlink(missing_ok=True)
    (deployed / place).mkdir(parents=True)
    (deployed / place / "evil.py").write_text("x")
    rewrite_manifest(deployed)
    assert "not those that were judged" in found(check_bundle(deployed))


def repack_as(deployed: Path, change: Callable[[bytes], bytes]) -> None:
    archive = deployed / ARCHIVE
    archive.write_bytes(gzip.compress(change(gzip.decompress(archive.read_bytes()))))
    rewrite_manifest(deployed)


def test_an_archive_behind_the_end_is_refused(deployed: Path) -> None:
    repack_as(deployed, lambda tar: tar + tar)
    with pytest.raises(EvidenceError, match="behind its end"):
        verify.check_bundle(deployed)


def test_names_that_differ_in_case_alone_are_refused(deployed: Path) -> None:
    """Where a file system ignores case, the second would replace the first."""
    stage = stage_folder(deployed, "judge")
    (stage / RECORD.upper()).write_bytes((stage / RECORD).read_bytes())
    repack(deployed)
    rewrite_manifest(deployed)
    with pytest.raises(EvidenceError, match="there twice"):
        verify.check_bundle(deployed)


def test_what_the_hub_puts_into_every_repository(deployed: Path) -> None:
    (deployed / ".gitattributes").write_text("x")
    assert check_bundle(deployed).is_sound


def link(place: str) -> Forge:
    def forge(folder: Path) -> None:
        elsewhere = folder.with_name("elsewhere")
        shutil.move(folder / place, elsewhere)
        (folder / place).symlink_to(elsewhere)

    return forge


def pipe(folder: Path) -> None:
    (folder / BUNDLE / VERDICT).unlink()
    os.mkfifo(folder / BUNDLE / VERDICT)


def listed(change: Change) -> Forge:
    return lambda folder: edit(folder / BUNDLE / MANIFEST, change)


@pytest.mark.parametrize(
    ("forge", "where"),
    [
        (lambda folder: shutil.rmtree(folder / BUNDLE), BUNDLE),
        (link("config.json"), "config.json"),
        (link(BUNDLE), BUNDLE),
        (pipe, f"{BUNDLE}/{VERDICT}"),
        (written(f"{BUNDLE}/{VERDICT}", "{"), f"{BUNDLE}/{VERDICT}"),
        (written(f"{BUNDLE}/{MANIFEST}", "{"), f"{BUNDLE}/{MANIFEST}"),
        (written(ARCHIVE, "x"), ARCHIVE),
        (lambda folder: os.truncate(folder / ARCHIVE, 2000), ARCHIVE),
        *(
            (
                listed(lambda kept, part=part: kept[part].append(kept[part][0])),
                f"{BUNDLE}/{MANIFEST}",
            )
            for part in ("evidence_files", "model_files")
        ),
        (
            listed(lambda kept: kept["evidence_files"][0].update(path="../../config.json")),
            f"{BUNDLE}/{MANIFEST}",
        ),
    ],
)
def test_what_cannot_be_read_is_refused_by_place(deployed: Path, forge: Forge, where: str) -> None:
    forge(deployed)
    with pytest.raises(EvidenceError) as caught:
        check_bundle(deployed)
    assert caught.value.where == str(deployed / where)


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_one_byte_anywhere(copy_to_spoil: Path, data: st.DataObject) -> None:
    files = sorted(p for p in copy_to_spoil.rglob("*") if p.is_file() and p.name != MANIFEST)
    file = data.draw(st.sampled_from(files))
    content = bytearray(file.read_bytes())
    place = data.draw(st.integers(0, len(content) - 1))
    before = bytes(content)
    content[place] ^= data.draw(st.integers(1, 255))
    # The weights' copy here is a separate file, so nothing else changes with it.
    file.write_bytes(content)
    try:
        assert not verify.check_bundle(copy_to_spoil).is_sound
    except EvidenceError:
        pass  # what says the verdict itself cannot be read any more
    finally:
        file.write_bytes(before)


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
