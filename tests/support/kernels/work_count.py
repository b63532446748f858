"""Work of an action, in executed bytecodes, which a busy machine does not change."""

import gc
import sys


def count_bytecodes(action):
    """Run an action and count what the interpreter executes for it in Python code, and how often it calls into C."""
    count, tracer, profiler, collects = 0, sys.gettrace(), sys.getprofile(), gc.isenabled()

    def trace(frame, event, _):
        nonlocal count
        frame.f_trace_opcodes = True
        count += event == "opcode"
        return trace

    def profile(_frame, event, _):
        nonlocal count
        count += event == "c_call"

    gc.disable()  # a collection in between runs callbacks of libraries, which would be counted
    sys.settrace(trace)
    sys.setprofile(profile)
    try:
        action()
    finally:
        sys.settrace(tracer)
        sys.setprofile(profiler)
        if collects:
            gc.enable()
    return count
