"""Signals during a run, and how it reacts to them."""

import hashlib
import os
import signal
import threading
import time

import pytest

from gtrxl_jax.runs import preemption
from gtrxl_jax.runs.preemption import Interruption, RunInterrupted


@pytest.fixture
def exits(monkeypatch):
    """Record the codes of immediate exits of a process of runs alone, instead of exiting."""
    codes = []
    monkeypatch.setattr(preemption, "_owns_process", True)
    monkeypatch.setattr(preemption, "_exit", codes.append)
    return codes


def send(number, until):
    os.kill(os.getpid(), number)
    deadline = time.monotonic() + 10
    while not until():
        assert time.monotonic() < deadline
        time.sleep(0.001)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_requests_stop_and_is_reported(number, exits, capfd):
    before = signal.getsignal(number)
    with Interruption() as asked:
        asked.defer_signals()
        assert asked.requested is None
        send(number, lambda: asked.requested)
        assert asked.requested == number
    assert exits == []
    assert signal.getsignal(number) is before
    assert capfd.readouterr().err.startswith(f"{number.name}: finishing this iteration and saving")


def test_only_second_interrupt_exits_at_once(exits):
    with Interruption() as asked:
        asked.defer_signals()
        send(signal.SIGINT, lambda: asked.requested)
        os.kill(os.getpid(), signal.SIGTERM)
        send(signal.SIGINT, lambda: exits)
    assert exits == [130]


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 75), (signal.SIGINT, 130)])
def test_signal_before_working_exits_at_once(number, code, exits, capfd):
    with Interruption():
        send(number, lambda: exits)
    assert exits == [code]
    expected = f"{number.name} before the first iteration: nothing to save\n"
    assert capfd.readouterr().err.startswith(expected)


def test_process_of_others_survives():
    """As that of a notebook, where an interrupt is to end the cell, not the kernel."""
    with pytest.raises(KeyboardInterrupt), Interruption():
        signal.raise_signal(signal.SIGINT)
    with Interruption() as asked:
        asked.defer_signals()
        send(signal.SIGINT, lambda: asked.requested)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_signal_while_main_thread_is_busy(exits):
    """During a long compiled program, Python runs no signal handlers."""
    busy, noticed = threading.Event(), []
    with Interruption() as asked:
        asked.defer_signals()

        def ask():
            os.kill(os.getpid(), signal.SIGTERM)
            while not asked.requested and busy.is_set():
                time.sleep(0.001)
            noticed.append(busy.is_set())

        thread = threading.Thread(target=ask)
        busy.set()
        thread.start()
        hashlib.pbkdf2_hmac("sha256", b"", b"", 6_000_000)  # without the lock of Python's threads
        busy.clear()
        thread.join()
    assert noticed == [True]
    assert exits == []


def test_an_ignored_signal_stays_ignored(exits):
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with Interruption() as asked:
            asked.defer_signals()
            os.kill(os.getpid(), signal.SIGINT)
            send(signal.SIGTERM, lambda: asked.requested)
            assert asked.requested == signal.SIGTERM
    finally:
        signal.signal(signal.SIGINT, before)


def test_no_handling_outside_main_thread():
    seen = []

    def run():
        with Interruption() as asked:
            seen.append(asked.requested)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert seen == [None]


def test_message_of_interrupted_run(tmp_path):
    stopped = RunInterrupted(signal.SIGTERM, 12_800, tmp_path)
    assert str(stopped) == f"stopped by SIGTERM at step 12,800, saved in {tmp_path}"
    assert stopped.exit_code == 75
