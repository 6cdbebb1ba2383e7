"""The methods in PyTorch, vectorised over heads, one layer at a time.

keys, values: (heads, n, head_dim), float32 or bfloat16; scores: (heads, n), float32. Every function returns
new tensors as a dict with keys, values, degree, position (heads, kept), and leaves its arguments alone.
Similarities, weights and sums are float32; stored rows have the dtype of the input. README.md says where this
differs from the library.
"""
import math

import torch
from torch.nn import functional

KEPT = 0.2


def share(part, n):
    return math.floor(part * n + 1e-9)


def flat(index, n):
    """(heads, m) indices into rows of heads that lie one behind the other, n each."""
    return (index + n * torch.arange(index.shape[0])[:, None]).flatten()


def rows(x, index):
    """x[h, index[h, i]] for (heads, m) indices into (heads, n, ...)."""
    chosen = x.flatten(0, 1).index_select(0, flat(index, x.shape[1]))
    return chosen.view(*index.shape, *x.shape[2:])


def unit(x):
    return functional.normalize(x.float(), dim=-1)


def evicted(keys, values, kept):
    """`kept` (heads, budget), ascending."""
    return {"keys": rows(keys, kept), "values": rows(values, kept), "position": kept,
            "degree": torch.ones(kept.shape)}


def best_and_recent(scores, recents, budget):
    heads, n = scores.shape
    best = scores[:, :n - recents].topk(budget - recents, dim=1).indices.sort(dim=1).values
    recent = torch.arange(n - recents, n).expand(heads, -1)
    return torch.cat([best, recent], dim=1)


