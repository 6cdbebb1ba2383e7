// The policies that fuzz programs run, as one type that compiles once.
#pragma once

#include <kvmeld/compose/composed.hpp>
#include <kvmeld/kvmeld.hpp>

#include <vector>

namespace fuzz {

/// Policies with numbers for short tracks: evicting, merging, spreading, sharing.
inline std::vector<kvmeld::compose::composed> const& compositions() {
  using namespace kvmeld;
  static std::vector<compose::composed> const all = [] {
    std::vector<compose::composed> out;
    auto const add = [&](auto const& p) { out.push_back(compose::composed_of(p)); };
    add(preset::snapkv::with_window(3, {3, pooling_mode::mean}));
    add(preset::scissorhands::defaults(3));
    add(preset::kvmerger::for_budget());
    add(preset::kvmerger::paper_50());
    add(preset::cam::over_h2o());
    add(preset::cam::as_printed(preset::cam::over_streaming_llm(), 2));
    add(preset::keepkv::for_budget());
    add(preset::d2o::defaults());
    add(preset::ems::collapsed(quantity::entries(3), 3, 0.05f));
    add(preset::chelsea::with_schedule({0.45, 0.05, 3, 0.05}, quantity::entries(1), quantity::entries(2)));
    return out;
  }();
  return all;
}

/// EMS's shared entries, which no policy composed at run time has.
inline auto sharing() {
  using kvmeld::quantity;
  return kvmeld::preset::ems::shared(quantity::entries(3), 3, 0.05f);
}

}  // namespace fuzz
