"""The methods as plain loops over Python floats: slow, and easy to hold against their descriptions.

One head: keys and values are lists of rows. Every function returns {position: (key, value, degree)}.
"""
import math

def dot(a, b):
    return sum(x * y for x, y in zip(a, b))

def norm(a):
    return math.sqrt(dot(a, a))

def cosine(a, b):
    length = norm(a) * norm(b)
    return dot(a, b) / length if length > 0 else 0.0

def mean(rows, weights):
    total = sum(weights)
    return [sum(w * r[c] for w, r in zip(weights, rows)) / total for c in range(len(rows[0]))]

def floor_share(part, n):
    return math.floor(part * n + 1e-9)

def best(scores, candidates, count):
    return sorted(sorted(candidates, key=lambda i: (-scores[i], i))[:count])

def pick(keys, values, kept):
    return {i: (keys[i], values[i], 1.0) for i in kept}

def pooled(scores, window, kernel=7):
    before, out = len(scores) - window, list(scores)
    for i in range(before):
        around = scores[max(0, i - kernel // 2):min(before, i + kernel // 2 + 1)]
        out[i] = sum(around) / len(around)
    return out

def streaming_llm(keys, values, budget, sinks=4):
    n = len(keys)
    return pick(keys, values, [i for i in range(n) if i < sinks or i >= n - (budget - sinks)])

def h2o(keys, values, budget, scores):
    recents, n = budget // 2, len(keys)
    kept = best(scores, range(n - recents), budget - recents)
    return pick(keys, values, kept + list(range(n - recents, n)))

def snapkv(keys, values, budget, scores, window=32):
    n = len(keys)
    kept = best(pooled(scores, window), range(n - window), budget - window)
    return pick(keys, values, kept + list(range(n - window, n)))

def chelsea(keys, values, budget, r_init=0.35, alpha=0.1, m=2, floor=0.05, sinks=16, recents=64, chunk=256):
    track = [(list(k), list(v), 1.0, i) for i, (k, v) in enumerate(zip(keys, values))]
    step = 0
    while len(track) > budget:
        middle = list(range(sinks, len(track) - recents))
        edges = []
        for first in range(0, len(middle), chunk):
            part = middle[first:first + chunk]
            if len(part) < 2:
                continue
            for a in part[0::2]:
                b = max(part[1::2], key=lambda other: (cosine(track[a][0], track[other][0]), -other))
                edges.append((-cosine(track[a][0], track[b][0]), a, b))
        count = max(1, floor_share(max(floor, r_init - alpha * min(m, step)), len(middle)))
        chosen = sorted(edges)[:min(count, len(track) - budget)]
        stars = {}
        for _, a, b in chosen:
            stars.setdefault(b, [b]).append(a)
        gone = {a for _, a, _ in chosen}
        following = []
        for i, entry in enumerate(track):
            if i in gone:
                continue
            star = [track[j] for j in stars.get(i, [i])]
            degrees = [e[2] for e in star]
            following.append((mean([e[0] for e in star], degrees), mean([e[1] for e in star], degrees),
                              sum(degrees), entry[3]))
        track = following
        step += 1
    return {position: (k, v, degree) for k, v, degree, position in track}

def sets_at(keys, middle, theta):
    sets = [[middle[-1]]]
    for i in reversed(middle[:-1]):
        if cosine(keys[i], keys[sets[-1][0]]) > theta:
            sets[-1].append(i)
        else:
            sets.append([i])
    return sets[::-1]  # oldest first; the first of a set is its newest entry

def kvmerger(keys, values, budget, scores, steps=24):
    n = len(keys)
    recents, heavy = budget // 3, floor_share(0.25, budget)
    protected = set(best(scores, range(n - recents), heavy)) | set(range(n - recents, n))
    middle = [i for i in range(n) if i not in protected]
    count, low, high = budget - recents - heavy, -1.0, 1.0
    sets = [[i] for i in middle]
    for _ in range(steps):
        theta = 0.5 * (low + high)
        tried = sets_at(keys, middle, theta)
        if len(tried) >= count:
            high, sets = theta, tried
            if len(tried) == count:
                break
        else:
            low = theta
    likeness = [cosine(keys[a[0]], keys[b[0]]) for a, b in zip(sets, sets[1:])]
    gone = best(likeness, range(len(likeness)), len(sets) - count)
    for b in reversed(gone):
        sets[b:b + 2] = [sets[b + 1] + sets[b]]
    out = pick(keys, values, protected)
    for members in sets:
        pivot = min(members, key=lambda i: (-scores[i], i))
        distance = [math.dist(keys[i], keys[pivot]) for i in members]
        sigma = sum(distance) / max(1, len(members) - 1)
        weights = [math.exp(-0.5 * (d / sigma) ** 2) if sigma > 0 else 1.0 for d in distance]
        out[pivot] = (mean([keys[i] for i in members], weights), mean([values[i] for i in members], weights),
                      float(len(members)))
    return out

def ems(keys, values, budget, total, local, gamma=4, tau=0.6, window=32):
    """Also {member: (owner, norm)} by position, and the norms of the owners."""
    n, scale = len(keys), sum(local) / sum(total)
    scores = pooled([max(t * scale, s) for t, s in zip(total, local)], window)
    centres = best(scores, range(n - window), budget - window)
    rest = [i for i in range(n - window) if i not in centres]
    sets, members = {c: [c] for c in centres}, {}
    for i in best(scores, rest, floor_share(gamma - 1, budget)):
        likeness = {}
        for c in centres:
            k, v = cosine(keys[i], keys[c]), cosine(values[i], values[c])
            if k > 0 and v > 0:
                likeness[c] = k * v
        target = max(likeness, key=lambda c: (likeness[c], -c), default=None)
        if target is not None and likeness[target] >= tau:
            sets[target].append(i)
            members[i] = (target, norm(keys[i]))
    out, norms = pick(keys, values, range(n - window, n)), {}
    for c, alike in sets.items():
        if len(alike) == 1:
            out[c] = (keys[c], values[c], 1.0)
            continue
        weights = [local[i] for i in alike]
        if sum(weights) == 0:
            weights = [1.0] * len(alike)
        out[c] = (mean([[x / norm(keys[i]) for x in keys[i]] for i in alike], weights),
                  mean([values[i] for i in alike], weights), float(len(alike)))
        norms[c] = norm(keys[c])
    return out, members, norms

def cam_rates(budget, scores):
    sinks = budget // 2
    local, n = budget - sinks, len(scores)
    reference = sum(scores[n - local:]) / local
    gone = scores[sinks:n - local]
    return [0.0 if s <= 0 else 1.0 if reference <= 0 else min(1.0, s / reference) for s in gone]

def cam(keys, values, budget, mask):
    sinks = budget // 2
    local, n = budget - sinks, len(keys)
    out = pick(keys, values, range(sinks))
    for k in range(n - local, n):
        value = list(values[k])
        for e, m in enumerate(mask):
            for c in range(len(value)):
                value[c] += m * values[sinks + e][c] / local
        grown = 1 + sum(mask) / local
        out[k] = (keys[k], [x / grown for x in value], grown)
    return out
