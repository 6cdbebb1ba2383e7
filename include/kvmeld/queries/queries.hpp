// SPDX-License-Identifier: Apache-2.0
// What describes an attention call: the queries of each sequence, and how a logit is computed.
#pragma once

#include <kvmeld/core/bits.hpp>
#include <kvmeld/core/config.hpp>
#include <kvmeld/core/element.hpp>
#include <kvmeld/core/error.hpp>
#include <kvmeld/core/size_limits.hpp>
#include <kvmeld/core/span.hpp>
#include <kvmeld/core/types.hpp>
#include <kvmeld/queries/rope.hpp>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <type_traits>

namespace kvmeld {
inline namespace KVMELD_ABI {

/// One row per (sequence of a call, query head, query). The channels of a row are contiguous. Also used for
/// log-sum-exps, which have one element per row.
template <class T> struct head_rows {
  T* data = nullptr;                                                  ///< first element
  std::int64_t sequence_stride = 0, head_stride = 0, row_stride = 0;  ///< in elements

  /// First element of a row. `sequence` is the index in the call's list of sequences.
  KVMELD_HD T* row(std::uint32_t sequence, std::uint32_t head, std::uint32_t query) const {
    return data + std::int64_t{sequence} * sequence_stride + std::int64_t{head} * head_stride +
           std::int64_t{query} * row_stride;
  }
};

/// Dense rows in the order [sequence][query][head][channels], which most engines use.
template <class T>
head_rows<T> rows_by_token(T* data, std::uint32_t queries, std::uint32_t heads, std::uint32_t channels) {
  std::int64_t const row = std::int64_t{heads} * channels;
  return {data, std::int64_t{queries} * row, channels, row};
}

/// Dense rows in the order [sequence][head][query][channels]; channels 1 for log-sum-exps.
template <class T>
head_rows<T> rows_by_head(T* data, std::uint32_t queries, std::uint32_t heads, std::uint32_t channels) {
  std::int64_t const head = std::int64_t{queries} * channels;
  return {data, std::int64_t{heads} * head, head, channels};
}

/// Which queries a call is about: a number of queries of each listed sequence, in one layer of the group.
class query_batch {
public:
  /// `queries` queries of one sequence. The batch holds the numbers themselves.
  KVMELD_HD query_batch(std::uint32_t layer, std::uint32_t sequence, std::uint32_t queries)
      : layer_(layer), sequence_(sequence), count_(queries), max_(queries) {}
  /// `queries[i]` queries of sequence `sequences[i]`. The batch refers to the caller's arrays in host memory.
  /// They must outlive the call that the batch is given to.
  query_batch(std::uint32_t layer, index_list sequences, index_list queries)
      : layer_(layer), sequences_(sequences), counts_(queries), listed_(true) {
    for (std::uint32_t n : queries) max_ = max_of(max_, n);
  }
  /// `queries.data[i]` queries of sequence `sequences.data[i]`, for i below `size`. The host reads neither
  /// list and checks none of the numbers. A number of extent.sequences or more, such as idle_sequence, is
  /// skipped: rows i of its results are not written. A closed sequence is not skipped. A count above `most`
  /// is taken for `most`. A call with such lists stages nothing, so an engine can capture it in a graph of
  /// its own without a call_graph. The graph's replays read the numbers that are there then. Observations
  /// take committed tokens, no more than a sequence has entries.
  query_batch(std::uint32_t layer, device_list sequences, device_list queries, std::uint32_t size,
              std::uint32_t most)
      : layer_(layer),
        max_(most),
        sequences_(sequences.data, size),
        counts_(queries.data, size),
        listed_(true),
        on_device_(true) {}
  /// Likewise, with `queries` queries of every sequence.
  query_batch(std::uint32_t layer, device_list sequences, std::uint32_t size, std::uint32_t queries)
      : query_batch(layer, sequences, device_list{static_cast<std::uint32_t const*>(nullptr)}, size,
                    queries) {}

  /// The layer, counted in its group of layers.
  KVMELD_HD std::uint32_t layer() const { return layer_; }
  /// Number of listed sequences.
  KVMELD_HD std::uint32_t size() const { return listed_ ? static_cast<std::uint32_t>(sequences_.size()) : 1; }
  /// The i-th listed sequence.
  KVMELD_HD std::uint32_t sequence(std::uint32_t i) const { return listed_ ? sequences_[i] : sequence_; }
  /// Number of queries of the i-th listed sequence.
  KVMELD_HD std::uint32_t queries(std::uint32_t i) const {
    if (!listed_) return count_;
    return counts_.data() == nullptr ? max_ : min_of(counts_[i], max_);
  }
  /// The largest number of queries of any listed sequence.
  KVMELD_HD std::uint32_t max_queries() const { return max_; }
  /// Whether the lists lie where phases can read them. The host then may not ask for `sequence` and
  /// `queries`.
  bool on_device() const { return on_device_; }
  /// How many of the sequences the host may ask for: all or none.
  std::uint32_t told() const { return on_device_ ? 0 : size(); }
  /// Whether the array of sequences is missing.
  bool lacks_sequences() const { return listed_ && !sequences_.empty() && sequences_.data() == nullptr; }
  /// How many query counts the caller gave. It has to equal size().
  std::size_t counts() const { return listed_ ? counts_.size() : 1; }

  /// The same batch with its lists where phases of `executor` can read them. The lists stay valid until the
  /// executor's next calls reuse their memory.
  template <class Executor> query_batch staged(Executor& executor) const {
    query_batch b = *this;
    b.max_ = executor.limit("queries of a sequence", max_, max_);
    if (on_device_ || (!listed_ && !executor.records())) return b;
    b.sequences_ = executor.stage(listed_ ? sequences_ : index_list{&sequence_, 1});
    b.counts_ = executor.stage(listed_ ? counts_ : index_list{&count_, 1});
    b.listed_ = true;
    return b;
  }

private:
  std::uint32_t layer_;
  std::uint32_t sequence_ = 0, count_ = 0;
  std::uint32_t max_ = 0;
  index_list sequences_, counts_;
  bool listed_ = false, on_device_ = false;
};

/// Maps launch items to the tracks of a batch: items run over (sequence of the batch, KV head).
struct batch_source {
  shape extent;       ///< extents of the cache
  query_batch batch;  ///< the queries of the call

  /// Number of tracks of the batch.
  std::uint32_t items() const { return batch.size() * extent.kv_heads; }
  /// Index of an item's sequence in the list.
  KVMELD_HD std::uint32_t row_of(std::uint32_t item) const { return item / extent.kv_heads; }
  /// The track of an item.
  KVMELD_HD track where(std::uint32_t item) const {
    return make_track(extent, batch.layer(), batch.sequence(row_of(item)), item % extent.kv_heads);
  }
  /// Whether the item only fills up a list, and has no work.
  KVMELD_HD bool idle(std::uint32_t item) const { return batch.sequence(row_of(item)) >= extent.sequences; }
};

/// The query rows that one tile works on. Row r is the query first + stride * (r / group) of the query head
/// kv_head * group + r % group.
struct block_of_rows {
  /// `member`: index in the list of sequences. `queries`: how many that sequence has. `first`: the first
  /// query of the block. `group`: query heads per KV head.
  std::uint32_t member, queries, first, group, kv_head;
  std::uint32_t rows;        ///< 0: the tile has nothing to do
  std::uint32_t stride = 1;  ///< distance in queries from one row of a head to its next row

  /// Query of row `r`.
  KVMELD_HD std::uint32_t query_of(std::uint32_t r) const { return first + stride * (r / group); }
  /// Query head of row `r`.
  KVMELD_HD std::uint32_t head_of(std::uint32_t r) const { return kv_head * group + r % group; }
};

/// to[row][channels] = scale * query, in float. Collective; no barrier at the end.
template <class Team, class Q>
KVMELD_HD void load_scaled(Team const& team, head_rows<Q> query, block_of_rows const& b, float scale,
                           std::uint32_t channels, float* to) {
  using traits = element_traits<std::remove_const_t<Q>>;
  for (std::uint32_t r = 0; r < b.rows; ++r) {
    Q const* const from = query.row(b.member, b.head_of(r), b.query_of(r));
    float* const row = to + std::size_t{r} * channels;
    team.for_each(channels, [&](std::uint32_t c) { row[c] = scale * traits::to_float(from[c]); });
  }
}

namespace detail {

/// Why a batch does not fit a cache; empty if it does.
inline std::string batch_problem(char const* call, shape const& s, query_batch const& b) {
  if (b.layer() >= s.layers) return refusal(call, "layer", b.layer(), "0 to ", s.layers - 1);
  if (b.size() != b.counts()) {
    return refusal(call, "number of query counts", b.counts(), b.size(), ", one for each sequence");
  }
  if (std::uint64_t const tracks = std::uint64_t{b.size()} * s.kv_heads; tracks > largest::tracks) {
    return refusal(call, "number of sequences * kv_heads", tracks, "at most ", largest::tracks);
  }
  if (b.on_device()) {
    if (b.lacks_sequences()) return refusal(call, "sequences.data", "null", "an array of ", b.size());
    if (b.max_queries() <= largest::tokens) return {};
    return refusal(call, "most queries of a sequence", b.max_queries(), "at most ", largest::tokens);
  }
  for (std::uint32_t i = 0; i < b.size(); ++i) {
    if (b.sequence(i) >= s.sequences) {
      return refusal(call, "sequence", b.sequence(i), "0 to ", s.sequences - 1);
    }
    if (b.queries(i) > largest::tokens) {
      return refusal(call, message("queries[", i, "]"), b.queries(i), "at most ", largest::tokens);
    }
  }
  return {};
}

}  // namespace detail

/// Parameters of attention. The logit of a query q and an entry with key k and degree N is
/// cap(scale * q.k) + log N, with cap(x) = softcap * tanh(x / softcap). k is rotated first where `rope` says
/// so. All options combine. Queries are those of the last tokens: the last query of a sequence is at position
/// seen + pending - 1, the query before it is one position earlier, and so on.
struct attention_params {
  float scale = 0.0f;    ///< 0: 1 / sqrt(key_dim)
  float softcap = 0.0f;  ///< 0: none; applied before the log degree is added
  /// true: the last query sees every entry, the query before it sees one entry less, and so on. The tokens of
  /// several queries must all have come since the last compression, so that each has an entry of its own.
  /// false: every query sees every entry.
  bool causal = true;
  bool use_degree = true;  ///< false: merged entries count as one token (`ignore_degree`)
  std::uint32_t window =
      0;  ///< W: a query at position P sees entries stored at positions above P - W; 0: all
  position_t window_sinks = 0;  ///< the window hides no entry stored at a position below this
  /// [query heads] or null: one logit per query head that takes part in the softmax and has no value
  /// (gpt-oss). It is finite, and is neither scaled nor capped. The log-sum-exp contains it.
  float const* sink = nullptr;
  rope_params rope;  ///< for keys that lie in the cache unrotated

  /// `scale`, or 1 / sqrt(key_dim) if it is 0.
  KVMELD_HD float scale_for(std::uint32_t key_dim) const {
    return scale != 0.0f ? scale : 1.0f / std::sqrt(static_cast<float>(key_dim));
  }
  /// The logit of a scaled product q.k and a log degree.
  KVMELD_HD float logit(float scaled_product, float log_degree) const {
    float const capped = softcap > 0.0f ? softcap * std::tanh(scaled_product / softcap) : scaled_product;
    // An empty slot stays hidden even if degrees are ignored.
    return use_degree || log_degree == element_traits<float>::lowest ? capped + log_degree : capped;
  }
  /// How many entries query `q` of `queries` sees in a track of `length`, if there is no window.
  KVMELD_HD std::uint32_t visible(std::uint32_t length, std::uint32_t queries, std::uint32_t q) const {
    if (!causal) return length;
    std::uint32_t const behind = queries - 1 - q;
    return length > behind ? length - behind : 0;
  }
  /// Whether the window lets a query see an entry stored at `position`; `query` is position_of the query.
  KVMELD_HD bool in_window(position_t position, std::int64_t query) const {
    return window == 0 || position < window_sinks || std::int64_t{position} + window > query;
  }
  /// Position of query `q` of `queries` in a sequence of `tokens` = seen + pending.
  KVMELD_HD static std::int64_t position_of(std::uint32_t tokens, std::uint32_t queries, std::uint32_t q) {
    return std::int64_t{tokens} - std::int64_t{queries} + std::int64_t{q};
  }
};

namespace detail {

/// Why these parameters do not fit keys of `key_dim` channels; empty if they do. `readable`: the host can
/// read the arrays that the parameters point to, and checks them.
inline std::string params_problem(char const* call, attention_params const& p, std::uint32_t key_dim,
                                  bool readable) {
  if (!is_finite(p.scale) || p.scale < 0.0f) {
    return refusal(call, "scale", p.scale, "0, which means 1 / sqrt(key_dim), or a finite number above 0");
  }
  if (!is_finite(p.softcap) || p.softcap < 0.0f) {
    return refusal(call, "softcap", p.softcap, "0, which means none, or a finite number above 0");
  }
  if (p.window != 0 && !p.causal) {
    return refusal(call, "window", p.window,
                   "0, because causal is false and only causal queries have a position");
  }
  if (p.window_sinks < 0 || (p.window_sinks > 0 && p.window == 0)) {
    return refusal(call, "window_sinks", p.window_sinks,
                   p.window == 0 ? "0, because there is no window" : "at least 0");
  }
  return rope_problem(call, p.rope, key_dim, readable);
}

}  // namespace detail

}  // namespace KVMELD_ABI
}  // namespace kvmeld
