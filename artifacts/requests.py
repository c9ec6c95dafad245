"""Requests of `prepare model`, `gate`, `recheck` and `tune`: a field carries its option.

The parser, run.json, request.json, `--json`, the differences between copies, and the command that
repeats a run are loops over these fields. The module imports no library, so that `--help`
starts fast; pydantic checks a request that is read from a file.
"""

from __future__ import annotations

import dataclasses
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

from prepare.own_command import own_command

RequestKind = Literal["model", "gate", "recheck", "tune"]
PASSWORD = re.compile(r"//[^/@\s]+@")
FILE = re.compile(r"\.ya?ml(?:\+[0-9.]+)?$")
"""End of a file's name, or of a recipe's file with what it gives back."""


@dataclass(frozen=True)
class Option:
    """An option of the command line, or its argument if `flag` is empty."""

    flag: str
    help: str
    short: str = ""
    off: str = ""  # the flag that sets a switch to False
    metavar: str = ""
    minimum: int | None = None
    has_variable: bool = True  # PREPARE_<FLAG> sets it, too
    is_address: bool = False  # its credentials are removed and remembered
    is_private: bool = False  # left out of the command that others read
    shows_default: bool = False


CHECKPOINT = Option(
    "",
    "A folder, a Hub id (org/name, optionally @revision), or demo:smollm2-135m.",
    metavar="CHECKPOINT",
    is_address=True,
)
RECIPE = Option(
    "--recipe",
    "Recipe name or YAML file; repeatable. awq-w4a16+5 gives 8 bits back where 4 lose most, in 5 % "
    "more bytes. Default: fp8-dynamic and awq-w4a16.",
    short="-r",
)
VARIANT = Option(
    "--variant",
    "Variant that others quantized: a folder or Hub id (org/name@revision), with NAME= before it "
    "or not; repeatable. Without --recipe no recipe runs.",
    metavar="[NAME=]CHECKPOINT",
    is_address=True,
)
SERVED_VARIANT = Option(
    "--served-variant",
    "The checkpoint's own weights, served with further engine arguments, such as "
    "online='--quantization fp8'; repeatable.",
    metavar="NAME=ARGUMENTS",
    has_variable=False,
)
PROFILE = Option("--profile", "auto, cpu, h100, h200 or a YAML file.", shows_default=True)
POLICY = Option(
    "--policy", "Policy name or YAML file. Default: 'default', and 'demo' for demo checkpoints."
)
NAME = Option("--name", "Name in the registry. Default: the checkpoint's own.")
REGISTRY = Option(
    "--registry",
    "MLflow tracking URI. Default: a SQLite registry in the store's folder.",
    metavar="URI",
    is_address=True,
    is_private=True,
)
EVAL_DATA = Option(
    "--eval-data",
    "Folder of your own questions (mmlu*.jsonl, mbpp*.jsonl, summarization*.jsonl).",
)
GPUS_A_COPY = Option(
    "--gpus-a-copy",
    "GPUs that one copy of each model is spread over. Default: the profile's number, or the "
    "fewest that fit well.",
    minimum=1,
)
TRUST_REMOTE_CODE = Option("--trust-remote-code", "Run Python code that comes with the checkpoint.")
PROMOTE = Option(
    "--promote",
    "Register what passed and move the alias; or leave that to `prepare promote RUN`.",
    off="--no-promote",
    shows_default=True,
)
SIGN = Option(
    "--sign",
    "Sign what is registered, with $PREPARE_PRIVATE_KEY or the key of the settings file.",
)
KV = Option(
    "--kv",
    "Formats of the KV cache, by the engine's names, separated by commas; repeatable. Each "
    "variant's weights are served with each, as a separate variant. Default: the profile's.",
    metavar="FORMAT[,FORMAT]",
)
REMEASURE = Option(
    "--remeasure",
    "Measure this gate again though it is over: a suite, or a gate on speed such as ratio.chat. "
    "It is counted as a further measurement; repeatable.",
)
WEIGHTS = Option(
    "--weights",
    "Folder that `prepare pull` made. Default: the version's own, where it is a folder of this "
    "machine.",
    has_variable=False,
)
LEAVE_OUT = Option(
    "--leave-out",
    "Suite that is not compared, since what it needs is not on record; repeatable.",
    metavar="SUITE",
    has_variable=False,
)
OnFail = Literal["hold", "rollback"]
ON_FAIL = Option(
    "--on-fail",
    "hold: no alias moves. rollback: a failed check moves the alias back, as `prepare rollback` "
    "does, once until the next promotion.",
    metavar="hold|rollback",
    has_variable=False,
    shows_default=True,
)
REFERENCE = Option(
    "", "Registered name, '@', alias or version.", metavar="NAME@ALIAS", is_address=True
)


def option(declared: Option, default: Any = dataclasses.MISSING) -> Any:
    """Return a request's field with its option; without a default it is required."""
    # Pydantic reads the key "description".
    return field(default=default, metadata={"option": declared, "description": declared.help})


