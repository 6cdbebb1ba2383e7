// SPDX-License-Identifier: Apache-2.0
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
  std::uint32_t const capacity = options_.extent.capacity;
  for (std::size_t i = 0; i < sequences.size(); ++i) {
    if (counts[i] > capacity) {
      return refusal("append", message("counts[", i, "]"), counts[i], "at most ", capacity, ", the capacity");
    }
    if (longest(sequences[i]) > capacity - counts[i]) no_room.push_back(sequences[i]);
  }
  if (no_room.empty()) return {};
  text = compress_problem("compress", {no_room.data(), no_room.size()}, full.shrink_to);
  if (!text.empty()) return text;
  detail::forecast<policy_type> const ahead = foresee(full.shrink_to, full.fallback);
  for (std::size_t i = 0; i < sequences.size(); ++i) {
    text =
        check_calls::tokens_fit("append", message("counts[", i, "]"), counts[i], facts_.tokens(sequences[i]));
    if (!text.empty()) return text;
    std::uint32_t const left = longest(sequences[i]) > capacity - counts[i]
                                   ? ahead.longest(sequences[i], lengths_known(sequences[i]))
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
  if (!tokens_known(sequence)) {
    return raise(refusal("truncate", message("number of tokens of sequence ", sequence), "unknown",
                         "known, because a device_list was committed (call sync_lengths before recording)"));
  }
  if constexpr (!immediate) {
    bool const there = valid().ok() && sequence < options_.extent.sequences;
    if (there && sequences::truncate::reads_positions(facts_, sequence, tokens))
      return truncate_gaps(sequence, tokens);
  }
  return operate(sequences::truncate{}, {sequence}, {tokens});
}

/// Truncates where positions may lie empty among those that go: the host reads the ledger and counts what
/// stays.
template <class E, class P, class K, class V>
status merged_cache<E, P, K, V>::truncate_gaps(std::uint32_t sequence, std::uint32_t tokens) {
  sequences::truncate const operation{};
  std::vector<std::uint32_t> kept;
  auto const problem = [&] {
    detail::readable_ledger const now = readable(sequence);
    if (!now.problem.empty()) return now.problem;
    std::string text = operation.problem(now.ledger, {sequence}, {tokens});
    if (!text.empty()) return text;
    for_tracks(sequence, [&](track t) { kept.push_back(operation.kept(now.ledger, t, tokens)); });
    return text;
  };
  if (status s = refuse_once("truncate", problem); !s.ok()) return s;
  status const s = carry_out(operation, {sequence}, {tokens}, [](detail::sequence_phase const&) {});
  if (!s.ok()) return s;
  std::size_t i = 0;
  for_tracks(sequence, [&](track t) { mirror_.lower(t, kept[i++]); });
  mirror_.mark_inexact(sequence);
  mirror_.set_known(sequence, true);
  return {};
}

/// The one way of calls that remove entries of a sequence besides a compression (sequences/removal.hpp).
template <class E, class P, class K, class V>
template <class Removal>
status merged_cache<E, P, K, V>::remove_entries(Removal const& removal, std::uint32_t sequence) {
  know_tokens(sequence);
  char const* const call = Removal::name;
  sequences::removed_entries removed{};
  auto const problem = [&] {
    std::string text = removal.problem(facts_, sequence);
    if (!text.empty()) return text;
    removed = removal.removed(facts_, sequence);
    if (removed.all && removed.sure == 0) return text;
    text = check_calls::first_track_problem(facts_, sequence, [&](track t) {
      return check_calls::padding_problem(call, facts_, t, seen_tensors());
    });
    if (!text.empty() || (writes_all && facts_.frozen[sequence] == 0)) return text;
    if (!immediate && facts_.frozen[sequence] == 0) return text;
    detail::readable_ledger const now = readable(sequence);
    if (!now.problem.empty()) return now.problem;
    return sequences::entries_problem(removal, now.ledger, sequence, [&](track t) {
      return check_calls::shielded_length(now.ledger, t, seen_tensors());
    });
  };
  if (status s = refuse_once(call, problem); !s.ok()) return s;
  if (removed.all && removed.sure == 0) return {};
  std::uint32_t const sure = writes_all ? removed.sure : 0;  // else what may not be written stays
  index_list const list{&sequence, 1};
  bounds_.assign(1, 0);
  if (!immediate && options_.padded) {
    for_tracks(sequence, [&](track t) {
      std::uint32_t const held = facts_.held(t);
      bounds_[0] = max_of(bounds_[0], held - min_of(held, sure));
    });
  }
  work_list const work = stage(list);
  detail::sequence_phase const padding{ledger_, work,
                                       options_.padded ? executor_.stage(bounds()).data() : nullptr};
  fate_options const how{fates_of::call, arrays_.workspace.zero_emptied, removed.gap_end};
  auto const mark = [&](detail::launcher<E> const& launch) {
    launch(sequences::mark_removed_phase<Removal>{{launch.wave}, removal});
  };
  keep_mirror();
  status const s = kvmeld::launch_all(executor_, call, [&] {
    work_list const tracks = plan_work(work.sequences, work.sequence_count);
    detail::for_each_wave(arrays_.workspace, ledger_, tracks, 1, [&](wave_ref const& wave) {
      apply_fates(detail::launcher<E>{executor_, wave}, tensors_, mark, how);
    });
    if (options_.padded) pad(padding, list);
  });
  if (!s.ok()) return s;
  planned_.clear();  // its memory was used
  if constexpr (!immediate) {
    if (options_.padded) mirror_.drop_padding(sequence);
    mirror_.dropped(sequence, sure, writes_all && removed.all, removed.gap_end);
    if (options_.padded) {
      mirror_.compressed(sequence);  // the last slots of a track may be empty from now on
      mirror_.pad(sequence, writes_all && mirror_.known(sequence));
    }
  }
  return {};
}

