// SPDX-License-Identifier: Apache-2.0
// The calls of merged_cache by which the host learns what the ledger holds: reports, stats, saved sequences.
// Included by merged_cache.hpp alone.
#pragma once

#include <kvmeld/cache/merged_cache.hpp>

namespace kvmeld {
inline namespace KVMELD_ABI {

// ---- reports and stats --------------------------------------------------------------------------

template <class E, class P, class K, class V>
void merged_cache<E, P, K, V>::sync_lengths(std::uint32_t sequence) {
  if (!within("sync_lengths", sequence)) return;
  if (!refuse_once("sync_lengths", [] { return std::string(); }).ok()) return;
  if constexpr (!immediate) read_numbers(sequence);
}

template <class E, class P, class K, class V> status merged_cache<E, P, K, V>::request_lengths() {
  if (status s = refuse_once("request_lengths", [] { return std::string(); }); !s.ok()) return s;
  if constexpr (!immediate) {
    if (report_.sent()) return {};
    report_.send(executor_, memory_.data(), arrays_.word_bytes);
    mirror_.expect_report();
  }
  return {};
}

template <class E, class P, class K, class V> bool merged_cache<E, P, K, V>::poll_lengths() {
  if constexpr (immediate) {
    return true;
  } else {
    if (!report_.arrived(executor_)) return false;
    arena a(report_.data(), arrays_.word_bytes);
    keep_mirror();
    mirror_.take_report(detail::carve_ledger(a, options_, ledger_.channels, ledger_.table_floats));
    return true;
  }
}

template <class E, class P, class K, class V>
std::string merged_cache<E, P, K, V>::no_stats(char const* call) const {
  if (arrays_.stats != nullptr) return {};
  return refusal(call, "options.stats", "false",
                 "true when the cache is constructed; otherwise nothing is counted");
}

template <class E, class P, class K, class V>
status merged_cache<E, P, K, V>::request_stats(index_list sequences) {
  auto const problem = [&] {
    std::string text = no_stats("request_stats");
    return text.empty() ? check_calls::is_open("request_stats", facts_, sequences) : text;
  };
  if (status s = refuse_once("request_stats", problem); !s.ok()) return s;
  if (!immediate && stats_report_.sent()) return {};
  detail::show_stats_phase const show{
      {ledger_, stage(sequences), nullptr}, arrays_.workspace.stats, arrays_.stats};
  status const s = kvmeld::launch_all(executor_, "request_stats", [&] { launch(show); });
  if (!s.ok()) return s;
  std::size_t const bytes = stats_.size() * sizeof(cache_stats);
  if constexpr (immediate) {
    std::memcpy(stats_.data(), arrays_.stats, bytes);
  } else {
    stats_report_.send(executor_, arrays_.stats, bytes);
  }
  return {};
}

template <class E, class P, class K, class V> bool merged_cache<E, P, K, V>::stats_ready() {
  if constexpr (immediate) {
    return true;
  } else {
    if (!stats_report_.arrived(executor_)) return false;
    std::memcpy(stats_.data(), stats_report_.data(), stats_.size() * sizeof(cache_stats));
    return true;
  }
}

/// What arrived last for a track. What was never asked for arrives as zeros.
template <class E, class P, class K, class V> cache_stats merged_cache<E, P, K, V>::stats_of(track t) const {
  cache_stats const& s = stats_[t.index];
  bool const asked = s.tokens != 0 || s.held != 0 || s.mass_retained_in_all != 0.0f;
  return asked ? s : cache_stats{};
}

template <class E, class P, class K, class V>
cache_stats merged_cache<E, P, K, V>::stats(std::uint32_t layer, std::uint32_t sequence,
                                            std::uint32_t kv_head) const {
  if (!within("stats", sequence, layer, kv_head) || !raise(no_stats("stats")).ok()) return {};
  return stats_of(make_track(options_.extent, layer, sequence, kv_head));
}

template <class E, class P, class K, class V>
stats_sum merged_cache<E, P, K, V>::stats(std::uint32_t sequence) const {
  stats_sum sum;
  if (!within("stats", sequence) || !raise(no_stats("stats")).ok()) return sum;
  for_tracks(sequence, [&](track t) { sum += stats_sum(stats_of(t)); });
  return sum;
}

/// The ledger for the host, in which entries of `sequence` can be read. If launches are not immediate, waits
/// and copies the ledger, or if entries lie in pages the numbers of all sequences and the entries of this
/// one.
template <class E, class P, class K, class V>
detail::readable_ledger merged_cache<E, P, K, V>::readable(std::uint32_t sequence) const {
  bool const gathers = !immediate && ledger_.paged();
  detail::readable_ledger all = detail::read_ledger(executor_, arrays_, memory_.data(), options_,
                                                    gathers ? arrays_.word_bytes : arrays_.ledger_bytes);
  if (!gathers) return all;
  auto const copy = std::make_shared<detail::sequence_ledger<E>>(executor_, ledger_, sequence);
  all.problem = copy->problem("merged_cache");
  if (!all.problem.empty()) return all;
  copy->load();
  detail::show_entries(all.ledger, copy->ledger());
  all.entries = copy;
  return all;
}

// ---- saving -------------------------------------------------------------------------------------

/// What the bytes tell of this cache. Waits if launches are not immediate.
template <class E, class P, class K, class V> saved::terms merged_cache<E, P, K, V>::saved_terms() const {
  kept_facts facts(options_.extent, [&](float const* from, std::size_t n) {
    std::vector<float> to(n);
    executor_.download(to.data(), from, n * sizeof(float));
    return to;
  });
  detail::tell_kept_of(policy_.score, facts);
  return {name_of_policy(policy_),
          facts.text(),
          saved::name_of_rows<keys_used, values_used>(),
          detail::tracks_per_plan(options_.scope, options_.extent),
          options_.bias == bias_support::none,
          options_.bias == bias_support::shared};
}
template <class E, class P, class K, class V>
status merged_cache<E, P, K, V>::save_problem(std::uint32_t sequence) const {
  return refuse_once("save", [&] { return check_calls::is_open("save", facts_, {sequence}); });
}
/// Calls use(ledger, number) with a ledger that the host can read and the number of the sequence in it. Waits
/// if launches are not immediate.
template <class E, class P, class K, class V>
template <class Use>
status merged_cache<E, P, K, V>::read_sequence(std::uint32_t sequence, Use use) const {
  if (status s = save_problem(sequence); !s.ok()) return s;
  detail::sequence_ledger<E> copy(executor_, ledger_, sequence);
  if (std::string text = copy.problem("save"); !text.empty()) return raise(text);
  copy.load();
  return use(copy.ledger(), copy.sequence());
}
template <class E, class P, class K, class V>
std::size_t merged_cache<E, P, K, V>::saved_bytes(std::uint32_t sequence) const {
  std::size_t bytes = 0;
  (void)read_sequence(sequence, [&](ledger_ref const& l, std::uint32_t number) {
    bytes = saved::bytes_of(l, number, saved_terms());
    return status();
  });
  return bytes;
}
template <class E, class P, class K, class V>
status merged_cache<E, P, K, V>::save(std::uint32_t sequence, span<std::byte> out) const {
  return read_sequence(sequence, [&](ledger_ref const& l, std::uint32_t number) {
    return raise(saved::save(l, number, saved_terms(), out));
  });
}
template <class E, class P, class K, class V>
std::vector<std::byte> merged_cache<E, P, K, V>::save(std::uint32_t sequence) const {
  std::vector<std::byte> out;
  (void)read_sequence(sequence, [&](ledger_ref const& l, std::uint32_t number) {
    out = saved::save(l, number, saved_terms());
    return status();
  });
  return out;
}

template <class E, class P, class K, class V>
status merged_cache<E, P, K, V>::resume(std::uint32_t sequence, span<std::byte const> from) {
  saved::terms own{};
  auto const problem = [&] {
    own = saved_terms();
    return saved::problem(facts_, sequence, from, own);
  };
  if (status s = refuse_once("resume", problem); !s.ok()) return s;
  detail::sequence_ledger<E> to(executor_, ledger_, sequence);
  if (std::string text = to.problem("resume"); !text.empty()) return raise(text);
  work_list const work = stage({&sequence, 1});
  auto const launches = [&] {
    if (arrays_.workspace.stats != nullptr) launch(first_stats({ledger_, work, nullptr}));
  };
  if (status s = make_room(executor_, "resume", launches); !s.ok()) return s;
  to.reserve();
  saved::resume(to.ledger(), to.sequence(), from, own);
  to.store();
  keep_mirror();
  if constexpr (!immediate) mirror_.read(to.ledger(), to.sequence(), sequence);
  launches();
  return {};
}

}  // namespace KVMELD_ABI
}  // namespace kvmeld
