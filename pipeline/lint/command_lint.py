"""Says of a foreign `vllm serve` command line what is gone, default already, or harmful.

What the engine knows comes from its own parser (`recipes/engines/*.txt`), the rest from data
(`recipes/engines/vllm-facts.yaml`). Nothing is run.
"""

from __future__ import annotations

import difflib
import re
import shlex
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from typing import Any, Literal

from pipeline.capacity.serving_limits import ServingLimits
from pipeline.core.errors import UsageError
from pipeline.lint.container_command import command_lines
from recipes.engine_facts import EngineFacts, vllm_facts
from recipes.engines import EngineCliOptions, find_engine
from recipes.gpu import GpuType
from recipes.schema import AcceleratorName

Severity = Literal["fails", "harms", "idle", "note"]
WHERE = "prepare lint"
MAX_CHARACTERS = 20_000
# Also as docker takes it.
_VARIABLE = re.compile(r"(?:-e|--env=)?([A-Z_][A-Z0-9_]*)=(.*)", re.DOTALL)
_MODULE = re.compile(r"vllm\.entrypoints\.[\w.]+")
_IMAGE = re.compile(r"(.+/)?vllm/vllm-openai([-:@].+)?")  # whose entry point is the server
_SHELL = re.compile(r"(.*/)?(ba|da|a|k|z)?sh")
_COMMAND_OF_A_SHELL = re.compile(r"-[a-z]*c")  # such as -c, -ec and -lc
_PARAMETER = re.compile(r'"?\$(?:\{([@*\d])\}|([@*\d]))"?')  # of a shell's command: "$@", $1
_UNKNOWN_WORDS = ("$@", "$*", "${@}", "${*}")  # of a script that a user calls
_CONTINUED = re.compile(r"\\\r?\n")
_TRUTHS = ("true", "false")
_ENDS = ";|&<>()\n"  # of a command, in a shell
_NUMBER = re.compile(r"-?\d+(\.\d+)?")
_SMALLER_IS_LESS = ("max-num-seqs", "max-num-batched-tokens", "gpu-memory-utilization")


@dataclass(frozen=True)
class LintFinding:
    """One thing about a command line."""

    argument: str  # as it was written
    severity: Severity  # fails: the server does not start; idle: it might as well be left out
    what: str
    hint: str = ""


@dataclass(frozen=True)
class ParsedCommand:
    """A command line taken apart."""

    variables: dict[str, str]  # set before the program
    options: list[tuple[str, str]] = field(default_factory=list)  # as written; its value, or ""


@dataclass(frozen=True)
class LintReport:
    """What was found, and what it holds for."""

    version: str  # of the engine
    place: str  # that defaults are those of
    findings: tuple[LintFinding, ...]
    parameters: dict[str, str]  # what guides tune, and how it is without an argument

    @property
    def fails(self) -> bool:
        return any(each.severity == "fails" for each in self.findings)

    def to_dict(self) -> dict[str, Any]:
        """Plain data for `--json`."""
        return {"schema_version": 1, **asdict(self)}


def lint(text: str, accelerator: AcceleratorName, gpu: GpuType | None) -> LintReport:
    """Look at a command line.

    Args:
        text: as one would give it to a shell, where line ends after a backslash are none; or a
            Kubernetes manifest or a Compose file.
        accelerator: kind of machine, which decides the engine's version.
        gpu: kind of GPU, by whose memory the engine chooses some defaults; None: of a CPU.

    Raises:
        UsageError: it is no command line of vLLM's server.
    """
    facts, options = vllm_facts(), find_engine("vllm").options_of(accelerator)
    command = take_apart(text)
    defaults = {n: d for n, d in options.defaults.items() if d is not None}
    defaults |= facts.resolved[accelerator]
    if gpu is not None:
        limits = ServingLimits.of(gpu, None)
        defaults |= {
            "max-num-seqs": str(limits.sequences),
            "max-num-batched-tokens": str(limits.step_tokens),
        }
    linter = _Linter(facts, options, defaults)
    found = [*linter.look_at_variables(command.variables), *linter.look_at_options(command.options)]
    place = gpu.driver_name if gpu is not None else "a CPU"
    return LintReport(
        options.version,
        place,
        tuple(found),
        {str(n): words for n, words in facts.parameters.items()},
    )


