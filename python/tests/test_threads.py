"""Threads that use one cache at a time: what comes back is a result of a whole call, or a refusal."""

import sys
import threading
import time

import numpy as np
import pytest

import kvmeld

HEADS, CAPACITY, DIM = 2, 2048, 4


@pytest.fixture(autouse=True)
def many_switches():
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(interval)


def cache_of(policy, **options):
    rng = np.random.default_rng(3)
    keys, values = (rng.standard_normal((1, 3, HEADS, CAPACITY, DIM)).astype(np.float32) for _ in "kv")
    return kvmeld.Cache(keys, values, policy, threads=1, **options)


def at_once(cache, calls, seconds=1.0):
    """Makes the calls in threads of their own, again and again; returns how many were refused because of another."""
    refused, unexpected, end = [], [], time.monotonic() + seconds

    def work(call):
        while time.monotonic() < end and not unexpected:
            try:
                call()
            except ValueError as problem:
                (refused if "cache is in use; it must be free" in str(problem) else unexpected).append(str(problem))
            except AssertionError as wrong:
                unexpected.append(str(wrong))

    threads = [threading.Thread(target=work, args=(call,)) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not unexpected, unexpected[0]
    return len(refused)


def patiently(call, *arguments):
    """The result of a call, made again as long as another one is under way."""
    while True:
        try:
            return call(*arguments)
        except ValueError as refused:
            if "cache is in use" not in str(refused):
                raise


def growing(cache):
    """Grows sequence 0 to its capacity and begins anew."""

    def call():
        if cache.tokens(0) > CAPACITY - 128:
            cache.truncate(0, 8)
        else:
            cache.append(0, 64)
            patiently(cache.commit, 0, 64)  # nothing is left pending

    return call


def test_a_size_that_a_call_reads_holds_until_its_end():
    cache = cache_of("score=given select=top")
    cache.open(0, 8)
    scores = [np.zeros((HEADS, n), np.float32) for n in (16, 256, CAPACITY)]

    def score():
        for given in scores:
            try:
                cache.set_scores(0, 0, given)
            except ValueError as refused:
                if "or with more columns" not in str(refused):
                    raise

    grow = growing(cache)

    def patient_grow():
        try:
            grow()
        except ValueError as refused:  # between two calls of its own, nothing holds the other thread back
            if "cache is in use" not in str(refused):
                raise

    assert at_once(cache, [patient_grow, score, score]) > 0


def test_degrees_and_positions_are_those_of_one_moment():
    cache = cache_of("streaming_llm")
    cache.open(0, 8)
    seen = []

    def look():
        degrees, positions = patiently(cache.degrees, 0, 0, 1), patiently(cache.positions, 0, 0, 1)
        seen.append(len(degrees))
        assert (degrees == 1).all()
        assert (positions == np.arange(len(positions))).all()
        bias = patiently(cache.log_degrees, 0, 0)
        held = (bias[0] == 0).sum()
        assert (bias[0][:held] == 0).all() and (bias[0][held:] < -1e38).all()

    def patient_look():
        try:
            look()
        except ValueError as refused:
            if "columns is" not in str(refused):  # the sequence grew after the array was made
                raise

    grow = growing(cache)
    at_once(cache, [grow, patient_look, patient_look])
    assert seen


def test_rows_of_probabilities_and_pages_are_checked_in_the_call_that_reads_them():
    rng = np.random.default_rng(3)
    pool = [rng.standard_normal((1, 64, HEADS, 16, DIM)).astype(np.float32) for _ in "kv"]
    table = np.full((2, 32), 99, np.int32)  # of pages that the pool does not have
    table[0, :8] = np.arange(8)
    table[1] = 32 + np.arange(32)
    cache = kvmeld.Cache(*pool, "h2o", threads=1, page_table=table)
    cache.open(0, 8)
    rows = [np.zeros((HEADS, 1, n), np.float32) for n in (16, 128)]

    def observe():
        for given in rows:
            try:
                cache.observe_rows(0, 0, given)
            except ValueError as refused:
                if "of at least" not in str(refused) and "pending" not in str(refused):
                    raise

    def fork():
        try:
            cache.fork(0, 1)
            cache.close(1)
        except ValueError as refused:
            if "it must be" not in str(refused) or "in use" in str(refused):
                raise

    def grow():
        if cache.tokens(0) >= 450:
            cache.truncate(0, 8)
        else:
            cache.append(0, 40)
            patiently(cache.commit, 0, 40)

    at_once(cache, [observe, fork, grow])


def test_a_cache_may_be_closed_while_others_call():
    for _ in range(50):
        cache = cache_of("streaming_llm")
        cache.open(0, 100)
        problems = []

        def use():
            try:
                for _ in range(100):
                    cache.tokens(0)
                    cache.degrees(0, 0, 0)
            except ValueError as refused:
                problems.append(str(refused))

        threads = [threading.Thread(target=use) for _ in range(2)]
        for thread in threads:
            thread.start()
        try:
            cache.close_all()
        except ValueError as refused:
            problems.append(str(refused))
        for thread in threads:
            thread.join()
        assert all("in use" in p or "kvmeld_create made" in p for p in problems), problems