def pooled(scores, window, kernel=7):
    """Centred mean over the entries before the window, divided by the valid count."""
    before = scores[:, None, :scores.shape[1] - window]
    mean = functional.avg_pool1d(before, kernel, 1, kernel // 2, count_include_pad=False)[:, 0]
    return torch.cat([mean, scores[:, scores.shape[1] - window:]], dim=1)


def streaming_llm(keys, values, budget, sinks=4):
    heads, n, _ = keys.shape
    kept = torch.cat([torch.arange(sinks), torch.arange(n - budget + sinks, n)])
    return evicted(keys, values, kept.expand(heads, -1))


def h2o(keys, values, budget, scores):
    return evicted(keys, values, best_and_recent(scores, budget // 2, budget))


def snapkv(keys, values, budget, scores, window=32):
    return evicted(keys, values, best_and_recent(pooled(scores, window), window, budget))


# --- Chelsea ------------------------------------------------------------------------------------------------


def chelsea_edges(keys, chunk):
    """Per entry of A (0, 2, 4, ... of its chunk) the best similarity and its B, as indices into `keys`."""
    heads, m, dim = keys.shape
    chunks = -(-m // chunk)
    padded = functional.pad(unit(keys), (0, 0, 0, chunks * chunk - m)).view(heads, chunks, chunk // 2, 2, dim)
    similarity = padded[:, :, :, 0] @ padded[:, :, :, 1].transpose(-1, -2)
    index = torch.arange(chunks * chunk).view(chunks, chunk // 2, 2)
    a, b = index[:, :, 0], index[:, :, 1]
    similarity.masked_fill_((b >= m)[None, :, None, :], -3)
    best, place = similarity.max(dim=-1)
    best = best.masked_fill((a >= m)[None], -3)
    target = b.expand(heads, -1, -1).gather(2, place)
    return best.flatten(1), a.flatten().expand(heads, -1), target.flatten(1)


def chelsea(keys, values, budget, r_init=0.35, alpha=0.1, m=2, floor=0.05, sinks=16, recents=64, chunk=256):
    """Rounds until the budget is met; the last one is cut to it."""
    heads, n, _ = keys.shape
    degree, position = torch.ones(heads, n), torch.arange(n).expand(heads, -1)
    step = 0
    while n > budget:
        middle = n - sinks - recents
        count = max(1, share(max(floor, r_init - alpha * min(m, step)), middle))
        best, a, b = chelsea_edges(keys[:, sinks:n - recents], chunk)
        count = min(count, n - budget, int((best > -2).sum(dim=1).min()))
        if count == 0:
            break
        edges = best.topk(count, dim=1).indices
        a, b = rows(a, edges) + sinks, rows(b, edges) + sinks
        stays = torch.ones(heads, n, dtype=torch.bool).scatter_(1, a, False)
        kept = stays.nonzero()[:, 1].view(heads, -1)
        total = degree.scatter_add(1, b, rows(degree, a))
        pivots, star = flat(b, n).unique(return_inverse=True)  # entries that others merge into
        newcomers, weight = flat(a, n), degree.flatten()[:, None]
        place = (stays.flatten().cumsum(0) - 1)[pivots]
        merged = []
        for x in (keys, values):
            old = x.flatten(0, 1)
            sums = old[pivots].float() * weight[pivots]
            sums.index_add_(0, star, old[newcomers].float() * weight[newcomers])
            new = rows(x, kept)
            new.view(-1, x.shape[2])[place] = (sums / total.flatten()[pivots, None]).to(x.dtype)
            merged.append(new)
        keys, values = merged
        degree, position = rows(total, kept), rows(position, kept)
        n -= count
        step += 1
    return {"keys": keys, "values": values, "degree": degree, "position": position}


# --- KVMerger -----------------------------------------------------------------------------------------------

REACH = 128  # sets are no longer than this


def band(keys, reach=REACH):
    """(m, reach): smallest cosine of entry j with its elders j-1 .. j-1-d (zero rows before the first)."""
    m, dim = keys.shape
    blocks = -(-m // reach)
    padded = functional.pad(unit(keys), (0, 0, reach, blocks * reach - m))
    anchors = padded[reach:].view(blocks, reach, dim)
    elders = padded.unfold(0, 2 * reach, reach)  # (blocks, dim, 2 reach): the block and the one before it
    similarity = anchors @ elders  # entry i of a block is its column reach + i
    flat = similarity.flip(-1).contiguous()  # now column reach - 1 - i, its elders behind it
    picked = flat.as_strided((blocks, reach, reach), (2 * reach * reach, 2 * reach - 1, 1), reach)
    columns = picked.reshape(blocks * reach, reach)[:m].t().contiguous()
    for d in range(1, reach):
        torch.minimum(columns[d], columns[d - 1], out=columns[d])
    return columns.t().contiguous()


def set_ends(falling, theta):
    """The newest entry of every set, newest set first. `falling` is -band: ascending rows."""
    # How many elders in a row have cosine > theta, that is -cosine < -theta.
    length = torch.searchsorted(falling, torch.full((falling.shape[0], 1), -theta))[:, 0].tolist()
    ends, j = [], falling.shape[0] - 1
    while j >= 0:
        ends.append(j)
        j -= length[j] + 1
    return ends


def sets_of(keys, count, steps=24):
    """Set of every entry (0 the oldest), `count` sets: the largest theta found that makes no fewer sets by
    bisection, then the boundaries between the most similar neighbouring ends go."""
    falling = -band(keys)
    low, high = -1.0, 1.0  # `high` makes enough sets
    ends = list(range(keys.shape[0] - 1, -1, -1))
    for _ in range(steps):
        theta = 0.5 * (low + high)
        tried = set_ends(falling, theta)
        if len(tried) >= count:
            high, ends = theta, tried
            if len(tried) == count:
                break
        else:
            low = theta
    ends = torch.tensor(ends[::-1])
    surplus = len(ends) - count
    if surplus > 0:
        end_keys = unit(keys[ends])
        gone = (end_keys[:-1] * end_keys[1:]).sum(dim=1).topk(surplus).indices
        left = torch.ones(len(ends), dtype=torch.bool)
        left[gone] = False
        ends = ends[left]
    return torch.searchsorted(ends, torch.arange(keys.shape[0]))


def kvmerger_head(keys, values, budget, scores):
    n = keys.shape[0]
    recents, heavy = budget // 3, share(0.25, budget)
    mergeable = torch.ones(n, dtype=torch.bool)
    mergeable[n - recents:] = False
    mergeable[scores[:n - recents].topk(heavy).indices] = False
    middle = mergeable.nonzero()[:, 0]
    k, score = keys[middle].float(), scores[middle]
    count = budget - recents - heavy
    group = sets_of(k, count)

    ones = torch.ones(len(middle))
    size = torch.zeros(count).index_add(0, group, ones)
    best = torch.full((count,), -torch.inf).scatter_reduce(0, group, score, "amax")
    candidates = torch.where(score == best[group], torch.arange(len(middle)), len(middle))
    pivot = torch.full((count,), len(middle)).scatter_reduce(0, group, candidates, "amin")
    distance = (k - k[pivot[group]]).norm(dim=1)
    sigma = torch.zeros(count).index_add(0, group, distance) / (size - 1).clamp(min=1)
    weight = torch.where(sigma[group] > 0, torch.exp(-0.5 * (distance / sigma[group]) ** 2), ones)
    weight = weight / torch.zeros(count).index_add(0, group, weight)[group]

    slot = torch.arange(n)
    slot[middle] = middle[pivot[group]]
    degree = torch.zeros(n).index_add(0, slot, torch.ones(n))
    merged = []
    for x in (keys, values):
        whole = x.clone()
        sums = torch.zeros(count, x.shape[1]).index_add(0, group, x[middle].float() * weight[:, None])
        real = size > 1
        whole[middle[pivot[real]]] = sums[real].to(x.dtype)
        merged.append(whole)
    kept = (slot == torch.arange(n)).nonzero()[:, 0]
    return {"keys": merged[0][kept], "values": merged[1][kept], "degree": degree[kept], "position": kept}


def kvmerger(keys, values, budget, scores):
    parts = [kvmerger_head(k, v, budget, s) for k, v, s in zip(keys, values, scores)]
    return {name: torch.stack([part[name] for part in parts]) for name in parts[0]}


# --- EMS ----------------------------------------------------------------------------------------------------


def ems_matches(keys, values, centre_keys, centre_values, block=1024):
    """R and index of the best centre per row; -1 where no centre has two positive cosines."""
    ck, cv = unit(centre_keys).t().contiguous(), unit(centre_values).t().contiguous()
    best, place = [], []
    for k, v in zip(keys.split(block), values.split(block)):
        a, b = unit(k) @ ck, unit(v) @ cv
        r = a.clamp_(min=0).mul_(b.clamp_(min=0))
        top = r.max(dim=1)
        best.append(top.values)
        place.append(top.indices)
    return torch.cat(best), torch.cat(place)


def ems_head(keys, values, budget, total, local, gamma, tau, window):
    n, dim = keys.shape
    combined = torch.maximum(total * (local.mean() / total.mean()), local)
    ranked = pooled(combined[None], window)[0, :n - window].argsort(descending=True, stable=True)
    important = budget - window
    centres = ranked[:important].sort().values
    merging = ranked[important:important + share(gamma - 1, budget)].sort().values
    kept = torch.cat([centres, torch.arange(n - window, n)])

    best, place = ems_matches(keys[merging], values[merging], keys[centres], values[centres])
    joins = (best >= tau) & (best > 0)
    merging, place = merging[joins], place[joins]
    index, group = torch.cat([centres, merging]), torch.cat([torch.arange(important), place])
    weight = local[index]
    sums = torch.zeros(important).index_add(0, group, weight)
    count = torch.zeros(important).index_add(0, group, torch.ones(len(index)))
    coefficient = torch.where(sums[group] > 0, weight / sums[group], 1 / count[group])[:, None]
    k, v = keys[kept], values[kept]
    shared = count > 1
    directions = torch.zeros(important, dim).index_add(0, group, unit(keys[index]) * coefficient)
    means = torch.zeros(important, values.shape[1]).index_add(0, group, values[index].float() * coefficient)
    k[:important][shared] = directions[shared].to(k.dtype)
    v[:important][shared] = means[shared].to(v.dtype)
    norm = keys[index].float().norm(dim=1)
    own_norm = torch.zeros(budget)
    own_norm[:important] = torch.where(shared, norm[:important], 0)
    degree = torch.ones(budget)
    degree[:important] = count
    return {"keys": k, "values": v, "degree": degree, "position": kept, "own_norm": own_norm,
            "member_position": merging, "member_owner": place, "member_norm": norm[important:]}


def ems(keys, values, budget, total, local, gamma=4, tau=0.6, window=32):
    """Prefill. Heads have different numbers of members: those come as a list of tensors."""
    heads = zip(keys, values, total, local)
    parts = [ems_head(k, v, budget, t, s, gamma, tau, window) for k, v, t, s in heads]
    return {name: [part[name] for part in parts] if name.startswith("member")
            else torch.stack([part[name] for part in parts]) for name in parts[0]}


# --- CaM ----------------------------------------------------------------------------------------------------


def cam(keys, values, budget, scores, generator=None):
    """One shot over StreamingLLM, half of the budget sinks: the masked evicted values over m are added to each
    of the m local entries, which then are centroids of 1 + sum M / m tokens."""
    heads, n, _ = keys.shape
    sinks = budget // 2
    local = budget - sinks
    gone = scores[:, sinks:n - local]
    reference = scores[:, n - local:].mean(dim=1, keepdim=True)
    rate = torch.where(gone > 0, torch.where(reference > 0, gone / reference, 1.0), 0.0).clamp(max=1)
    mask = torch.bernoulli(rate, generator=generator)
    added = (mask[:, None, :] @ values[:, sinks:n - local].float()) / local
    grown = 1 + mask.sum(dim=1) / local
    kept = torch.cat([torch.arange(sinks), torch.arange(n - local, n)]).expand(heads, -1)
    out = evicted(keys, values, kept)
    centroids = (out["values"][:, sinks:].float() + added) / grown[:, None, None]
    out["values"][:, sinks:] = centroids.to(values.dtype)
    out["degree"][:, sinks:] = grown[:, None]
    out["mask"] = mask
    return out
