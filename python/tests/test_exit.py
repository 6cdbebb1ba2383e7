"""Threads that are inside calls when the interpreter ends, and when the process forks."""

import multiprocessing
import os
import subprocess
import sys
import threading

import numpy as np
import pytest

import kvmeld

SCRIPT = """
import sys, threading, time
import numpy as np
import kvmeld

what, delay, threads = sys.argv[1], float(sys.argv[2]), int(sys.argv[3])
sys.setswitchinterval(1e-5)
started = threading.Event()

def tensors(capacity):
    return (np.ones((1, 1, 2, capacity, 16), np.float32) * np.arange(capacity, dtype=np.float32)[:, None] for _ in "kv")

def long_calls():
    keys, values = tensors(4096)
    with kvmeld.Cache(keys, values, "chelsea", threads=threads) as cache:
        while True:
            cache.open(0, 4096)
            started.set()
            cache.compress(0, 64)
            cache.close(0)

def short_calls():
    keys, values = tensors(64)
    with kvmeld.Cache(keys, values, "streaming_llm", threads=1) as cache:
        cache.open(0, 60)
        while True:
            started.set()
            cache.tokens(0)
            cache.lengths(0)
            cache.degrees(0, 0, 1)

def ends():
    while True:
        cache = kvmeld.Cache(*tensors(64), "h2o", threads=threads)
        cache.open(0, 60)
        started.set()
        del cache

def torch_calls():  # a thread that is inside PyTorch itself may not survive the end: here the tensors are made before
    cache, queries, out = prepared.pop()
    while True:
        started.set()
        cache.attend(0, 0, queries, out)
        cache.observe(0, 0, queries)

prepared = []
if what == "torch_calls":
    import torch
    for _ in range(3):
        keys, values = (torch.ones(1, 1, 2, 256, 16) for _ in "kv")
        cache = kvmeld.Cache(keys, values, "snapkv window=4 recents=4", threads=1)
        cache.open(0, 200)
        prepared.append((cache, torch.ones(2, 4, 16), torch.ones(2, 4, 16)))

for _ in range(3):
    threading.Thread(target=globals()[what], daemon=True).start()
started.wait()
time.sleep(delay)
"""


@pytest.mark.parametrize("what", ["long_calls", "short_calls", "ends", "torch_calls"])
def test_the_interpreter_ends_while_daemon_threads_are_inside_calls(what):
    if what == "torch_calls":
        pytest.importorskip("torch")
    for turn, delay in enumerate((0, 0.001, 0.003, 0.01, 0.03)):
        done = subprocess.run([sys.executable, "-c", SCRIPT, what, str(delay), str(1 + 2 * (turn % 2))],
                              capture_output=True, timeout=120)
        assert (done.returncode, done.stdout, done.stderr) == (0, b"", b""), f"after {delay} seconds"


def cache_of(capacity=64, policy="streaming_llm", threads=1):
    keys, values = (np.random.default_rng(0).standard_normal((1, 1, 2, capacity, 8)).astype(np.float32) for _ in "kv")
    return kvmeld.Cache(keys, values, policy, threads=threads)


def life(cache):
    cache.open(0, 60)
    cache.compress(0, 12)
    length = cache.longest(0)
    cache.close(0)
    return length


def in_a_child(idle, used):
    """What a child of fork can do: make a cache with threads, go on with an idle one; one in use stays in use."""
    assert life(cache_of(threads=3)) == 12
    assert life(idle) == 12
    for cache in used:
        try:
            cache.tokens(0)
        except ValueError as refused:
            assert "cache is in use; it must be free" in str(refused)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
@pytest.mark.parametrize("way", ["os.fork", "multiprocessing"])
def test_children_of_a_fork_work_while_threads_of_the_parent_are_inside_calls(way):
    idle, used, stop = cache_of(), [cache_of() for _ in range(3)], threading.Event()

    def work(cache):
        while not stop.is_set():
            life(cache)

    threads = [threading.Thread(target=work, args=(cache,)) for cache in used]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        for thread in threads:
            thread.start()
        for _ in range(40):
            if way == "multiprocessing":
                child = multiprocessing.get_context("fork").Process(target=in_a_child, args=(idle, used))
                child.start()
                child.join(20)
                code, hung = child.exitcode, child.exitcode is None
                if hung:
                    child.kill()
            else:
                child = os.fork()
                if child == 0:
                    import signal

                    signal.alarm(20)
                    try:
                        in_a_child(idle, used)
                        os._exit(0)
                    finally:
                        os._exit(1)
                code, hung = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), False
            assert not hung and code == 0
    finally:
        stop.set()
        sys.setswitchinterval(interval)
        for thread in threads:
            thread.join()
    assert life(idle) == 12
