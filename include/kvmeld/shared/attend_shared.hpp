// SPDX-License-Identifier: Apache-2.0
// Attention over shared entries (EMS section 4.2, "shared entry expansion"). Every token has its own logit,
// made from its slot's key direction and the token's norm. All tokens of a slot read the slot's value once.
#pragma once

#include <kvmeld/attention/attend.hpp>
#include <kvmeld/attention/attend_masked.hpp>
#include <kvmeld/attention/attend_rows.hpp>
#include <kvmeld/attention/split_keys.hpp>
#include <kvmeld/core/config.hpp>
#include <kvmeld/core/dot.hpp>
#include <kvmeld/core/error.hpp>
#include <kvmeld/core/types.hpp>
#include <kvmeld/exec/executor.hpp>
#include <kvmeld/exec/team.hpp>
#include <kvmeld/queries/log_sums.hpp>
#include <kvmeld/queries/queries.hpp>
#include <kvmeld/queries/rope.hpp>
#include <kvmeld/shared/shared_ref.hpp>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>

namespace kvmeld {
inline namespace KVMELD_ABI {
namespace attention {

/// Running log(sum of exp) of the logits of a slot's tokens. A sum of 0 means that no logit was added yet.
struct running_sum {
  float high, sum;

  KVMELD_HD void add(float logit) {
    if (sum == 0.0f) {
      high = logit;
      sum = 1.0f;
    } else if (logit > high) {
      sum = sum * std::exp(high - logit) + 1.0f;
      high = logit;
    } else {
      sum += std::exp(logit - high);
    }
  }
};

/// In place of kept_logits: the tokens of a slot have logits of their own.
struct no_kept_logits {
  no_kept_logits() = default;
  no_kept_logits(kept_logits const&) {}

  KVMELD_HD static constexpr bool wanted() { return false; }
  KVMELD_HD static constexpr float* row(block_of_rows const&, std::uint32_t) { return nullptr; }
};

/// One tile works on one block of queries and, where keys are split, on one part of the keys. It reads K and
/// V once per slot, and expands tokens to logits in scratch only. Where keys lie unrotated, it rotates each
/// token's key for the token's own position, in scratch, block by block.
template <class Keys, class Values, class Q, class Out> struct attend_shared_phase : attend_rows<Q, Out> {
  using base = attend_rows<Q, Out>;
  using ref_type = shared_ref<Keys, Values>;
  using base::params;
  using base::query_block;
  using base::token_block;
  ref_type cache;
  partial_rows parts;  ///< with one part, each tile writes its outputs itself
  no_kept_logits kept{};

  /// For each part.
  std::uint32_t tiles(shape const&) const { return base::blocks(); }
  std::size_t scratch_bytes(int) const {
    std::size_t const rows = std::size_t{query_block} * cache.extent().queries_per_kv_head;
    std::size_t const dk = cache.keys.channels();
    std::size_t const dv = cache.values.channels();
    return scratch_size(rows * dk * sizeof(float)) +
           (params.rope.active() ? 2 : 1) * scratch_size(token_block * dk * sizeof(float)) +
           scratch_size(token_block * dv * sizeof(float)) + scratch_size(rows * token_block * sizeof(float)) +
           scratch_size(rows * token_block * sizeof(running_sum)) +
           scratch_size((token_block + 1) * sizeof(std::uint32_t)) +
           scratch_size(token_block * sizeof(position_t)) + rope_scratch(params.rope, cache.keys.channels()) +
           softmax_scratch(static_cast<std::uint32_t>(rows), cache.values.channels()) + parts.find_scratch();
  }

  template <class Team> KVMELD_HD void operator()(Team const& team, tile const& of_part) const {
    key_part const part = parts.find(team, this->source, cache.ledger, of_part);
    if (part.count == 0) return;
    tile const t{part.where, part.item, of_part.index};
    block_of_rows const b = this->rows_of(cache.extent(), t);
    if (b.rows == 0) return;
    std::uint32_t const max_rows = query_block * cache.extent().queries_per_kv_head;
    std::uint32_t const dk = cache.keys.channels();
    std::uint32_t const dv = cache.values.channels();
    std::uint32_t const length = cache.length(t.where);

    float* const q = team.template scratch<float>(std::size_t{max_rows} * dk);
    float* const k = team.template scratch<float>(std::size_t{token_block} * dk);
    float* const v = team.template scratch<float>(std::size_t{token_block} * dv);
    float* const logits = team.template scratch<float>(std::size_t{max_rows} * token_block);
    running_sum* const sums = team.template scratch<running_sum>(std::size_t{max_rows} * token_block);
    std::uint32_t* const first_member = team.template scratch<std::uint32_t>(token_block + 1);
    position_t* const position = team.template scratch<position_t>(token_block);
    double const* const turns = rope_table(team, params.rope, dk);
    float* const rotated =
        params.rope.active() ? team.template scratch<float>(std::size_t{token_block} * dk) : k;
    softmax_state const state(team, max_rows, dv);
    this->load_queries(team, b, dk, q);
    slot_t const end = part.end(params.visible(length, b.queries, b.query_of(b.rows - 1)));
    std::uint32_t const known = cache.ledger.tokens(t.where.sequence);
    for (slot_t begin = part.begin(); begin < end; begin += token_block) {
      std::uint32_t const slots = min_of(token_block, end - begin);
      cache.keys.load_tile(team, t.where, begin, slots, 0, dk, k, dk);
      cache.values.load_tile(team, t.where, begin, slots, 0, dv, v, dv);
      team.for_each(slots + 1,
                    [&](std::uint32_t i) { first_member[i] = cache.first_member(t.where, begin + i); });
      team.for_each(b.rows * slots, [&](std::uint32_t i) { sums[i] = {0.0f, 0.0f}; });
      team.sync();
      auto const visible = [&](std::uint32_t r) {
        std::uint32_t const seen = params.visible(length, b.queries, b.query_of(r));
        return seen > begin ? min_of(slots, seen - begin) : 0;
      };
      auto const sees = [&](std::uint32_t r, position_t p) {
        return params.in_window(p, params.position_of(known, b.queries, b.query_of(r)));
      };
      if (params.rope.active()) {
        rotated_tokens(team, t, b, begin, slots, q, k, first_member, position, turns, rotated, visible, sees,
                       sums);
      } else {
        team.for_each(b.rows * slots, [&](std::uint32_t n) {
          std::uint32_t const r = n / slots;
          std::uint32_t const i = n % slots;
          if (i >= visible(r)) return;
          float const product = dot(q + std::size_t{r} * dk, k + std::size_t{i} * dk, dk);
          running_sum sum{0.0f, 0.0f};
          if (sees(r, cache.position(t.where, begin + i))) {
            sum.add(params.logit(product * cache.norm_factor(t.where, begin + i), 0.0f));
          }
          for (std::uint32_t m = first_member[i]; m < first_member[i + 1]; ++m) {
            if (!sees(r, cache.member_position(t.where, m))) continue;
            sum.add(params.logit(product * cache.member_norm(t.where, m), 0.0f));
          }
          sums[n] = sum;
        });
      }
      team.sync();
      auto const any = [&](std::uint32_t r, std::uint32_t i) {  // true for a NaN logit: its sum is not 0
        return !(sums[r * slots + i].sum == 0.0f);
      };
      team.for_each(b.rows * slots, [&](std::uint32_t n) {
        logits[n] = sums[n].high + (sums[n].sum == 1.0f ? 0.0f : std::log(sums[n].sum));
      });
      team.sync();
      kvmeld::detail::attend_logits(team, b.rows, v, slots, dv, logits, any, state);
    }
    if (team.lane() == 0) parts.note(part, t.index);
    if (part.count == 1) return this->finish(team, b, dv, state);
    parts.write(team, part, b, dv, state);
  }

private:
  /// Adds the logits of tokens whose keys are rotated for their own positions: the slots' own tokens first,
  /// then the members, in blocks. Collective.
  template <class Team, class Visible, class Sees>
  KVMELD_HD void rotated_tokens(Team const& team, tile const& t, block_of_rows const& b, slot_t begin,
                                std::uint32_t slots, float const* q, float const* k,
                                std::uint32_t const* first_member, position_t* position, double const* turns,
                                float* rotated, Visible visible, Sees sees, running_sum* sums) const {
    std::uint32_t const dk = cache.keys.channels();
    rope_params by_position = params.rope;
    by_position.positions = rope_positions::stored;
    by_position.map = nullptr;
    auto const rotate = [&](std::uint32_t tokens, auto slot_of, auto position_of) {
      team.for_each(tokens, [&](std::uint32_t i) {
        position[i] = params.rope.turned_for(begin + slot_of(i), position_of(i));
      });
      team.for_each(tokens * dk,
                    [&](std::uint32_t n) { rotated[n] = k[std::size_t{slot_of(n / dk)} * dk + n % dk]; });
      rotate_tile(team, by_position, turns, rotated, tokens, dk, 0, position);
      team.sync();
    };
    auto const product = [&](std::uint32_t r, std::uint32_t i) {
      return dot(q + std::size_t{r} * dk, rotated + std::size_t{i} * dk, dk);
    };
    rotate(
        slots, [](std::uint32_t i) { return i; },
        [&](std::uint32_t i) { return cache.position(t.where, begin + i); });
    team.for_each(b.rows * slots, [&](std::uint32_t n) {
      std::uint32_t const r = n / slots;
      std::uint32_t const i = n % slots;
      if (i >= visible(r) || !sees(r, cache.position(t.where, begin + i))) return;
      sums[n].add(params.logit(product(r, i) * cache.norm_factor(t.where, begin + i), 0.0f));
    });
    team.sync();
    std::uint32_t const last = first_member[slots];
    for (std::uint32_t from = first_member[0]; from < last; from += token_block) {
      std::uint32_t const to = min_of(last, from + token_block);
      rotate(
          to - from, [&](std::uint32_t i) { return cache.member_owner(t.where, from + i) - begin; },
          [&](std::uint32_t i) { return cache.member_position(t.where, from + i); });
      team.for_each(b.rows * slots, [&](std::uint32_t n) {
        std::uint32_t const r = n / slots;
        std::uint32_t const i = n % slots;
        if (i >= visible(r)) return;
        for (std::uint32_t m = max_of(from, first_member[i]); m < min_of(to, first_member[i + 1]); ++m) {
          if (!sees(r, cache.member_position(t.where, m))) continue;
          sums[n].add(params.logit(product(r, m - from) * cache.member_norm(t.where, m), 0.0f));
        }
      });
      team.sync();
    }
  }
};

namespace detail {

template <class Keys, class Values> struct attend_phase_of<shared_ref<Keys, Values>> {
  template <class Q, class Out> using type = attend_shared_phase<Keys, Values, Q, Out>;
};

}  // namespace detail

}  // namespace attention
}  // namespace KVMELD_ABI
}  // namespace kvmeld
