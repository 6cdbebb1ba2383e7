// Prints a plan as text.
#pragma once

#include <kvmeld/core/config.hpp>
#include <kvmeld/core/plan.hpp>
#include <kvmeld/core/types.hpp>

#include <cstddef>
#include <cstdint>
#include <vector>

namespace kvmeld {
inline namespace KVMELD_ABI {

/// Prints the plan of one track to a std::ostream, or to anything with its `<<`: its lengths, every set with
/// its weights, the spreads, and the dropped entries. Entries that stay as they are are counted, not listed.
/// Entries are named by their slots before the plan; "then slot 3" is the slot of a set's result after the
/// plan. Host only. Linear in the track's length.
template <class Stream> void print_plan(Stream& out, track where, plan_ref const& plan, std::uint32_t item) {
  std::uint32_t const n = plan.old_length[item];
  out << "track (layer " << where.layer << ", sequence " << where.sequence << ", head " << where.kv_head
      << "): " << n << " -> " << plan.new_length[item] << " entries\n";
  std::vector<std::vector<slot_t>> sources(n);
  std::vector<slot_t> dropped;
  std::uint32_t alone = 0;
  for (slot_t s = 0; s < n; ++s) {
    fate const f = plan.fates[plan.at(item, s)];
    if (f == fate::merge || f == fate::share) sources[plan.target[plan.at(item, s)]].push_back(s);
    if (f == fate::drop) dropped.push_back(s);
  }
  auto const weights = [&](slot_t s) {
    std::size_t const i = plan.at(item, s);
    out << s << " (key " << plan.key_weight[i] << ", value " << plan.value_weight[i] << ")";
  };
  for (slot_t s = 0; s < n; ++s) {
    std::size_t const i = plan.at(item, s);
    if (plan.fates[i] == fate::spread) {
      out << "  spread " << s << " over " << plan.target[i] << " to " << plan.target[i] + plan.span[i] - 1
          << " (value " << plan.value_weight[i] << ")\n";
    }
    if (plan.fates[i] != fate::keep) continue;
    if (sources[s].empty()) {
      ++alone;
      continue;
    }
    out << "  " << (plan.fates[plan.at(item, sources[s][0])] == fate::share ? "share " : "merge ");
    for (slot_t source : sources[s]) {
      if (source != sources[s].front()) out << " + ";
      weights(source);
    }
    out << " into ";
    weights(s);
    out << ", then slot " << plan.new_slot[i] << "\n";
  }
  if (!dropped.empty()) {
    out << "  drop";
    for (std::size_t k = 0; k < dropped.size();) {  // runs as first-last
      std::size_t end = k + 1;
      while (end < dropped.size() && dropped[end] == dropped[end - 1] + 1) ++end;
      out << " " << dropped[k];
      if (end > k + 1) out << "-" << dropped[end - 1];
      k = end;
    }
    out << "\n";
  }
  out << "  " << alone << " entries stay as they are\n";
}

}  // namespace KVMELD_ABI
}  // namespace kvmeld
