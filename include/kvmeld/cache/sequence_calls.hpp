// The calls of merged_cache on sequences. Included by merged_cache.hpp alone.
#pragma once

#include <kvmeld/cache/merged_cache.hpp>

namespace kvmeld {
inline namespace KVMELD_ABI {

template <class E, class P, class K, class V>
status merged_cache<E, P, K, V>::append(index_list sequences, index_list counts, when_full const& full) {
  std::vector<std::uint32_t> no_room;
  auto const problem = [&] { return full_problem(sequences, counts, full, no_room); };
  if (status s = refuse_once("append", problem); !s.ok()) return s;
  if (!no_room.empty()) {
    index_list const list{no_room.data(), no_room.size()};
    if (status s = compress(list, full.shrink_to, full.fallback); !s.ok()) return s;
  }
  return append(sequences, counts);
}

/// Why append cannot make room; fills `no_room` with the sequences that have none.
template <class E, class P, class K, class V>
std::string merged_cache<E, P, K, V>::full_problem(index_list sequences, index_list counts,
                                                   when_full const& full,
                                                   std::vector<std::uint32_t>& no_room) const {
  std::string text = check_calls::one_count_each("append", sequences, counts);
  if (text.empty()) text = check_calls::is_open("append", facts_, sequences);
  if (!text.empty()) return text;
  std::uint32_t const capacity = sizes_.extent.capacity;
  for (std::size_t i = 0; i < sequences.size(); ++i) {
    if (counts[i] > capacity) {
      return refusal("append", message("counts[", i, "]"), counts[i], "at most ", capacity, ", the capacity");
    }
    if (longest(sequences[i]) > capacity - counts[i]) no_room.push_back(sequences[i]);
  }
  if (no_room.empty()) return {};
  text = compress_problem("compress", {no_room.data(), no_room.size()}, full.shrink_to, full.fallback);
  if (!text.empty()) return text;
  for (std::size_t i = 0; i < sequences.size(); ++i) {
    text =
        check_calls::tokens_fit("append", message("counts[", i, "]"), counts[i], facts_.tokens(sequences[i]));
    if (!text.empty()) return text;
    std::uint32_t const left = longest(sequences[i]) > capacity - counts[i]
                                   ? length_after(sequences[i], full.shrink_to, full.fallback)
                                   : 0;
    if (left <= capacity - counts[i]) continue;
    return refusal("append",
                   message("what full.shrink_to and full.fallback leave of sequence ", sequences[i]), left,
                   "at most ", capacity - counts[i], " entries, so that counts[", i, "] = ", counts[i],
                   " fit into the capacity of ", capacity);
  }
  return {};
}

template <class E, class P, class K, class V>
status merged_cache<E, P, K, V>::commit(index_list sequences, device_list accepted) {
  auto const problem = [&] {
    std::string text = check_calls::is_open("commit", facts_, sequences);
    if (!text.empty() || accepted.data != nullptr) return text;
    return refusal("commit", "accepted.data", "null", "an array with one number for each sequence");
  };
  if (status s = refuse(problem); !s.ok()) return s;
  if constexpr (immediate) {
    return commit(sequences, index_list(accepted.data, sequences.size()));
  } else {
    auto const nothing = [](detail::sequence_phase const&) {};
    return carry_out(sequences::commit{}, sequences, all_pending(sequences), nothing, accepted.data);
  }
}

/// What the host takes for the accepted entries where it cannot know them.
template <class E, class P, class K, class V>
index_list merged_cache<E, P, K, V>::all_pending(index_list sequences) {
  counts_.clear();
  for (std::uint32_t sequence : sequences) counts_.push_back(facts_.pending[sequence]);
  return {counts_.data(), counts_.size()};
}

template <class E, class P, class K, class V>
status merged_cache<E, P, K, V>::append(index_list sequences, index_list counts, in_kernel_t) {
  sequences::append const operation{};
  if (status s = refuse([&] { return operation.problem(facts_, sequences, counts); }); !s.ok()) return s;
  keep_mirror();
  note_done(operation, sequences, counts, false);
  if (!immediate) forget_plan_of(sequences);
  return {};
}

template <class E, class P, class K, class V>
status merged_cache<E, P, K, V>::commit(index_list sequences, in_kernel_t) {
  if (status s = refuse([&] { return check_calls::is_open("commit", facts_, sequences); }); !s.ok()) return s;
  keep_mirror();
  note_done(sequences::commit{}, sequences, all_pending(sequences), true);
  return {};
}

template <class E, class P, class K, class V>
status merged_cache<E, P, K, V>::truncate(std::uint32_t sequence, std::uint32_t tokens) {
  know_tokens(sequence);
  if (tokens_known(sequence)) return operate(sequences::truncate{}, {sequence}, {tokens});
  return raise(refusal("truncate", message("number of tokens of sequence ", sequence), "unknown",
                       "known, because a device_list was committed (call sync_lengths before recording)"));
}

template <class E, class P, class K, class V>
status merged_cache<E, P, K, V>::fork(std::uint32_t from, std::uint32_t into, std::uint32_t frozen,
                                      sequence_id id, fork_rows how) {
  sequences::fork const operation{from, frozen, static_cast<std::uint32_t>(id)};
  if (frozen != 0) know_lengths(from);
  auto const problem = [&] { return operation.problem(facts_, into, how, seen_tensors()); };
  if (status s = refuse_once("fork", problem); !s.ok()) return s;
  status const s = carry_out(operation, {into}, {}, [&](detail::sequence_phase const& all) {
    if (how == fork_rows::shared) return;
    track_source const source{sizes_.extent, all.work};
    launch(sequences::copy_rows_phase<keys_used>{tensors_.keys, ledger_, from, frozen}, source);
    launch(sequences::copy_rows_phase<values_used>{tensors_.values, ledger_, from, frozen}, source);
  });
  if (!s.ok()) return s;
  forget_plan_of({from});
  if constexpr (!immediate) mirror_.know_alike(into, from);
  return {};
}

template <class E, class P, class K, class V>
status merged_cache<E, P, K, V>::shift(std::uint32_t sequence, position_t offset, rope_params const& rope,
                                       position_t first) {
  know_tokens(sequence);
  sequences::shift<keys_used> const operation{tensors_.keys, rope, offset, first};
  auto const problem = [&] {
    std::string text = operation.template problem<values_used>(facts_, sequence, immediate);
    if (!text.empty()) return text;
    return operation.entries_problem(readable().ledger, sequence, seen_tensors().keys);
  };
  if (status s = refuse_once("shift", problem); !s.ok()) return s;
  return change_positions(operation, sequence);
}

template <class E, class P, class K, class V>
status merged_cache<E, P, K, V>::renumber(std::uint32_t sequence, rope_params const& rope) {
  know_tokens(sequence);
  sequences::renumber<keys_used> operation{tensors_.keys, rope, 0};
  auto const problem = [&] {
    std::string text = operation.template problem<values_used>(facts_, sequence, immediate);
    if (!text.empty()) return text;
    detail::readable_ledger const now = readable();
    for_tracks(sequence,
               [&](track t) { operation.longest = max_of(operation.longest, now.ledger.length[t.index]); });
    return operation.entries_problem(now.ledger, sequence, seen_tensors().keys);
  };
  if (status s = refuse_once("renumber", problem); !s.ok()) return s;
  return change_positions(operation, sequence);
}

template <class E, class P, class K, class V>
template <class Operation>
status merged_cache<E, P, K, V>::change_positions(Operation const& operation, std::uint32_t sequence) {
  return carry_out(operation, {sequence}, {}, [&](detail::sequence_phase const& all) {
    if (!operation.rope.active()) return;
    auto const step = operation.step();
    launch(sequences::turn_keys_phase<keys_used, std::decay_t<decltype(step)>>{tensors_.keys, ledger_,
                                                                               operation.rope, step},
           {sizes_.extent, all.work});
  });
}

template <class E, class P, class K, class V>
template <class Entry, class Index>
status merged_cache<E, P, K, V>::export_page_metadata(index_list sequences,
                                                      page_metadata<Entry, Index> const& notes) {
  auto const problem = [&] { return sequences::export_problem(facts_, sequences, notes); };
  if (status s = refuse(problem); !s.ok()) return s;
  bounds_.clear();
  for (std::uint32_t sequence : sequences) bounds_.push_back(longest(sequence));
  detail::sequence_phase const all{ledger_, stage(sequences), executor_.stage(bounds()).data()};
  return kvmeld::launch_all(executor_, "export_page_metadata", [&] {
    launch(sequences::export_phase<page_metadata<Entry, Index>>{all, notes});
  });
}

template <class E, class P, class K, class V>
template <class Notes>
status merged_cache<E, P, K, V>::adopt(std::uint32_t sequence, std::uint32_t entries, std::uint32_t tokens,
                                       Notes const& notes, sequence_id id) {
  sequences::adopt<Notes> const operation{notes, tokens};
  auto const problem = [&] { return operation.problem(facts_, {sequence}, {entries}); };
  if (status s = refuse_once("adopt", problem); !s.ok()) return s;
  sequences::open const begin{0, static_cast<std::uint32_t>(id)};
  status const s = carry_out(operation, {sequence}, {entries}, [&](detail::sequence_phase const& all) {
    sequences::launch_operation([&](auto const& phase) { launch(phase); }, begin, all);
  });
  if (!s.ok()) return s;
  if constexpr (!immediate) {
    mirror_.apply(begin, sequence, entries);
    mirror_.apply(operation, sequence, entries);
    mirror_.set_known(sequence, false);
    if (sizes_.padded) mirror_.pad(sequence, false);
  }
  return {};
}

}  // namespace KVMELD_ABI
}  // namespace kvmeld
