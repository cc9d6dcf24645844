"""Runs Python programs one after the other, each in a process of its own that starts with torch and transformers imported.

Importing these takes some five seconds, so one process does it and forks for each program. Nothing of lrpx is imported
before the fork, and what a program does stays in its process.

    python forked.py < paths

For each path on standard input it prints a line of JSON: the exit status, and all that the program wrote.
"""

import json
import os
import runpy
import signal
import sys
import tempfile
import traceback

LONGEST = 300  # seconds


def run(path):
    """Exit status of the program, and what it wrote to standard output and standard error."""
    with tempfile.TemporaryFile() as said:
        child = os.fork()
        if not child:
            _become(path, said.fileno())
        _, status = os.waitpid(child, 0)
        said.seek(0)
        return os.waitstatus_to_exitcode(status), said.read().decode()


def _become(path, said):
    """Do what ``python path`` does; this function never returns."""
    status = 1
    try:
        signal.alarm(LONGEST)
        for stream, file in ((0, os.open(os.devnull, os.O_RDONLY)), (1, said), (2, said)):
            os.dup2(file, stream)
        sys.argv, sys.path[0] = [path], os.path.dirname(path)
        status = _executed(path)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def _executed(path):
    try:
        runpy.run_path(path, run_name="__main__")
    except SystemExit as stop:
        if isinstance(stop.code, str):
            print(stop.code, file=sys.stderr)
        return stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


if __name__ == "__main__":
    import torch  # noqa: F401
    import transformers.models.auto.modeling_auto  # noqa: F401

    for line in sys.stdin:
        print(json.dumps(run(line.rstrip("\n"))), flush=True)
