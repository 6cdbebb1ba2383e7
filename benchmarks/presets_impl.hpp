// Included by one source file per element type.
#pragma once

#include "presets.hpp"

#include <kvmeld/kvmeld.hpp>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <map>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <typeinfo>
#include <utility>
#include <vector>

#include <cxxabi.h>

namespace kvmeld_bench {

/// The launches of one kind of phase.
struct phase_meter {
  std::size_t launches = 0;
  double seconds = 0.0;
};

/// The name of a phase's template, such as propose_phase.
template <class Phase> std::string name_of() {
  int status = 0;
  char* const text = abi::__cxa_demangle(typeid(Phase).name(), nullptr, nullptr, &status);
  std::string name = text == nullptr ? typeid(Phase).name() : text;
  std::free(text);
  name.resize(std::min(name.size(), name.find('<')));
  std::size_t const colon = name.rfind(':');
  return colon == std::string::npos ? name : name.substr(colon + 1);
}

/// A host executor that notes how much scratch a worker needed, and what its launches took by kind of phase.
class metering_executor : public kvmeld::host_executor {
public:
  using kvmeld::host_executor::host_executor;

  template <class Phase, class Source>
  void run(Phase const& phase, kvmeld::shape const& extent, std::uint32_t items, Source const& source) {
    max_scratch_ = std::max(max_scratch_, phase.scratch_bytes(1));
    static std::string const name = name_of<Phase>();
    auto const begin = std::chrono::steady_clock::now();
    kvmeld::host_executor::run(phase, extent, items, source);
    if (rehearses()) return;
    phase_meter& meter = phases_[name];
    ++meter.launches;
    meter.seconds += std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  }
  std::size_t max_scratch() const { return max_scratch_; }
  std::map<std::string, phase_meter> const& phases() const { return phases_; }
  double proposing() const {
    auto const found = phases_.find("propose_phase");
    return found == phases_.end() ? 0.0 : found->second.seconds;
  }
  std::size_t launches() const {
    std::size_t all = 0;
    for (auto const& [name, meter] : phases_) all += meter.launches;
    return all;
  }
  void restart_meter() {
    max_scratch_ = 0;
    phases_.clear();
  }

private:
  std::map<std::string, phase_meter> phases_;
  std::size_t max_scratch_ = 0;
};

/// What the launches of the last compression took, by kind of phase; those of a fiftieth and more.
inline void remember_phases(session& s, std::string const& name, input const& of,
                            std::map<std::string, phase_meter> const& phases) {
  double all = 0.0;
  for (auto const& [phase, meter] : phases) all += meter.seconds;
  for (auto const& [phase, meter] : phases) {
    if (meter.seconds < 0.02 * all) continue;
    s.remember({name + " " + std::to_string(of.n) + " " + of.dtype + ", " + std::to_string(meter.launches) +
                    " launches of " + phase,
                "ms", 1e3 * meter.seconds});
  }
}

template <class T, class Policy>
using cache_of = kvmeld::merged_cache<metering_executor, Policy, kvmeld::strided<T>, kvmeld::strided<T>>;

template <class Policy> kvmeld::cache_options sizes_for(kvmeld::shape const& extent) {
  kvmeld::cache_options options{extent};
  if (kvmeld::shares_entries<typename Policy::merge_type>::value) options.members = 3 * extent.capacity;
  return options;
}

constexpr std::uint8_t looked_at = kvmeld::entry_flag::key_checked | kvmeld::entry_flag::value_checked;

/// A cache of the tensors' entries with scores as attention leaves them.
template <class T, class Policy> cache_of<T, Policy> filled(session& s, tensors<T>& x, Policy const& policy) {
  metering_executor executor(s.threads());
  executor.reserve(
      std::size_t{1} << 20);  // so that a repetition does not pay for the first touch of the scratch
  cache_of<T, Policy> cache(std::move(executor), policy, x.rows(), sizes_for<Policy>(x.extent()));
  cache.open(0, x.of().n);
  fill_scores(cache.ledger());
  return cache;
}

/// One decode step over all heads: a query per query head.
template <class T, class Cache>
void measure_attention(session& s, tensors<T>& x, std::string const& name, Cache& cache) {
  std::array<std::uint32_t, 1> const sequences{0};
  std::array<std::uint32_t, 1> const queries{1};
  std::uint32_t const heads = heads_of(x.of().n) * group;
  std::vector<float> query(std::size_t{heads} * head_dim);
  std::vector<float> out(query.size());
  std::uint32_t state = 5;
  for (float& q : query) q = noise(state);
  auto const bytes = [&] { return static_cast<double>(cache.entries(0)) * (2.0 * head_dim * sizeof(T) + 4); };
  s.measure(
      name, x.of(), [] {},
      [&] {
        kvmeld::attention::attend(cache.executor(), {0, sequences, queries},
                                  kvmeld::rows_by_token<float const>(query.data(), 1, heads, head_dim),
                                  cache.ref(), kvmeld::rows_by_token(out.data(), 1, heads, head_dim));
      },
      bytes,
      [&] {
        return references{{}, s.reference().read_seconds(bytes()), {}, {}};
      });
}

/// Compresses to `kept_share`, or to `most` entries where that is less, in the default waves of a cache.
/// Methods that match every entry with every centre have a budget that does not grow with the text.
template <class T, class Policy>
void run_preset(session& s, tensors<T>& x, std::string const& preset, Policy const& policy,
                bool with_attention = false, std::uint32_t most = 0xffffffffu) {
  std::uint32_t const budget = std::min(most, kvmeld::floor_share(kept_share, x.of().n));
  std::string const name = "compress/" + preset;
  bool const attends = with_attention && s.wants_any({"attend/unmerged", "attend/merged"}, "", x.of());
  if (!s.wants(name, x.of()) && !attends) return;
  x.restore();
  cache_of<T, Policy> cache = filled(s, x, policy);
  std::vector<std::byte> const begun = cache.save(0);
  if (attends) measure_attention(s, x, "attend/unmerged", cache);
  std::array<std::uint32_t, 1> const slots{0};
  double const row_bytes = double{head_dim} * sizeof(T);
  s.measure(
      name, x.of(),
      [&] {
        begin_again(x, cache, begun);
        cache.executor().restart_meter();
      },
      [&] { cache.compress(slots, kvmeld::budget::entries(budget)); },
      [&] {
        double const before = 1.0 * heads_of(x.of().n) * x.of().n;
        double const after = static_cast<double>(cache.entries(0));
        constexpr bool evicts = std::is_same_v<typename Policy::identify_type, kvmeld::identify::evict_rest>;
        return row_bytes * (evicts ? 4 * after : 2 * before + 2 * after);
      },
      [&] {
        references r;
        if (preset == "chelsea") r.similarity = cache.executor().proposing();  // of the last run
        return r;
      });
  if (cache.longest(0) != budget) {
    throw std::runtime_error(name + " left " + std::to_string(cache.longest(0)) + " of " +
                             std::to_string(x.of().n) + " entries, which is not its budget.");
  }
  s.remember({"scratch per worker, " + preset, "bytes", static_cast<double>(cache.executor().max_scratch())});
  // The one launch behind all waves counts with each.
  std::uint32_t const waves = kvmeld::ceil_div(heads_of(x.of().n), cache.options().wave_tracks);
  s.remember({"launches per wave, " + preset + ", " + std::to_string(x.of().n) + " entries", "",
              static_cast<double>(
                  kvmeld::ceil_div(static_cast<std::uint32_t>(cache.executor().launches()), waves))});
  if (x.of().n == 4096 || x.of().n == 65536) remember_phases(s, name, x.of(), cache.executor().phases());
  s.remember({"ledger per entry, " + preset, "bytes",
              static_cast<double>(
                  kvmeld::ledger_bytes_per_entry(kvmeld::channels_of(typename Policy::score_type{})))});
  if (!attends) return;
  cache.executor().restart_meter();
  measure_attention(s, x, "attend/merged", cache);
  s.remember({"scratch per worker, attention::attend", "bytes",
              static_cast<double>(cache.executor().max_scratch())});
}

/// While generating, compressed every `interval` tokens: the time of one compression, against the attention
/// of as many decode steps over the same entries before they merged.
template <class T, class Policy>
void run_decode_step(session& s, tensors<T>& x, std::string const& preset, Policy const& policy,
                     std::uint32_t interval) {
  std::string const name = "decode_step/" + preset + "/" + std::to_string(interval);
  if (x.of().n != 4096 || !s.wants(name, x.of())) return;
  x.restore();
  cache_of<T, Policy> cache = filled(s, x, policy);
  std::vector<std::byte> const begun = cache.save(0);
  std::array<std::uint32_t, 1> const slots{0};
  std::uint32_t const budget = x.of().n - interval;
  s.measure(
      name, x.of(),
      [&] {
        begin_again(x, cache, begun);
        // As at any time but the first: what is new are the last tokens.
        std::fill_n(cache.ledger().flags, x.extent().slots(), looked_at);
        for (std::uint32_t head = 0; head < heads_of(x.of().n); ++head)
          std::fill_n(cache.ledger().flags + std::size_t{head} * x.of().n + budget, interval,
                      std::uint8_t{0});
      },
      [&] { cache.compress(slots, kvmeld::budget::entries(budget)); },
      [&] { return 2.0 * head_dim * sizeof(T) * static_cast<double>(cache.entries(0)); },
      [&] {
        references r;
        // Every demoted centre with every centre that stays, keys and values.
        if (preset == "ems")
          r.blas = s.reference().product_seconds(2 * heads_of(x.of().n), interval, budget, head_dim);
        for (row const& a : s.rows()) {
          bool const same = a.of.n == x.of().n && a.of.dtype == x.of().dtype;
          if (a.name == "attend/unmerged" && same) r.attention = interval * a.seconds;
        }
        return r;
      });
}

template <class T> void run_presets(session& s, tensors<T>& x) {
  run_preset(s, x, "streaming_llm", kvmeld::preset::streaming_llm::with_sinks());
  run_preset(s, x, "h2o", kvmeld::preset::h2o::defaults());
  run_preset(s, x, "snapkv", kvmeld::preset::snapkv::with_window());
  run_preset(s, x, "kvmerger", kvmeld::preset::kvmerger::for_budget());
  constexpr std::uint32_t fixed = 768;  // at every length
  run_preset(s, x, "d2o", kvmeld::preset::d2o::defaults(), false, fixed);
  run_preset(s, x, "cam", kvmeld::preset::cam::over_streaming_llm());
  run_preset(s, x, "keepkv", kvmeld::preset::keepkv::for_budget());
  run_preset(s, x, "ems", kvmeld::preset::ems::shared(), false, fixed);
  run_preset(s, x, "chelsea", kvmeld::preset::chelsea::llama3(), true);
  std::vector<float> const learned = random_weights(x.extent());
  kvmeld::rope_params const rope{kvmeld::rope_pairing::half_split};
  run_preset(s, x, "learned_centroids",
             kvmeld::preset::with_centroids(
                 kvmeld::preset::learned::with_weights(weights_of(learned, x.extent()), rope), rope));
  for (std::uint32_t interval : {64u, 256u}) {
    run_decode_step(s, x, "ems", kvmeld::preset::ems::shared(), interval);
    run_decode_step(s, x, "cam", kvmeld::preset::cam::over_streaming_llm(), interval);
  }
}

}  // namespace kvmeld_bench
