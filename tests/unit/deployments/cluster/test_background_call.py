import subprocess
import sys
import threading

import pytest

from rayinfer_deployments.cluster.background_call import BackgroundCall


def test_a_call_gives_what_the_function_returns_or_raises():
    assert BackgroundCall(lambda: 3).result() == 3
    with pytest.raises(ZeroDivisionError):
        BackgroundCall(lambda: 1 // 0).result()


def test_a_failure_shows_only_once_it_has_happened():
    may_fail = threading.Event()

    def fail():
        may_fail.wait()
        raise ValueError("late")

    call = BackgroundCall(fail)
    call.raise_if_failed()
    may_fail.set()
    with pytest.raises(ValueError, match="late"):
        call.result()
    with pytest.raises(ValueError, match="late"):
        call.raise_if_failed()


def test_a_check_ends_the_wait_while_the_call_still_runs():
    never = threading.Event()

    def give_up():
        raise KeyboardInterrupt

    call = BackgroundCall(never.wait)
    with pytest.raises(KeyboardInterrupt):
        call.result(check=give_up)
    assert not call.is_done
    never.set()


def test_the_thread_lives_until_it_is_released():
    threads = []
    call = BackgroundCall(lambda: threads.append(threading.current_thread()))
    call.result()
    (thread,) = threads
    thread.join(0.05)
    assert thread.is_alive()  # Linux ends the processes that a thread started when the thread ends
    call.release()
    thread.join(5)
    assert not thread.is_alive()


def test_an_unfinished_call_does_not_keep_the_process():
    program = "from rayinfer_deployments.cluster.background_call import BackgroundCall as C; import time\n"
    program += "print(C(lambda: time.sleep(60)).is_done)"
    answer = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=30)
    assert (answer.returncode, answer.stdout) == (0, "False\n")
