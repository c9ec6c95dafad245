"""The command that a run's record gives back is the one that was typed; the record is untrusted."""

from __future__ import annotations

import dataclasses
import types
import typing
from pathlib import Path
from typing import Any

import pytest
import typer
from hypothesis import given
from hypothesis import strategies as st

from artifacts.requests import (
    CommandRequest,
    GateRequest,
    ModelRequest,
    RecheckRequest,
    TuneRequest,
)
from artifacts.run_record import AnyRequest
from pipeline.cli.options import asks
from pipeline.environments.settings import Settings
from pipeline.plan.choice import choose
from pipeline.run.gate import choose_endpoints
from prepare.own_command import forget_places, own_command, remember_place
from prepare.record import Record
from prepare.untrusted import UntrustedJsonError, parse_record

KINDS = (ModelRequest, GateRequest, RecheckRequest, TuneRequest)
TEXT = st.from_regex(r"[a-zA-Z0-9é][a-zA-Z0-9 ./=@_:'é-]{0,20}", fullmatch=True).filter(
    lambda text: "//" not in text and text == text.strip()
)


class Recorded(Record):
    request: AnyRequest


def values_of(annotation: Any) -> st.SearchStrategy[Any]:
    """Every value that a field of this type can have."""
    if typing.get_origin(annotation) is tuple:
        return st.lists(TEXT, max_size=3).map(tuple)
    if typing.get_origin(annotation) is typing.Literal:
        return st.sampled_from(typing.get_args(annotation))
    if typing.get_origin(annotation) in (types.UnionType, typing.Union):
        return st.one_of([values_of(each) for each in typing.get_args(annotation)])
    simple = {
        types.NoneType: st.none(),
        bool: st.booleans(),
        int: st.integers(128, 10**6),
        Path: TEXT.map(Path),
        str: TEXT,
    }
    return simple[annotation]


@pytest.mark.parametrize("kind", KINDS)
def test_a_plain_command_allows_nothing_that_was_not_asked_for(kind: type[CommandRequest]) -> None:
    """It runs no code of a checkpoint, signs nothing and measures nothing again."""
    switches = {
        field.name: field.default
        for field in dataclasses.fields(kind)
        if isinstance(field.default, bool)
    }
    assert {name for name, default in switches.items() if default} <= {"promote"}


def requests_of(kind: type[CommandRequest]) -> st.SearchStrategy[CommandRequest]:
    hints = typing.get_type_hints(kind)
    return st.builds(kind, **{name: values_of(hints[name]) for name in kind.options()})


def parse(kind: type[CommandRequest], words: list[str]) -> CommandRequest:
    """What the parser makes of the words."""
    parsed: list[CommandRequest] = []

    def command(request: CommandRequest) -> None:
        parsed.append(request)

    app = typer.Typer(add_completion=False)
    app.command()(asks(kind)(command))
    app(words, standalone_mode=False)
    return parsed[0]


@pytest.mark.parametrize("kind", KINDS)
@given(data=st.data())
def test_a_request_is_its_words_and_its_json(
    kind: type[CommandRequest], data: st.DataObject
) -> None:
    """Round trips over all fields; a field without option or record would be lost."""
    request = data.draw(requests_of(kind))
    assert parse(kind, request.words()[2:]) == request
    stored = Recorded(request=request).model_dump_json().encode()
    assert parse_record(stored, Recorded).request == request
    assert request.differences(request) == ""


@pytest.mark.parametrize("kind", KINDS)
def test_every_field_has_an_option(kind: type[CommandRequest]) -> None:
    assert [each.name for each in dataclasses.fields(kind)] == ["kind", *kind.options()]


@given(data=st.data())
def test_what_others_read_has_no_path_of_this_machine(data: st.DataObject) -> None:
    folder = "/secret/date=2026-01-01/place"
    changed = data.draw(
        st.fixed_dictionaries(
            {},
            optional={
                "checkpoint": st.just(folder),
                "recipes": st.just((f"{folder}/mine.yaml",)),
                "variants": st.just((f"mine={folder}/awq", folder)),
                "served_variants": st.just((f"online=--quantization fp8 --file {folder}",)),
                "policy": st.just(f"{folder}.yaml"),
                "eval_data": st.just(Path(folder)),
                "registry": st.just("http://secret:5000"),
            },
        )
    )
    request = ModelRequest(**changed)
    assert "secret" not in request.line(public=True)
    assert len(request.words(public=True)) > 2 or not changed.keys() - {"registry"}


@pytest.mark.parametrize("share", ["", "+5", "+7.5"])
def test_a_recipes_file_is_named_without_its_folder(share: str) -> None:
    request = ModelRequest(recipes=(f"secret/mine.yaml{share}",))
    assert request.words(public=True)[2:] == ["--recipe", f"./mine.yaml{share}"]


def test_a_command_shows_no_password_and_where_things_are() -> None:
    request = ModelRequest(checkpoint="org/model", registry="http://me:secret@mlflow:5000")
    shown = "prepare model org/model --registry 'http://***@mlflow:5000'"
    assert request.line() == shown
    remember_place("--store", "/a b")
    remember_place("--registry", "http://other")
    assert request.line() == f"{shown} --store '/a b'"
    assert own_command("runs", "RUN") == "prepare runs RUN --store '/a b'"
    assert own_command("gc", "-n") == "prepare gc -n --store '/a b' --registry http://other"
    assert own_command("show", "policy") == "prepare show policy"
    forget_places()
    assert own_command("runs", "RUN") == "prepare runs RUN"


def test_a_run_is_asked_again_as_it_was_resolved(tmp_path: Path) -> None:
    """Defaults may change; the command names those that applied. Its plan is the same."""
    settings = Settings(home=tmp_path / "home", store=tmp_path / "store")
    given_options = ModelRequest(
        checkpoint="org/model",
        profile="cpu",
        eval_data=tmp_path,
        trust_remote_code=True,
        sign=True,
        promote=False,
        remeasure=("mmlu",),
    )
    first = choose(given_options, settings)
    again = parse(ModelRequest, first.asked.words()[2:])
    assert choose(typing.cast(ModelRequest, again), settings) == first
    assert first.asked.words()[2:] == [
        *("org/model", "--recipe", "fp8-dynamic", "--recipe", "awq-w4a16", "--profile", "cpu"),
        *("--policy", "default", "--name", "model", "--eval-data", str(tmp_path)),
        *("--trust-remote-code", "--no-promote", "--sign", "--remeasure", "mmlu"),
    ]


def test_two_endpoints() -> None:
    request = GateRequest(
        baseline="http://a:1/v1",
        candidate="http://b:2",
        candidate_model="mine",
        family="int4",
        tokenizer=Path("/models/tokenizer"),
        max_length=2048,
        deployment_id="s",
    )
    assert choose_endpoints(request).asked.line() == (
        "prepare gate --baseline http://a:1/v1 --candidate http://b:2 "
        "--tokenizer /models/tokenizer --family int4 --candidate-model mine --max-length 2048 "
        "--deployment-id s"
    )


@pytest.mark.parametrize(
    "text",
    [
        b'{"request": {"kind": "model", "chekpoint": "a"}}',
        b'{"request": {"kind": "other"}}',
        b'{"request": {"kind": "gate", "baseline": "a"}}',
        b'{"request": {"kind": "model", "recipes": [1]}}',
        b'{"request": []}',
    ],
)
def test_a_damaged_request_is_refused(text: bytes) -> None:
    with pytest.raises(UntrustedJsonError):
        parse_record(text, Recorded)
