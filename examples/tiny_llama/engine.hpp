// A language model whose KV cache kvmeld shrinks. All that an engine does for it is in this file: it keeps K
// and V in its own tensors, tells the cache how many entries come and stay, and lets kvmeld read the
// attention.
#pragma once

#include "model.hpp"
#include "threads.hpp"

#include <kvmeld/calibrate/allot.hpp>
#include <kvmeld/kvmeld.hpp>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace tiny_llama {

/// A prompt that was read once: its K and V, and what scores are made of. Several engines can start from it.
template <class Element> struct prompt_state_of {
  std::vector<Element> keys, values;             ///< as an engine of the same capacity lays them out
  std::vector<std::vector<float>> queries, lse;  ///< per layer [tokens][heads][head_dim] and [tokens][heads]
  std::vector<std::vector<float>> replay_queries, replay_lse;  ///< of a second reading, if there was one
  /// Per layer [tokens of the second reading] 1 / |x| of the rows x that queries were made from.
  std::vector<std::vector<float>> replay_weights;
  std::uint32_t tokens = 0;
};
using prompt_state = prompt_state_of<kvmeld::float16>;

/// What an engine's attention can do with a cache.
struct reading {
  bool ignore_degree = false;  ///< it has no bias to add: merged entries count as one token
  kvmeld::budget_scope budgets = kvmeld::budget_scope::head;  ///< whose entries a budget counts together
  double floor = 0.2;  ///< share of its own budget that every head keeps if budgets are shared
  kvmeld::plan_scope plans = kvmeld::plan_scope::head;  ///< which tracks share one plan
  bool weighs = false;  ///< queries of a second reading count as replay_weights say (KVzip+)
};

/// Whether a policy keeps no more than its budget. Otherwise its thresholds decide how much merges.
template <class Policy> bool lands_on_budget(Policy const& policy) {
  auto const facts = kvmeld::facts_of<kvmeld::identify_facts>(policy.identify);
  return facts.meets_budget || facts.drops_unmerged;
}

/// W_O of a model, which outlives what refers to it.
inline kvmeld::output_projection<float> projection_of(model const& m) {
  config const& c = m.shape();
  return {m.output_projections().data(), static_cast<std::uint32_t>(c.hidden),
          std::int64_t{c.heads} * c.head_dim, c.head_dim};
}

/// How a model rotates queries and keys: as Hugging Face's Llama does.
inline kvmeld::rope_params rope_of(config const& c) {
  kvmeld::rope_params rope;
  rope.pairing = kvmeld::rope_pairing::half_split;
  rope.base = c.rope_base;
  return rope;
}

/// The cache of one sequence.
inline kvmeld::shape extent_of(config const& c, std::uint32_t capacity) {
  auto const u = [](int x) { return static_cast<std::uint32_t>(x); };
  return {u(c.layers), 1, u(c.kv_heads), u(c.heads / c.kv_heads), u(c.head_dim), u(c.head_dim), capacity};
}

