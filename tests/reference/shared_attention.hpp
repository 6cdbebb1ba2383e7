// Attention over EMS's shared form (paper 002, section 4.2 and appendix A, "shared entry expansion"): every
// slot and every member makes a logit of its own, from the slot's direction and the token's own norm, and
// reads the slot's value. Before rotary embedding: the rows are not rotated, each token rotates its own.
#pragma once

#include "ems.hpp"

namespace reference {

enum class rotary_pairs { none, half_split, interleaved };

struct rotary_options {
  rotary_pairs pairs = rotary_pairs::none;
  double base = 10000;
  std::function<double(long)> place = [](long position) { return static_cast<double>(position); };
};

// Turns the pairs (x, y) = (row[c], row[c + d/2]) or (row[2c], row[2c + 1]) by place * base^(-2c/d).
inline row rotate(row const& unrotated, long position, rotary_options const& rotary) {
  row result = unrotated;
  std::size_t const half = unrotated.size() / 2;
  for (std::size_t c = 0; c < half && rotary.pairs != rotary_pairs::none; ++c) {
    double const part = static_cast<double>(c) / static_cast<double>(half);
    double const angle = rotary.place(position) * std::pow(rotary.base, -part);
    std::size_t const x = rotary.pairs == rotary_pairs::half_split ? c : 2 * c;
    std::size_t const y = rotary.pairs == rotary_pairs::half_split ? c + half : 2 * c + 1;
    result[x] = unrotated[x] * std::cos(angle) - unrotated[y] * std::sin(angle);
    result[y] = unrotated[x] * std::sin(angle) + unrotated[y] * std::cos(angle);
  }
  return result;
}

// The tokens a state stands for as plain rows: slots first, then members, in their order.
struct expanded_tokens {
  matrix keys, values;
};

inline row token_key(row const& stored, double token_norm, long position, rotary_options const& rotary) {
  row key = rotate(stored, position, rotary);
  for (double& x : key) x *= token_norm;
  return key;
}

inline expanded_tokens expand(ems_state const& state, rotary_options const& rotary = {}) {
  expanded_tokens result;
  for (ems_slot const& slot : state.slots) {
    result.keys.push_back(
        token_key(slot.key, slot.own_norm > 0 ? slot.own_norm : 1.0, slot.position, rotary));
    result.values.push_back(slot.value);
  }
  for (ems_member const& member : state.members) {
    ems_slot const& owner = state.slots[member.owner];
    result.keys.push_back(token_key(owner.key, member.norm, member.position, rotary));
    result.values.push_back(owner.value);
  }
  return result;
}

// probability[q]: per token, slots first, then members, as ems_observe takes it. Queries are rotated already.
// With options.causal, query i of m sees the slots 0 .. n - m + i; members are old and seen by all.
// Degrees are for the collapsed form, which has no members: ln(degree) is added to the logit there alone.
inline attention_result attend_shared(matrix const& queries, ems_state const& state,
                                      attention_options const& options = {},
                                      rotary_options const& rotary = {}, bool collapsed = false) {
  expanded_tokens tokens = expand(state, rotary);
  std::vector<double> degree(tokens.keys.size(), 1.0);
  for (std::size_t i = 0; collapsed && i < state.slots.size(); ++i) degree[i] = state.slots[i].degree;
  if (!options.causal) return attend(queries, tokens.keys, tokens.values, degree, options);

  // Members first, so that the causal edge cuts slots only; then their columns go back to the end.
  auto const members = static_cast<std::ptrdiff_t>(state.members.size());
  auto const slots = static_cast<std::ptrdiff_t>(state.slots.size());
  std::rotate(tokens.keys.begin(), tokens.keys.begin() + slots, tokens.keys.end());
  std::rotate(tokens.values.begin(), tokens.values.begin() + slots, tokens.values.end());
  std::rotate(degree.begin(), degree.begin() + slots, degree.end());
  attention_result result = attend(queries, tokens.keys, tokens.values, degree, options);
  for (row& p : result.probability) std::rotate(p.begin(), p.begin() + members, p.end());
  return result;
}

}  // namespace reference