def take_apart(text: str) -> ParsedCommand:
    """Variables and options of the first server in a text; what follows it in a shell is left out.

    Args:
        text: for a shell, or a file of containers; then of the first of them that has a server.

    Raises:
        UsageError: it has none, is too long, or its quotes do not close.
    """
    if len(text) > MAX_CHARACTERS:
        raise UsageError(
            f"that is {len(text)} letters, and more than {MAX_CHARACTERS} are not looked at",
            where=WHERE,
            hint="give the command line alone, or the file of one container",
        )
    text = text.encode("utf-8", "replace").decode()  # a byte that is no UTF-8 is part of no option
    *others, last = command_lines(text) or [text]
    for line in others:
        with suppress(UsageError):
            return _take_line_apart(line)
    return _take_line_apart(last)


def _take_line_apart(text: str) -> ParsedCommand:
    words = _unfold(_split(text))
    begin = next((n for n, word in enumerate(words) if _is_server(words, n, word)), None)
    if begin is None:
        begin = next((n for n, word in enumerate(words) if _IMAGE.fullmatch(word)), None)
    if begin is None:
        raise UsageError(
            "there is no vLLM server in that command line",
            where=WHERE,
            hint="give it whole, in quotes: prepare lint 'vllm serve MODEL --max-num-seqs 256'",
        )
    before = (_VARIABLE.fullmatch(word) for word in words[:begin])
    return ParsedCommand(
        {found[1]: found[2] for found in before if found},
        list(_pair_options(words[begin + 1 :])),
    )


def _split(text: str) -> list[str]:
    """Return the words of a line; ends of commands are words, too."""
    whole = _CONTINUED.sub("", text)
    lexer = shlex.shlex(whole, posix=True, punctuation_chars=_ENDS)
    lexer.whitespace_split, lexer.commenters, lexer.whitespace = True, "", " \t\r"
    try:
        return list(lexer)
    except ValueError as error:
        raise UsageError(
            f"the command line cannot be read: {error}",
            where=WHERE,
            hint="close each quote, and write none alone",
        ) from error


def _unfold(words: list[str]) -> list[str]:
    """With the command of `sh -c COMMAND NAME WORD...` in its place; the words are its `"$@"`."""
    shell = next((n for n, word in enumerate(words) if _SHELL.fullmatch(word)), len(words))
    for place, word in enumerate(words[shell:-1], shell):
        if _is_server(words, place, word):
            break
        if _COMMAND_OF_A_SHELL.fullmatch(word):
            after = words[place + 2 :]
            end = next((n for n, each in enumerate(after) if not each.strip(_ENDS)), len(after))
            command = _with_parameters(words[place + 1], after[:end])
            return [*words[:place], *_split(command), *after[end:]]
    return words


def _with_parameters(command: str, words: list[str]) -> str:
    def value(found: re.Match[str]) -> str:
        which = found[1] or found[2]
        return shlex.join(words[1:] if which in "@*" else words[int(which) :][:1])

    return _PARAMETER.sub(value, command)


def _is_server(words: list[str], place: int, word: str) -> bool:
    return (word == "serve" and place > 0 and words[place - 1].endswith("vllm")) or bool(
        _MODULE.fullmatch(word)
    )


def _pair_options(words: list[str]) -> Iterator[tuple[str, str]]:
    name, values = "", list[str]()
    for word, following in pairwise([*words, ""]):
        if not word.strip("\n") and following.startswith("-") and following.strip("-"):
            continue  # folded, as in YAML
        if not word.strip(_ENDS):
            break
        if word in _UNKNOWN_WORDS:
            continue
        if word.startswith("-") and not _NUMBER.fullmatch(word):
            if name:
                yield name, " ".join(values)
            name, separator, value = word.partition("=")
            values = [value] if separator else []
        else:
            values.append(word)
    if name:
        yield name, " ".join(values)


