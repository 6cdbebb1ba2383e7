"""The inputs of kvmeld_bench (tensors.hpp), the same bits: keys of eight heads, and scores."""
import numpy

HEADS, HEAD_DIM, TOPICS = 8, 128, 32
FACTOR, STEP = 1664525, 1013904223


def noise(state):
    """Advances the generators in place; uniform in [-1, 1), one number each."""
    state *= numpy.uint32(FACTOR)
    state += numpy.uint32(STEP)
    return (state >> numpy.uint32(8)).astype(numpy.float32) * numpy.float32(1 / 8388608) - numpy.float32(1)


def keys(n):
    """(HEADS, n, HEAD_DIM), float32: a topic's direction plus a walk; topics last 64 tokens and come back."""
    head = numpy.arange(HEADS, dtype=numpy.uint32)
    channel = head[:, None] * numpy.uint32(HEAD_DIM) + numpy.arange(HEAD_DIM, dtype=numpy.uint32)
    state = (channel + numpy.uint32(1)) * numpy.uint32(2654435761)
    centre = numpy.stack([numpy.float32(1.2) * noise(state) for _ in range(TOPICS)], axis=1)
    walk = numpy.zeros((HEADS, HEAD_DIM), numpy.float32)
    choice = head + numpy.uint32(1)
    topic = numpy.zeros(HEADS, numpy.int64)
    out = numpy.empty((HEADS, n, HEAD_DIM), numpy.float32)
    for t in range(n):
        changes = noise(choice) > numpy.float32(1 - 2 / 64)
        if changes.any():
            again = choice.copy()
            noise(again)
            choice[changes] = again[changes]
            topic[changes] = (choice[changes] >> numpy.uint32(16)) % TOPICS
        walk = numpy.float32(0.9) * walk + numpy.float32(0.6) * noise(state)
        out[:, t] = centre[head, topic] + walk
    return out


def scores(n, channels):
    """(channels, HEADS, n), float32: most entries get little attention, a few get much."""
    count = channels * HEADS * n
    powers = numpy.multiply.accumulate(numpy.full(count, FACTOR, numpy.uint32), dtype=numpy.uint32)
    before = numpy.concatenate([numpy.ones(1, numpy.uint32), powers[:-1]])
    state = powers * numpy.uint32(7) + numpy.add.accumulate(before, dtype=numpy.uint32) * numpy.uint32(STEP)
    u = (state >> numpy.uint32(8)).astype(numpy.float32) * numpy.float32(1 / 8388608) - numpy.float32(1)
    u += numpy.float32(1.001)
    return (numpy.float32(0.01) / (u * u)).reshape(channels, HEADS, n)
