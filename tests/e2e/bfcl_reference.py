"""Fixed answers to BFCL's cases, and the verdicts of BFCL's own scorer on them.

`bfcl_verdicts.json` holds those verdicts. To make it again, run this module where `bfcl-eval` is
installed with its dependencies: it calls the scorer of its leaderboard.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

VERDICTS = Path(__file__).with_name("bfcl_verdicts.json")
PER_CATEGORY = 60
Calls = list[dict[str, dict[str, Any]]]


def fixed_calls(calls: Calls, number: int) -> Calls:
    """Right calls, changed by the number's rule."""
    changed: Calls = json.loads(json.dumps(calls))
    name, arguments = next(iter(changed[0].items())) if changed else ("absent", {"x": 1})
    key = next(iter(arguments), None)
    match number % 9:
        case 1:
            arguments.pop(key, None)
        case 2 if key is not None:
            arguments[key] = f"not {arguments[key]}"
        case 3:
            changed += changed[:1]
        case 4:
            changed[:1] = [{f"{name}_more": arguments}]
        case 5:
            arguments["surplus"] = True
        case 6:
            changed = changed[1:]
        case 7 if key is not None:
            arguments[key] = str(arguments[key])
        case 8:
            changed.reverse()
    return changed


def fixed_text(calls: Calls, number: int) -> str:
    """An answer of the prompting form."""
    rendered = ", ".join(
        f"{name}({', '.join(f'{key}={_literal(value)}' for key, value in arguments.items())})"
        for call in fixed_calls(calls, number)
        for name, arguments in call.items()
    )
    match number % 7:
        case 1:
            return f"```\n[{rendered}]\n```"
        case 2:
            return rendered
        case 3:
            return f"I would call [{rendered}]."
        case 4:
            return f"[{rendered}"
        case 5 if number % 2:
            return "None of the functions can be used."
        case 6 if number % 3 == 0:
            return ""
    return f"[{rendered}]"


def fixed_arguments(calls: Calls, number: int) -> list[tuple[str, str]]:
    """Names and arguments of the server's form, some of which are no JSON."""
    found = [
        (name.replace(".", "_"), json.dumps(arguments))
        for call in fixed_calls(calls, number)
        for name, arguments in call.items()
    ]
    return [(name, text[:-1]) for name, text in found] if number % 10 == 9 else found


def _literal(value: Any) -> str:
    """Python, whose numbers are sums here and there."""
    if isinstance(value, int) and not isinstance(value, bool) and value % 3 == 0:
        return f"{value - 1} + 1"
    return repr(value)


def _verdicts_of_the_authors() -> dict[str, str]:
    from bfcl_eval import utils
    from bfcl_eval.constants.category_mapping import SINGLE_TURN_CATEGORY
    from bfcl_eval.constants.enums import Language, ReturnFormat
    from bfcl_eval.eval_checker import eval_runner

    sys.path.insert(0, str(Path(__file__).parents[2]))
    from eval_gates.suites.bfcl import right_calls

    models = {"prompt": "google/gemma-3-12b-it", "server": "gpt-4o-2024-11-20-FC"}
    found = {}
    for form, model in models.items():
        handler = eval_runner.get_handler(model)
        for category in SINGLE_TURN_CATEGORY:
            entries = utils.load_dataset_entry(category, include_language_specific_hint=False)
            is_relevance = "relevance" in category
            truths = None if is_relevance else utils.load_ground_truth_entry(category)
            marks = ""
            for number, entry in enumerate(entries[:PER_CATEGORY]):
                truth = truths[number]["ground_truth"] if truths else []
                calls = right_calls(truth)
                answer: Any = fixed_text(calls, number)
                if form == "server":
                    pairs = fixed_arguments(calls, number)
                    # Without calls its client hands on the text.
                    answer = [{name: text} for name, text in pairs] or "No call."
                shared = (handler, entry["id"], answer)
                if is_relevance:
                    result = eval_runner._evaluate_single_relevance_entry(
                        *shared, entry, model, category
                    )
                else:
                    name = {"simple_java": "JAVA", "simple_javascript": "JAVASCRIPT"}.get(
                        category, "PYTHON"
                    )
                    result = eval_runner._evaluate_single_ast_entry(
                        *shared, truth, entry, model, category, Language[name], ReturnFormat[name]
                    )
                marks += "1" if result["valid"] else "0"
            found[f"{form}/{category}"] = marks
    return found


if __name__ == "__main__":
    VERDICTS.write_text(json.dumps(_verdicts_of_the_authors(), indent=1) + "\n")
