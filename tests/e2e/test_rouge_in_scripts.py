"""ROUGE and BLEU of the real packages for texts in several scripts."""

from __future__ import annotations

from pathlib import Path

import pytest
from run_in_evaluate import run_in_evaluate

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

SCRIPT = """
import json, sys
sys.path.insert(0, sys.argv[1])
from rouge_score.rouge_scorer import RougeScorer
from eval_gates.suites import rouge

pairs = {
    "russian, contrary": ("Он выжил.", "Она погибла."),
    "russian, equal": ("Он выжил.", "Он выжил."),
    "chinese, equal": ("他活下来了。", "他活下来了。"),
    "chinese, near": ("他今天早上在北京活下来了。", "他今天晚上在北京活下来了。"),
    "japanese, near": ("彼は今朝東京で助かった。", "彼は今夜東京で助かった。"),
    "thai, equal": ("เขารอดชีวิต", "เขารอดชีวิต"),
    "french, equal": ("Le cafe\u0301 est ferme\u0301 ce soir.", "Le café est fermé ce soir."),
    "korean, equal": ("\u110f\u1161\u1111\u1166 닫음", "카페 닫음"),
    "chinese and latin, near": ("Apple公司推出iPhone手机旧品Pro", "Apple公司推出iPhone手机新品Pro"),
    "hindi, contrary": ("वह जीवित है", "उसकी मृत्यु हुई"),
}
found = {name: rouge.score(one, [other]) for name, (one, other) in pairs.items()}
texts = [row["document"] for row in rouge.read_carried() if row["document"].isascii()]
own = RougeScorer(list(rouge.ROUGE), use_stemmer=True)
differ = 0
for one, other in zip(texts, texts[1:]):
    ours, theirs = rouge.score(one, [other]), own.score(
        rouge.a_sentence_a_line(other), rouge.a_sentence_a_line(one)
    )
    differ += any(abs(ours[name] - theirs[name].fmeasure) > 1e-12 for name in rouge.ROUGE)
print("RESULT " + json.dumps({"scores": found, "differ": differ}))
"""


def test_scores_follow_the_words_of_each_script(tmp_path: Path) -> None:
    found = run_in_evaluate(SCRIPT, tmp_path)
    scores = found["scores"]
    for name, values in scores.items():
        script, _, relation = name.partition(", ")
        if relation == "equal":
            assert values["rougeL"] == values["bleu"] == 1, script
        elif relation == "contrary":
            assert values["rougeL"] == 0, script
        else:
            assert 0.5 < values["rougeL"] < 1, script
            assert 0.3 < values["bleu"] < 1, script
    assert found["differ"] == 0  # English is scored as rouge-score does
