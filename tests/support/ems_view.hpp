// A cache's track in the words of the EMS reference, shared or collapsed, and where the two differ.
#pragma once

#include <kvmeld/kvmeld.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <sstream>
#include <string>
#include <type_traits>
#include <vector>

#include "reference/ems.hpp"
#include "support/track_view.hpp"

namespace support {

// The window's two halves: where the library's current half is full, the reference has moved it to the past.
inline reference::ems_score ems_score_at(float* const* data, std::size_t i, bool full) {
  using score = kvmeld::score::global_local;
  double const past = static_cast<double>(data[score::past][i]),
               current = static_cast<double>(data[score::current][i]);
  double const global = static_cast<double>(data[score::accumulated][i]);
  return full ? reference::ems_score{global, past + current, 0} : reference::ems_score{global, past, current};
}

template <class Ref> reference::ems_state read_ems(Ref const& ref, kvmeld::track t, std::uint32_t window) {
  kvmeld::ledger_ref const& l = ref.ledger;
  bool const shares = l.members.capacity != 0;
  std::uint32_t const filled = l.word(t, kvmeld::track_word::window_rows);
  reference::ems_state out;
  out.rows_in_window = filled >= window ? 0 : filled;
  std::uint32_t const weight = l.channels.find(kvmeld::channel_tag::merge_weight);
  for (std::uint32_t s = 0; s < ref.length(t); ++s) {
    reference::ems_slot slot;
    slot.key = read_row(ref.keys, t, s);
    slot.value = read_row(ref.values, t, s);
    slot.position = ref.position(t, s);
    slot.score = ems_score_at(l.channel_data, l.at(t, s), filled >= window);
    slot.degree = static_cast<double>(l.degree[l.at(t, s)]);
    slot.own_norm = shares ? static_cast<double>(l.members.own_norm[l.at(t, s)]) : 0.0;
    slot.merge_weight = static_cast<double>(l.channel_data[weight][l.at(t, s)]);
    slot.bad = !finite_row(slot.key) || !finite_row(slot.value);
    out.slots.push_back(slot);
  }
  for (std::uint32_t m = 0; shares && m < l.members.count[t.index]; ++m) {
    std::size_t const i = l.members.at(t, m);
    out.members.push_back({static_cast<double>(l.members.norm[i]), l.members.position[i], l.members.owner[i],
                           ems_score_at(l.members.channel_data, i, filled >= window)});
  }
  return out;
}

// The policy's numbers; `capacity` members are all that fit.
template <class Policy>
reference::ems_options ems_options_of(Policy const& p, std::size_t budget, std::size_t capacity) {
  reference::ems_options o;
  o.budget = budget;
  o.window = p.score.window;
  o.kernel = p.score.pooling.kernel;
  o.sinks = static_cast<std::size_t>(p.select.sinks.value());
  o.n_protect = static_cast<std::size_t>(p.select.protect.value());
  o.gamma = p.select.magnification;
  o.tau = static_cast<double>(p.identify.admission.theta);
  o.collapsed = !Policy::merge_type::facts.shares;
  if (!o.collapsed && reference::floor_count(o.gamma - 1, budget) > capacity)
    o.gamma = 1 + static_cast<double>(capacity) / static_cast<double>(budget);
  return o;
}

inline bool near(double a, double b, double part) { return std::fabs(a - b) <= part * (1 + std::fabs(b)); }

inline bool near_score(reference::ems_score const& a, reference::ems_score const& b) {
  return near(a.global, b.global, 1e-5) && near(a.local(), b.local(), 1e-5);
}

// Members by owner and position: their order of arrival depends on the steps that brought them.
inline reference::ems_state by_position(reference::ems_state state) {
  std::sort(state.members.begin(), state.members.end(),
            [](reference::ems_member const& x, reference::ems_member const& y) {
              return x.owner != y.owner ? x.owner < y.owner : x.position < y.position;
            });
  return state;
}

// What of two states differs in scores, positions, owners; empty if nothing. `b` lists members by owner.
inline std::string ledger_difference(reference::ems_state const& a, reference::ems_state const& b) {
  std::ostringstream out;
  if (a.slots.size() != b.slots.size() || a.members.size() != b.members.size()) {
    out << b.slots.size() << " slots and " << b.members.size() << " members for " << a.slots.size() << " and "
        << a.members.size();
    return out.str();
  }
  for (std::size_t s = 0; s < a.slots.size(); ++s) {
    reference::ems_slot const &x = a.slots[s], &y = b.slots[s];
    if (x.position != y.position) out << "position of slot " << s << "; ";
    if (x.degree != y.degree) out << "degree " << y.degree << " for " << x.degree << " of slot " << s << "; ";
    bool const norms = (x.own_norm > 0) == (y.own_norm > 0) && near(y.own_norm, x.own_norm, 1e-6);
    if (!norms) out << "own norm " << y.own_norm << " for " << x.own_norm << " of slot " << s << "; ";
    if (!near(y.merge_weight, x.merge_weight, 1e-5)) out << "weight of slot " << s << "; ";
    if (!near_score(x.score, y.score)) out << "score of slot " << s << "; ";
  }
  std::vector<reference::ems_member> members = a.members;
  std::stable_sort(
      members.begin(), members.end(),
      [](reference::ems_member const& x, reference::ems_member const& y) { return x.owner < y.owner; });
  for (std::size_t m = 0; m < members.size(); ++m) {
    reference::ems_member const &x = members[m], &y = b.members[m];
    if (x.owner != y.owner || x.position != y.position) out << "member " << m << " is another; ";
    if (!near(y.norm, x.norm, 1e-6)) out << "norm of member " << m << "; ";
    if (!near_score(x.score, y.score)) out << "score of member " << m << "; ";
  }
  return out.str();
}

// What a cache's track has that the reference's outcome has not, given the track as it was; empty if they
// agree. Rows that nothing merged into are the same bit by bit; merged ones as close as their storage lets
// them be.
template <class T>
std::string ems_difference(reference::ems_outcome const& expected, reference::ems_state const& before,
                           reference::ems_state const& got) {
  std::string const text = ledger_difference(expected.after, got);
  if (!text.empty()) return text;
  double largest_key = 1, largest_value = 1e-30;  // directions are of length 1 at most
  for (reference::ems_slot const& slot : before.slots) {
    for (double x : slot.bad ? reference::row{} : slot.key) largest_key = std::max(largest_key, std::fabs(x));
    for (double x : slot.bad ? reference::row{} : slot.value)
      largest_value = std::max(largest_value, std::fabs(x));
  }
  std::vector<std::size_t> tokens(before.slots.size(), 0), place;
  for (std::size_t i = 0; i < expected.slot_target.size(); ++i) {
    if (expected.slot_target[i] < 0) continue;
    ++tokens[static_cast<std::size_t>(expected.slot_target[i])];
    if (expected.slot_target[i] == static_cast<int>(i)) place.push_back(i);
  }
  element_count count;
  std::size_t elements = 0;
  std::ostringstream out;
  for (std::size_t s = 0; s < got.slots.size(); ++s) {
    reference::ems_slot const &old = before.slots[place[s]], &now = got.slots[s];
    if (tokens[place[s]] < 2) {
      if (!old.bad && (now.key != old.key || now.value != old.value))
        out << "slot " << s << " merged nothing, but its rows changed; ";
      continue;
    }
    elements += now.key.size() + now.value.size();
    compare_rows<T>(expected.after.slots[s].key, now.key, largest_key, count);
    compare_rows<T>(expected.after.slots[s].value, now.value, largest_value, count);
    if (count.far != 0) {
      out << "slot " << s << " holds other rows";
      return out.str();
    }
  }
  std::size_t const allowed = expected.near_rounding + 3 + elements / 200;
  if (count.differing > allowed)
    out << count.differing << " of " << elements << " elements are stored otherwise; " << allowed
        << " may be";
  return out.str();
}

// Scores are sums of many numbers: what float's rounding may decide grows with them.
inline bool decided(reference::ems_outcome const& outcome, reference::ems_state const& before) {
  double largest = 1;
  for (reference::ems_slot const& slot : before.slots) largest = std::max(largest, slot.score.global);
  return outcome.score_margin > 1e-6 * largest && outcome.similarity_margin > decision_margin;
}

}  // namespace support
