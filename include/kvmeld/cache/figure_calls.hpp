// The calls that tell live figures.
#pragma once

#include <kvmeld/cache/check_calls.hpp>
#include <kvmeld/cache/count_figures.hpp>
#include <kvmeld/cache/observing_calls.hpp>
#include <kvmeld/cache/report.hpp>
#include <kvmeld/core/config.hpp>
#include <kvmeld/core/error.hpp>
#include <kvmeld/core/executor.hpp>
#include <kvmeld/core/figures.hpp>
#include <kvmeld/core/span.hpp>
#include <kvmeld/core/types.hpp>

#include <cstdint>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

namespace kvmeld {
inline namespace KVMELD_ABI {

/// The part of merged_cache that a dashboard asks; see there for what refused calls do. All of it takes limits.figures:
/// compressions of other caches count nothing.
template <class Executor, class Policy, class Keys, class Values>
class figure_calls : public observing_calls<Executor, Policy, Keys, Values> {
  using base = observing_calls<Executor, Policy, Keys, Values>;

public:
  /// As merged_cache.
  figure_calls(Executor executor, Policy policy, kv<Keys, Values> tensors, limits sizes)
      : base(std::move(executor), policy, tensors, sizes) {
    if (this->construction_.ok() && sizes.figures) figures_.resize(sizes.extent.tracks());
  }

  /// Has the figures of all tracks of `slots` written down and sent, behind the calls made so far, without waiting. One
  /// request is on its way at a time: asking again before it has arrived does nothing. The first time allocates host memory
  /// where launches are not immediate. Refuses caches without limits.figures, slots that are not open, and recording.
  status request_figures(index_list slots) {
    auto const problem = [&]() -> std::string {
      if (this->arrays_.figures == nullptr) {
        return no_figures("request_figures");
      }
      return check_calls::is_open("request_figures", this->facts_, slots);
    };
    if (status s = this->refuse_once("request_figures", problem); !s.ok()) return s;
    if (!is_immediate<Executor>::value && way_.sent()) return {};
    show_figures_phase const show{
        {this->ledger_, this->stage(slots), nullptr}, this->arrays_.workspace.figures, this->arrays_.figures};
    if (status s = this->launch_all("request_figures", show); !s.ok()) return s;
    if constexpr (is_immediate<Executor>::value) {
      take(this->arrays_.figures);
    } else {
      way_.send(this->executor_, this->arrays_.figures, bytes());
    }
    return {};
  }
  /// True, once, when the figures that were asked for have arrived, and figures() tells them; never waits. Where launches
  /// are immediate there is nothing to wait for: true.
  bool figures_ready() {
    if constexpr (is_immediate<Executor>::value) {
      return true;
    } else {
      if (!way_.arrived(this->executor_)) return false;
      take(way_.data());
      return true;
    }
  }

  /// What the last request that arrived says about a track; zeros, with all mass retained, for slots never asked about.
  live_figures figures(std::uint32_t layer, std::uint32_t slot, std::uint32_t kv_head) const {
    if (!there("figures", slot, layer, kv_head)) return {};
    return figures_[make_track(this->sizes_.extent, layer, slot, kv_head).index];
  }
  /// The same of all layers and heads of a sequence.
  figures_sum figures(std::uint32_t slot) const {
    figures_sum sum;
    if (!there("figures", slot, 0, 0)) return sum;
    this->for_tracks(slot, [&](track t) { sum += figures_sum(figures_[t.index]); });
    return sum;
  }

private:
  std::size_t bytes() const { return figures_.size() * sizeof(live_figures); }
  void take(void const* from) { std::memcpy(figures_.data(), from, bytes()); }
  static std::string no_figures(char const* call) {
    return refusal(call, "limits.figures", "false",
                   "true when the cache is built, because else nothing is counted");
  }
  bool there(char const* call, std::uint32_t slot, std::uint32_t layer, std::uint32_t head) const {
    if (!this->within(call, slot, layer, head)) return false;
    return !figures_.empty() || report(no_figures(call)).ok();
  }

  std::vector<live_figures> figures_;
  report_on_its_way<Executor> way_;
};

}  // namespace KVMELD_ABI
}  // namespace kvmeld
