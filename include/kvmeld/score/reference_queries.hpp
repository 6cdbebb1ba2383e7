// SPDX-License-Identifier: Apache-2.0
// Reference queries: a few of a track's queries, kept in its table, for what is fitted to attention's
// outputs.
#pragma once

#include <kvmeld/core/bits.hpp>
#include <kvmeld/core/config.hpp>
#include <kvmeld/core/dot.hpp>
#include <kvmeld/core/error.hpp>
#include <kvmeld/core/facts.hpp>
#include <kvmeld/core/types.hpp>
#include <kvmeld/exec/team.hpp>

#include <cstddef>
#include <cstdint>
#include <string>

namespace kvmeld {
inline namespace KVMELD_ABI {

/// Which of the observed queries are kept.
enum class reference_sample : std::uint8_t {
  spread,  ///< those at every n-th position, from the first on; n doubles whenever the room is full
  last,    ///< the last ones
};

/// The reference queries of a score: how many, and which. They are kept as the engine gives them, with their
/// rotation, times the scale of logits. Queries that hold NaN or infinity are left out. Which queries are
/// kept does not depend on how calls of `observe` divide them. `shift`, `renumber` and `truncate` leave them.
/// What is computed from them sees neither softcap, sink logits nor windows, and needs keys that lie rotated.
struct reference_queries {
  std::uint32_t count = 64;                            ///< most queries per query head, 1 to `most`
  reference_sample sample = reference_sample::spread;  ///< which

  static constexpr std::uint32_t most = 1024;  ///< largest count

  /// Floats of a track's table: count rows of key_dim + 1 floats per query head.
  KVMELD_HD std::size_t floats(shape const& s) const {
    return std::size_t{s.queries_per_kv_head} * count * (s.key_dim + 1);
  }

  /// Takes observed queries of a head into the table of a track. Collective; barrier at the end.
  template <class Team, class Queries>
  KVMELD_HD void absorb(Team const& team, float* table, std::uint32_t head, Queries const& queries) const {
    std::uint32_t const d = queries.channels(), n = queries.count(), ld = d + 1;
    if (n == 0) return;
    float* const own = table + std::size_t{head} * count * ld;
    auto const mark = [&](std::uint32_t row) -> float& { return own[std::size_t{row} * ld + d]; };
    std::uint32_t stride = 1;
    if (sample == reference_sample::spread) {
      std::uint32_t const now = stride_of(own[d]);
      std::int64_t const latest = queries.position(n - 1);
      stride = now;
      while (latest / stride >= std::int64_t{count} && stride < most_stride) stride *= 2;
      keep_rows(team, own, ld, stride / now, 0, stride);
      for (std::uint32_t i = 0; i < n; ++i) {
        std::int64_t const at = queries.position(i);
        if (at < 0 || at % stride != 0 || at / stride >= std::int64_t{count}) continue;
        auto const row = static_cast<std::uint32_t>(at / stride);
        queries.load(team, i, 1, own + std::size_t{row} * ld);
        if (team.lane() == 0) mark(row) = static_cast<float>(stride);
      }
    } else {
      std::uint32_t const fresh = min_of(n, count);
      keep_rows(team, own, ld, 1, fresh, 1);
      for (std::uint32_t i = 0; i < fresh; ++i) {
        std::uint32_t const row = count - fresh + i;
        queries.load(team, n - fresh + i, 1, own + std::size_t{row} * ld);
        if (team.lane() == 0) mark(row) = 1.0f;
      }
    }
    team.sync();
    team.for_each(count, [&](std::uint32_t i) {
      float* const row = own + std::size_t{i} * ld;
      if (row[d] > 0.0f && is_finite(dot(row, row, d))) return;
      for (std::uint32_t c = 0; c < d; ++c) row[c] = 0.0f;
      row[d] = -static_cast<float>(stride);
    });
    team.sync();
  }

  /// Why these parameters cannot be used; empty if they can. `where` names them.
  std::string problem(char const* where) const {
    if (count == 0 || count > most) {
      return refusal("policy", message(where, ".count"), count, "1 to ", std::uint32_t{most});
    }
    return {};
  }

private:
  // The last float of a row is the distance of kept positions, negative if the row is empty, 0 in a table
  // that saw no query. A stride is a power of two, which a float holds exactly.
  static constexpr std::uint32_t most_stride = 1u << 30;
  KVMELD_HD static std::uint32_t stride_of(float mark) {
    float const size = mark < 0.0f ? -mark : mark;
    return size >= 1.0f && size <= static_cast<float>(most_stride) ? static_cast<std::uint32_t>(size) : 1u;
  }

  /// Row i becomes row i * step + skip; rows beyond the end become empty. A lane moves a channel of all rows.
  template <class Team>
  KVMELD_HD void keep_rows(Team const& team, float* own, std::uint32_t ld, std::uint32_t step,
                           std::uint32_t skip, std::uint32_t stride) const {
    team.sync();  // all lanes have read the stride
    team.for_each(ld, [&](std::uint32_t c) {
      for (std::uint32_t i = 0; i < count; ++i) {
        std::uint64_t const from = std::uint64_t{i} * step + skip;
        float const x = from < count ? own[from * ld + c] : 0.0f;
        float const mark = static_cast<float>(stride);
        own[std::size_t{i} * ld + c] = c + 1 < ld ? x : x > 0.0f ? mark : -mark;
      }
    });
    team.sync();
  }
};

/// The reference queries of one track as rows of floats, in its table.
class reference_rows {
public:
  /// `heads` query heads with `count` rows each, of `channels` channels.
  KVMELD_HD reference_rows(float const* table, std::uint32_t heads, std::uint32_t count,
                           std::uint32_t channels)
      : table_(table), rows_(heads * count), channels_(channels) {}

  /// Number of rows, empty ones included.
  KVMELD_HD std::uint32_t size() const { return rows_; }
  /// Floats from one row to the next.
  KVMELD_HD std::uint32_t stride() const { return channels_ + 1; }
  /// The first row. An empty row is zero.
  KVMELD_HD float const* data() const { return table_; }
  /// Whether a row holds a query.
  KVMELD_HD bool holds(std::uint32_t i) const { return table_[std::size_t{i} * stride() + channels_] > 0.0f; }

private:
  float const* table_;
  std::uint32_t rows_, channels_;
};

namespace detail {

/// The reference queries that a score keeps: its `reference_queries references()`. Its table begins with
/// them. Count 0: none.
template <class Score> reference_queries references_of([[maybe_unused]] Score const& score) {
  if constexpr (stated_facts<score_facts, Score>.keeps_queries) {
    return score.references();
  } else {
    return {0, reference_sample::last};
  }
}

}  // namespace detail
}  // namespace KVMELD_ABI
}  // namespace kvmeld
