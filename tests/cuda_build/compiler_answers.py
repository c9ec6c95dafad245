"""Runs in the CUDA serving environment over the faked driver: which kernels vLLM would use.

    compiler_answers.py QUESTIONS.json ANSWERS.json

Questions: `commands` (argument lists), `model` (folder), `compile` (whether to compile, link and
load a module of FlashInfer). Answers: whether vLLM uses FlashInfer, for each command whether it
fuses all-reduce and RMSNorm, and whether the module was loaded.
"""

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))  # servers' variables leave out the script's folder

from engine_answers import configured, placed, pretend_device


def main(questions_path, answers_path):
    """Answer all questions."""
    questions = json.loads(Path(questions_path).read_text())
    pretend_device()
    from vllm.entrypoints.common.cli_args import make_arg_parser
    from vllm.utils.argparse_utils import FlexibleArgumentParser
    from vllm.utils.flashinfer import has_flashinfer

    parser = make_arg_parser(FlexibleArgumentParser())
    configurations = [
        configured(parser, placed(words, questions["model"])) for words in questions["commands"]
    ]
    answers = {
        "flashinfer": has_flashinfer(),
        "fuse_allreduce_rms": [
            bool(each.compilation_config.pass_config.fuse_allreduce_rms) for each in configurations
        ],
        "compiled": False,
    }
    if questions["compile"]:
        from flashinfer.jit.comm import gen_trtllm_comm_module

        module = gen_trtllm_comm_module()  # what the fused all-reduce is
        module.build(verbose=False)
        answers["compiled"] = module.load(module.jit_library_path) is not None
    Path(answers_path).write_text(json.dumps(answers))


if __name__ == "__main__":
    main(*sys.argv[1:])