template <class Policy, class Element = kvmeld::float16> class engine {
public:
  /// K and V lie token-major, [layer][slot][kv_head][head_dim], in half precision unless Element is another
  /// type. `model` outlives the engine.
  engine(model& m, Policy policy, std::uint32_t capacity, reading how = {})
      : model_(&m),
        extent_(extent_of(m.shape(), capacity)),
        keys_(elements()),
        values_(elements()),
        cache_(executor(), policy, tensors(), limits_of(extent_, how)),
        floor_(how.floor) {
    cache_.open(0);
  }

  /// Starts from a prompt: its entries are there already, its attention is recomputed from queries and
  /// log-sum-exps.
  engine(model& m, Policy policy, std::uint32_t capacity, prompt_state_of<Element> const& prompt,
         reading how = {})
      : engine(m, policy, capacity, how) {
    cache_.close(0);
    keys_ = prompt.keys;
    values_ = prompt.values;
    cache_.rebind(tensors());
    cache_.open(0, prompt.tokens);
    bool const replays = cache_.needs_observation().when == kvmeld::observation::replay;
    kvmeld::attention_params params;
    params.causal = !replays;  // every query of a second reading sees the whole prompt
    auto const& queries = replays ? prompt.replay_queries : prompt.queries;
    auto const& lse = replays ? prompt.replay_lse : prompt.lse;
    for (std::uint32_t layer = 0; layer < queries.size(); ++layer) {
      // A second reading may have more queries than the prompt has entries, and is then shown in parts.
      std::size_t const heads = extent_.query_heads(), rows = lse[layer].size() / heads;
      for (std::size_t first = 0; first < rows; first += prompt.tokens) {
        auto const n = static_cast<std::uint32_t>(std::min<std::size_t>(prompt.tokens, rows - first));
        kvmeld::query_sample sample;
        if (replays && how.weighs) sample.weights = prompt.replay_weights[layer].data() + first;
        observe(layer, n, queries[layer].data() + first * heads * extent_.key_dim,
                lse[layer].data() + first * heads, params, sample);
      }
    }
  }

  /// Copies start with the same entries and scores and go their own way.
  engine(engine const& other)
      : model_(other.model_),
        extent_(other.extent_),
        keys_(other.keys_),
        values_(other.values_),
        cache_(other.cache_.clone(tensors())),
        floor_(other.floor_) {}
  engine& operator=(engine const&) = delete;

  /// Reads tokens for good. seen(layer, n, q, lse) is shown every layer's queries and log-sum-exps. logits
  /// [min(n, last)][vocab] are those of the last tokens.
  template <class Seen>
  void read(std::vector<int> const& tokens, std::vector<float>& logits, Seen&& seen,
            std::size_t last = last_token) {
    auto const n = static_cast<std::uint32_t>(tokens.size());
    auto const position = static_cast<int>(cache_.tokens(0));
    cache_.append({0}, {n});
    cache_.commit({0}, {n});
    forward(tokens, position, logits, last, [&](std::uint32_t layer, float const* q, float const* lse) {
      observe(layer, n, q, lse);
      seen(layer, n, q, lse);
    });
  }

  /// Reads tokens for good, `chunk` at a time, and compresses to `entries` per head after each: what is held
  /// never exceeds both together. The scores see every chunk once. Returns the seconds of the compressions.
  double read_within(std::vector<int> const& tokens, std::size_t chunk, std::uint32_t entries) {
    std::vector<float> logits;
    double seconds = 0;
    for (std::size_t first = 0; first < tokens.size(); first += chunk) {
      auto const begin = tokens.begin() + static_cast<std::ptrdiff_t>(first);
      auto const n = static_cast<std::ptrdiff_t>(std::min(chunk, tokens.size() - first));
      read({begin, begin + n}, logits, [](auto&&...) {});
      auto const start = std::chrono::steady_clock::now();
      compress_to(entries);
      seconds += std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    }
    return seconds;
  }

  /// Reads tokens as drafts, which `forget` takes back. logits [min(n, last)][vocab] as those of `read`.
  void try_out(std::vector<int> const& tokens, std::vector<float>& logits, std::size_t last = last_token) {
    auto const position = static_cast<int>(cache_.tokens(0));
    cache_.append({0}, {static_cast<std::uint32_t>(tokens.size())});
    forward(tokens, position, logits, last, [](std::uint32_t, float const*, float const*) {});
  }
  void forget() { cache_.commit({0}, {0}); }

  /// Merges or evicts down to a share of the tokens read. Policies whose thresholds decide how much merges
  /// may stay above it.
  void compress(double share) {
    cache_.compress({0}, kvmeld::budget::ratio(share).over(cache_.options().budgets_over, floor_),
                    fallback());
  }

  /// The same with a share per head, [layers][kv_heads].
  void compress(std::vector<double> const& shares) {
    std::vector<std::uint32_t> const entries = kvmeld::calibrate::entries_of(shares, cache_.tokens(0));
    std::vector<std::uint32_t> const table = kvmeld::calibrate::budget_table(extent_, 0, entries);
    cache_.compress({0}, kvmeld::budget::per_track(table.data()), fallback());
  }

  /// Merges or evicts down to so many entries per head.
  void compress_to(std::uint32_t entries) {
    cache_.compress({0}, kvmeld::budget::entries(entries).over(cache_.options().budgets_over, floor_),
                    fallback());
  }

  /// What is held now stays as it is, as where several sequences share it.
  void freeze() {
    auto const ref = cache_.ref();
    std::uint32_t least = cache_.longest(0);
    for (std::uint32_t layer = 0; layer < extent_.layers; ++layer)
      for (std::uint32_t head = 0; head < extent_.kv_heads; ++head)
        least = std::min(least, ref.length(ref.where(layer, 0, head)));
    cache_.freeze(0, least);
  }

  /// Gives the entries positions without gaps, so that a text may be longer than the model has positions for.
  void renumber() { cache_.renumber(0, rope_of(model_->shape())); }

  /// Attention of queries [n][heads][head_dim] of one layer over all entries, as out of the same form.
  void attend_all(std::uint32_t layer, std::uint32_t n, float const* q, float* out) {
    kvmeld::attention_params all;
    all.causal = false;
    attend(all, layer, n, q, out);
  }

  /// What the cache holds and what its compressions did, over all layers and heads.
  kvmeld::stats_sum figures() {
    cache_.request_stats({0});  // the host's are there at once
    return cache_.stats(0);
  }

  auto const& cache() const { return cache_; }
  std::vector<Element> const& keys() const { return keys_; }
  std::vector<Element> const& values() const { return values_; }
  std::size_t kv_bytes() const {
    return cache_.entries(0) * (extent_.key_dim + extent_.value_dim) * sizeof(Element);
  }

private:
  using layout = kvmeld::strided<Element>;

  kvmeld::shortfall fallback() const {
    return lands_on_budget(cache_.policy()) ? kvmeld::shortfall::evict_lowest : kvmeld::shortfall::keep;
  }

  /// Policies that share entries keep members: at most every token of the capacity.
  static kvmeld::cache_options limits_of(kvmeld::shape const& extent, reading how) {
    kvmeld::cache_options sizes{extent};
    sizes.stats = true;
    sizes.budgets_over = how.budgets;
    sizes.scope = how.plans;
    if (how.ignore_degree) sizes.bias = kvmeld::bias_support::none;
    sizes.ignore_degree = how.ignore_degree;
    if (kvmeld::shares_entries<typename Policy::merge_type>::value) sizes.members = extent.capacity;
    return sizes;
  }
  std::size_t elements() const { return extent_.slots() * extent_.key_dim; }
  kvmeld::kv<layout, layout> tensors() {
    return {layout(keys_.data(), "LSTHC", extent_, extent_.key_dim),
            layout(values_.data(), "LSTHC", extent_, extent_.value_dim)};
  }

  template <class Seen>
  void forward(std::vector<int> const& tokens, int position, std::vector<float>& logits, std::size_t last,
               Seen&& seen) {
    auto const hook = [&](int which, int count, float const* q, float const* k, float const* v, float* out) {
      auto const layer = static_cast<std::uint32_t>(which);
      auto const n = static_cast<std::uint32_t>(count);
      store(layer, n, k, v);
      attend({}, layer, n, q, out);
      seen(layer, q, static_cast<float const*>(lse_.data()));
    };
    model_->forward(tokens.data(), static_cast<int>(tokens.size()), position, hook, logits, last);
  }

  /// Heads are ragged after merging: each track has its own length, and new rows go to its end.
  void store(std::uint32_t layer, std::uint32_t n, float const* k, float const* v) {
    auto const ref = cache_.ref();
    std::uint32_t const d = extent_.key_dim;
    for (std::uint32_t head = 0; head < extent_.kv_heads; ++head) {
      kvmeld::track const where = ref.where(layer, 0, head);
      for (std::uint32_t i = 0; i < n; ++i) {
        std::uint32_t const slot = ref.length(where) - n + i;
        std::size_t const to = ((std::size_t{layer} * extent_.capacity + slot) * extent_.kv_heads + head) * d;
        std::size_t const from = (std::size_t{i} * extent_.kv_heads + head) * d;
        for (std::uint32_t c = 0; c < d; ++c) {
          keys_[to + c] = kvmeld::element_traits<Element>::from_float(k[from + c]);
          values_[to + c] = kvmeld::element_traits<Element>::from_float(v[from + c]);
        }
      }
    }
  }

  void attend(kvmeld::attention_params const& p, std::uint32_t layer, std::uint32_t n, float const* q,
              float* out) {
    std::uint32_t const heads = extent_.query_heads(), d = extent_.value_dim;
    lse_.resize(std::size_t{n} * heads);
    kvmeld::attention::attend(cache_.executor(), {layer, 0, n}, kvmeld::rows_by_token(q, n, heads, d),
                              cache_.ref(), kvmeld::rows_by_token(out, n, heads, d),
                              kvmeld::rows_by_token(lse_.data(), n, heads, 1), p);
  }

  void observe(std::uint32_t layer, std::uint32_t n, float const* q, float const* lse,
               kvmeld::attention_params const& params = {}, kvmeld::query_sample sample = {}) {
    std::uint32_t const heads = extent_.query_heads();
    cache_.observe({layer, 0, n}, kvmeld::rows_by_token(q, n, heads, extent_.key_dim),
                   kvmeld::rows_by_token(lse, n, heads, 1), params, sample);
  }

  model* model_;
  kvmeld::shape extent_;
  std::vector<Element> keys_, values_;
  kvmeld::merged_cache<kvmeld::host_executor, Policy, layout, layout> cache_;
  double floor_;
  std::vector<float> lse_;
};

}  // namespace tiny_llama
