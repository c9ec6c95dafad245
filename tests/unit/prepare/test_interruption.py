from __future__ import annotations

import signal

import pytest

from prepare.errors import ServingError, StoreError
from prepare.interruption import INTERRUPTIONS, hold_interruptions, is_interruption


def raised_by(work: type[BaseException], while_handling: BaseException) -> BaseException:
    try:
        try:
            raise while_handling
        finally:
            raise work("in the midst of ending")
    except BaseException as error:
        return error


class Interrupting:
    def __set_name__(self, owner: type, name: str) -> None:
        raise KeyboardInterrupt


def test_one_that_comes_while_a_class_is_made() -> None:
    with pytest.raises((RuntimeError, KeyboardInterrupt)) as raised:
        type("Made", (), {"field": Interrupting()})
    assert is_interruption(raised.value)


def test_one_that_became_another_error() -> None:
    assert is_interruption(KeyboardInterrupt())
    assert is_interruption(raised_by(ServingError, KeyboardInterrupt()))
    assert not is_interruption(raised_by(ServingError, ValueError()))
    assert not is_interruption(None)


def test_an_error_raised_in_its_place_is_none() -> None:
    """Who loses a claim is interrupted, too, and told why."""
    error = StoreError("another has taken over")
    error.__context__, error.__suppress_context__ = KeyboardInterrupt(), True
    assert not is_interruption(error)


@pytest.mark.parametrize("number", INTERRUPTIONS)
def test_it_is_raised_once_the_block_has_ended(number: signal.Signals) -> None:
    before = signal.signal(number, signal.default_int_handler)
    done = []

    def work() -> None:
        with hold_interruptions():
            for _ in range(3):
                signal.raise_signal(number)
                with hold_interruptions():
                    signal.raise_signal(number)
                done.append(True)

    try:
        with pytest.raises(KeyboardInterrupt):
            work()
        assert len(done) == 3
        assert signal.getsignal(number) is signal.default_int_handler
    finally:
        signal.signal(number, before)


def test_what_would_not_interrupt_is_left_alone() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with hold_interruptions():
            assert signal.getsignal(signal.SIGINT) == signal.SIG_IGN
            signal.raise_signal(signal.SIGINT)
    finally:
        signal.signal(signal.SIGINT, before)
