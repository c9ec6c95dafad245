import re
import signal

import pytest

from eval_gates.suites.cpu_limit import limit_cpu


def test_an_endless_regular_expression_ends() -> None:
    with pytest.raises(TimeoutError), limit_cpu(0.2):
        re.search("(a|a)*$", "a" * 40 + "!")


def test_the_signal_is_as_before_afterwards() -> None:
    before = signal.getsignal(signal.SIGPROF)
    with limit_cpu(5):
        pass
    assert signal.getsignal(signal.SIGPROF) == before
    assert signal.getitimer(signal.ITIMER_PROF)[0] == 0