@dataclass(frozen=True, kw_only=True)
class CommandRequest:
    """What a user asked of a command, as given."""

    __pydantic_config__: ClassVar[dict[str, str]] = {"extra": "forbid"}
    kind: RequestKind

    @classmethod
    def options(cls) -> dict[str, Option]:
        """Return each field's option, in the order of the help."""
        fields = dataclasses.fields(cls)
        return {
            declared.name: declared.metadata["option"]
            for declared in fields
            if "option" in declared.metadata
        }

    @property
    def subject(self) -> str:
        """What is judged, in a line."""
        raise NotImplementedError

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for JSON."""
        plain = dataclasses.asdict(self)
        return {name: _plain(value) for name, value in plain.items()}

    def words(self, *, public: bool = False) -> list[str]:
        """Return the words of the command that repeats this request.

        `public` turns a path into `./NAME` and leaves private options out.
        """
        words = ["prepare", self.kind]
        defaults = {field.name: field.default for field in dataclasses.fields(self)}
        for name, declared in self.options().items():
            value = getattr(self, name)
            if value != defaults[name] and not (public and declared.is_private):
                words.extend(_words_of(declared, value, public=public))
        return words

    def line(self, *, public: bool = False) -> str:
        """Return the command as a shell line without passwords.

        One that is not public names the store and registry that the present command was given.
        """
        words = [without_password(word) for word in self.words(public=public)]
        return shlex.join(words) if public else own_command(self.kind, *words[2:])

    def differences(self, other: Self) -> str:
        """Describe which options of `other` differ; '' if none does."""
        return ", ".join(
            f"{name} is {getattr(other, name)}, not {getattr(self, name)}"
            for name in self.options()
            if getattr(other, name) != getattr(self, name)
        )


@dataclass(frozen=True, kw_only=True)
class ModelRequest(CommandRequest):
    """A request of `prepare model`; None where a default depends on other options."""

    kind: Literal["model"] = "model"
    checkpoint: str | None = option(CHECKPOINT, None)  # None: that of the run to join
    recipes: tuple[str, ...] = option(RECIPE, ())
    variants: tuple[str, ...] = option(VARIANT, ())
    served_variants: tuple[str, ...] = option(SERVED_VARIANT, ())
    kv: tuple[str, ...] = option(KV, ())
    profile: str = option(PROFILE, "auto")
    policy: str | None = option(POLICY, None)
    name: str | None = option(NAME, None)
    registry: str | None = option(REGISTRY, None)
    eval_data: Path | None = option(EVAL_DATA, None)
    gpus_a_copy: int | None = option(GPUS_A_COPY, None)
    trust_remote_code: bool = option(TRUST_REMOTE_CODE, False)
    promote: bool = option(PROMOTE, True)
    sign: bool = option(SIGN, False)
    ablate: bool = option(
        Option(
            "--ablate",
            "As --screen, and measure the weights and the KV cache of each variant alone.",
        ),
        False,
    )
    screen: bool = option(
        Option(
            "--screen",
            "Make and serve each variant once, and compare size, loss on conversations and speed. "
            "Nothing is gated or promoted.",
        ),
        False,
    )
    until: Literal["pass"] | None = option(
        Option(
            "--until",
            "Gate one variant after another, the largest first, as long as they pass, and promote "
            "the smallest that passed. Each has the whole error rate.",
        ),
        None,
    )
    remeasure: tuple[str, ...] = option(REMEASURE, ())

    @property
    def subject(self) -> str:
        return self.checkpoint or ""

    @property
    def is_screening(self) -> bool:
        """Whether variants are compared without gates."""
        return self.screen or self.ablate

    @property
    def until_pass(self) -> bool:
        """Whether gating ends at the first variant that does not pass."""
        return self.until is not None


@dataclass(frozen=True, kw_only=True)
class GateRequest(CommandRequest):
    """A request of `prepare gate`."""

    kind: Literal["gate"] = "gate"
    baseline: str = option(
        Option(
            "--baseline",
            "URL of the unquantized model; or answers on record: NAME@ALIAS of the registry, or "
            "RUN:VARIANT of the store.",
            metavar="URL|NAME@ALIAS|RUN:VARIANT",
            is_address=True,
        )
    )
    candidate: str = option(
        Option("--candidate", "URL of the model to judge.", metavar="URL", is_address=True)
    )
    tokenizer: Path | None = option(
        Option(
            "--tokenizer",
            "Folder with the models' tokenizer, such as the checkpoint's. Without one both are "
            "asked by the chat API.",
        ),
        None,
    )
    api: str = option(
        Option(
            "--api",
            "How both are asked: completions, chat, or auto (completions with --tokenizer, else "
            "chat).",
            shows_default=True,
        ),
        "auto",
    )
    policy: str = option(
        Option("--policy", "Policy name or YAML file.", shows_default=True), "default"
    )
    family: str = option(
        Option("--family", "Whose margins apply: fp8, int8, int4 or fp4.", shows_default=True),
        "fp8",
    )
    baseline_model: str | None = option(
        Option(
            "--baseline-model",
            "The model to ask, if the endpoint serves several.",
            has_variable=False,
        ),
        None,
    )
    candidate_model: str | None = option(
        Option(
            "--candidate-model",
            "The model to ask, if the endpoint serves several.",
            has_variable=False,
        ),
        None,
    )
    max_length: int | None = option(
        Option(
            "--max-length",
            "Tokens of a prompt with its answer. Default: what the endpoints say.",
            minimum=128,
            has_variable=False,
        ),
        None,
    )
    deployment_id: str | None = option(
        Option(
            "--deployment-id",
            "Continue from the answers stored under this id. Default: ask everything again.",
        ),
        None,
    )
    eval_data: Path | None = option(EVAL_DATA, None)
    remeasure: tuple[str, ...] = option(REMEASURE, ())
    leave_out: tuple[str, ...] = option(LEAVE_OUT, ())
    on_fail: OnFail = option(ON_FAIL, "hold")
    weights: Path | None = option(WEIGHTS, None)
    registry: str | None = option(REGISTRY, None)

    @property
    def subject(self) -> str:
        return f"{self.candidate} against {self.baseline}"

    @property
    def by_chat(self) -> bool:
        """Whether both are asked by the chat API."""
        return self.api == "chat" or (self.api == "auto" and self.tokenizer is None)


@dataclass(frozen=True, kw_only=True)
class RecheckRequest(CommandRequest):
    """A request of `prepare recheck`."""

    kind: Literal["recheck"] = "recheck"
    reference: str = option(REFERENCE)
    force: bool = option(
        Option("--force", "Measure anyway, without answers kept from before.", has_variable=False),
        False,
    )
    remeasure: tuple[str, ...] = option(REMEASURE, ())
    profile: str | None = option(
        Option(
            "--profile",
            "Serve by this profile: a name, a YAML file or 'auto'. Default: the arguments that "
            "were judged.",
            has_variable=False,
        ),
        None,
    )
    weights: Path | None = option(WEIGHTS, None)
    source: str | None = option(
        Option(
            "--source",
            "Compare with the source checkpoint in any case, which is now there. Default: only if "
            "the variant is not shown to be what was promoted, and where the source was.",
            metavar="CHECKPOINT",
            has_variable=False,
        ),
        None,
    )
    leave_out: tuple[str, ...] = option(LEAVE_OUT, ())
    on_fail: OnFail = option(ON_FAIL, "hold")
    trust_remote_code: bool = option(TRUST_REMOTE_CODE, False)
    eval_data: Path | None = option(EVAL_DATA, None)
    registry: str | None = option(REGISTRY, None)

    @property
    def subject(self) -> str:
        return self.reference


@dataclass(frozen=True, kw_only=True)
class TuneRequest(CommandRequest):
    """A request of `prepare tune`."""

    kind: Literal["tune"] = "tune"
    checkpoint: str = option(
        Option(
            "",
            "A folder, a Hub id (org/name, optionally @revision), demo:smollm2-135m, or "
            "NAME@ALIAS of the registry; also a quantized one.",
            metavar="CHECKPOINT",
            is_address=True,
        )
    )
    policy: str | None = option(POLICY, None)
    profile: str = option(PROFILE, "auto")
    workload: str | None = option(
        Option(
            "--workload",
            "Name or YAML file of the load. Default: that of the policy's ratio of speed, or "
            "'chat'.",
            has_variable=False,
        ),
        None,
    )
    candidates: str = option(
        Option(
            "--candidates",
            "Name or YAML file of what to try.",
            has_variable=False,
            shows_default=True,
        ),
        "standard",
    )
    output: Path | None = option(
        Option(
            "--output",
            "Also write the tuned profile to this file.",
            short="-o",
            has_variable=False,
        ),
        None,
    )
    registry: str | None = option(REGISTRY, None)
    gpus_a_copy: int | None = option(GPUS_A_COPY, None)
    trust_remote_code: bool = option(TRUST_REMOTE_CODE, False)

    @property
    def subject(self) -> str:
        return self.checkpoint


def without_password(text: str) -> str:
    """Remove a URL's user and password."""
    return PASSWORD.sub("//***@", text)


def _plain(value: Any) -> Any:
    """Return a field's value as JSON has it."""
    if isinstance(value, tuple):
        return list(value)
    return str(value) if isinstance(value, Path) else value


def _words_of(declared: Option, value: Any, *, public: bool) -> Iterator[str]:
    """Yield the words that give an option a value other than its default."""
    if isinstance(value, bool):
        yield declared.flag if value else declared.off
        return
    values = value if isinstance(value, tuple) else (value,)
    for one in values:
        text = _public_text(one) if public else str(one)
        if declared.flag:
            yield declared.flag
        yield text


def _public_text(value: Any) -> str:
    """Return a value whose path, also one behind NAME=, is its last part only."""
    text = str(value)
    if isinstance(value, Path):
        return f"./{value.name}"
    name, equals, rest = text.partition("=")
    if equals and "/" not in name:
        arguments = rest.split(" ") if rest.startswith("-") else [rest]
        return f"{name}={' '.join(map(_public_text, arguments))}"
    is_path = text.startswith(("/", ".", "~")) or FILE.search(text) is not None
    return f"./{Path(text).name}" if is_path else text