@dataclass(frozen=True)
class _Linter:
    facts: EngineFacts
    options: EngineCliOptions
    defaults: dict[str, str]

    def look_at_variables(self, variables: dict[str, str]) -> Iterator[LintFinding]:
        for name in variables:
            if not name.startswith("VLLM_") or name in self.options.variables:
                continue
            hint = self.facts.removed_variables.get(name) or _nearest(name, self.options.variables)
            yield LintFinding(name, "idle", f"{self.options.version} reads no such variable", hint)

    def look_at_options(self, given: list[tuple[str, str]]) -> Iterator[LintFinding]:
        seen: set[str] = set()
        for written, value in given:
            name = self._long_name(written)
            whole = self._whole_name(name)
            if not whole:
                yield self._unknown(written, name)
                continue
            if whole != name:
                yield LintFinding(
                    written, "note", f"short for --{whole}, until another begins so", "write it out"
                )
            if whole in self.facts.no_effect:
                yield LintFinding(written, "idle", self.facts.no_effect[whole], "leave it out")
                continue
            if value.lower() in _TRUTHS and self.defaults.get(whole) in _TRUTHS:
                yield LintFinding(
                    written,
                    "fails",
                    f"a switch takes no value: {self.options.version} does not start with it",
                    _switch(whole, value),
                )
                continue
            name, value = self._canonical(whole, value or _level(written))
            place = f"{name}.{written.partition('.')[2]}"  # keys of a mapping come together
            if place in seen:
                yield LintFinding(written, "note", "given twice; the last one counts")
            seen.add(place)
            yield from self._look_at(written, name, value)

    def _long_name(self, written: str) -> str:
        """Without dashes in front, and without what follows a dot: that leads into a mapping."""
        if written.startswith("-O"):
            return "optimization-level"
        short = written.partition(".")[0]
        if short in self.options.shorts:
            return self.options.shorts[short]
        return written.lstrip("-").partition(".")[0].replace("_", "-")

    def _whole_name(self, name: str) -> str:
        """Return the engine's option of that name or prefix; "" if there is none, or several."""
        known = self.options.defaults
        if name in known:
            return name
        if name in self.facts.removed_options:
            return ""
        hidden = re.fullmatch(r"no-((?:enable|disable)-.+)", name)
        if hidden and hidden[1] in known:
            return name
        begun = [each for each in known if each.startswith(name)] if name else []
        return begun[0] if len(begun) == 1 else ""

    def _unknown(self, written: str, name: str) -> LintFinding:
        if hint := self.facts.removed_options.get(name):
            return LintFinding(written, "fails", f"gone: {self.options.version} refuses it", hint)
        return LintFinding(
            written,
            "fails",
            f"{self.options.version} has no such option, and does not start with it",
            _nearest(name, self.options.defaults, "--"),
        )

    def _canonical(self, name: str, value: str) -> tuple[str, str]:
        """Return a switch by its positive name, with `true` or `false`."""
        known = self.options.defaults
        if name.startswith("no-") and name[3:] in known:
            name, value = name[3:], "false"
        positive = "enable-" + name.removeprefix("disable-")
        if name.startswith("disable-") and positive in known:
            return positive, "true" if value == "false" else "false"
        return name, value or "true"

    def _look_at(self, written: str, name: str, value: str) -> Iterator[LintFinding]:
        default = self.defaults.get(name)
        if default is not None and _same(value, default):
            yield LintFinding(written, "idle", f"{value} is the default", "leave it out")
        elif why := self.facts.slows_down.get(f"{name}={value}"):
            yield LintFinding(written, "harms", why, "leave it out, unless you measured why not")
        elif default is not None and name in _SMALLER_IS_LESS and _less(value, default):
            yield LintFinding(
                written,
                "harms",
                f"{value} is below the default of {default}",
                "leave it out, unless you measured why not",
            )
        elif name == "config":
            yield LintFinding(
                written, "note", "what that file says is not looked at", "write its keys as options"
            )
        elif name in self.facts.changes_outputs:
            yield LintFinding(
                written,
                "note",
                "it changes answers",
                "gate them: `prepare model` with a profile that has it, or `prepare gate`",
            )


def _switch(name: str, value: str) -> str:
    if value.lower() == "true":
        return f"write --{name} alone"
    return f"write --{name.removeprefix('no-') if name.startswith('no-') else 'no-' + name}"


def _level(written: str) -> str:
    return written.removeprefix("-O") if written.startswith("-O") else ""


def _same(value: str, default: str) -> bool:
    if _NUMBER.fullmatch(value) and _NUMBER.fullmatch(default):
        return float(value) == float(default)
    return value.lower() == default.lower()


def _less(value: str, default: str) -> bool:
    return bool(_NUMBER.fullmatch(value)) and float(value) < float(default)


def _nearest(name: str, known: Any, dashes: str = "") -> str:
    close = difflib.get_close_matches(name[:80], list(known), n=1)
    return f"did you mean {dashes}{close[0]}?" if close else "leave it out"
