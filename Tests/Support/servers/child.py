"""A program that ends with this process, and says when it is ready."""

import ctypes
import signal
import socket
import subprocess
import sys
import time

START_DEADLINE_S = 60


def start(arguments, environment=None):
    def die_with_parent():
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG

    return subprocess.Popen(
        arguments, stdin=subprocess.DEVNULL, stdout=sys.stderr, env=environment, preexec_fn=die_with_parent
    )


def wait(process, port):
    """Waits until the program listens on a port."""
    deadline = time.monotonic() + START_DEADLINE_S
    while True:
        if process.poll() is not None:
            raise RuntimeError(f"{process.args[0]} ended with status {process.returncode}")
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return
        except OSError:
            if time.monotonic() > deadline:
                raise RuntimeError(f"{process.args[0]} does not listen") from None
            time.sleep(0.05)


def stop(process):
    process.kill()
    process.wait()