template <class E, class P, class K, class V>
status merged_cache<E, P, K, V>::drop_positions(std::uint32_t sequence, position_t first, position_t last) {
  return remove_entries(sequences::drop_positions{first, last}, sequence);
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
    track_source const source{options_.extent, all.work};
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
  sequences::shift<keys_used> operation{tensors_.keys, rope, offset, first};
  auto const problem = [&] {
    std::string text = operation.template problem<values_used>(facts_, sequence, immediate);
    if (!text.empty()) return text;
    detail::readable_ledger const now = readable(sequence);
    if (!now.problem.empty()) return now.problem;
    operation.count(now.ledger, sequence);
    return operation.entries_problem(now.ledger, sequence, seen_tensors().keys);
  };
  if (status s = refuse_once("shift", problem); !s.ok()) return s;
  if (offset == 0) return {};
  return change_positions(operation, sequence);
}

template <class E, class P, class K, class V>
status merged_cache<E, P, K, V>::renumber(std::uint32_t sequence, rope_params const& rope) {
  know_tokens(sequence);
  sequences::renumber<keys_used> operation{tensors_.keys, rope, 0};
  auto const problem = [&] {
    std::string text = operation.template problem<values_used>(facts_, sequence, immediate);
    if (!text.empty()) return text;
    detail::readable_ledger const now = readable(sequence);
    if (!now.problem.empty()) return now.problem;
    operation.count(now.ledger, sequence);
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
           {options_.extent, all.work});
  });
}

template <class E, class P, class K, class V>
template <class T>
status merged_cache<E, P, K, V>::exchange_scores(char const* call, index_list sequences, T* rows,
                                                 std::uint32_t columns) {
  auto const problem = [&] { return sequences::exchange_problem(call, facts_, sequences, rows, columns); };
  if (status s = refuse(problem); !s.ok()) return s;
  if (ledger_.channels.count == 0) return {};
  detail::sequence_phase const all{ledger_, stage(sequences), nullptr};
  return kvmeld::launch_all(executor_, call, [&] {
    launch(sequences::exchange_scores_phase<T>{all, rows, columns});
  });
}

template <class E, class P, class K, class V>
std::vector<span<std::byte>> merged_cache<E, P, K, V>::page_pieces(std::uint32_t page) const {
  std::vector<span<std::byte>> pieces;
  auto const problem = [&] {
    return sequences::page_problem("page_pieces", "page", page, options_.ledger_pages.count);
  };
  if (!refuse(problem).ok()) return pieces;
  detail::for_each_field_as_bytes(ledger_, [&](detail::field const& f) {
    if (f.what != detail::field_of::entry) return;
    std::size_t const bytes = static_cast<std::size_t>(ledger_.pages.page_stride) * f.bytes;
    pieces.push_back({f.data + page * bytes, bytes});
  });
  return pieces;
}

template <class E, class P, class K, class V>
status merged_cache<E, P, K, V>::copy_page(std::uint32_t from, std::uint32_t into) {
  auto const problem = [&] {
    std::uint32_t const count = options_.ledger_pages.count;
    std::string text = sequences::page_problem("copy_page", "from", from, count);
    return text.empty() ? sequences::page_problem("copy_page", "into", into, count) : text;
  };
  if (status s = refuse_once("copy_page", problem); !s.ok() || from == into) return s;
  sequences::copy_page_phase const phase{ledger_, from, into};
  return kvmeld::launch_all(executor_, "copy_page", [&] { executor_.run(phase, options_.extent, 1, phase); });
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
    if (options_.padded) mirror_.pad(sequence, false);
  }
  return {};
}

}  // namespace KVMELD_ABI
}  // namespace kvmeld
