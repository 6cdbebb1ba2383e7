// A plan as text: written from a cache, read back, loaded into the same state for the same bits.
#pragma once

#include <kvmeld/core/bits.hpp>
#include <kvmeld/core/budget.hpp>
#include <kvmeld/core/config.hpp>
#include <kvmeld/core/error.hpp>
#include <kvmeld/core/ledger.hpp>
#include <kvmeld/core/plan.hpp>
#include <kvmeld/core/types.hpp>
#include <kvmeld/core/wave.hpp>
#include <kvmeld/testing/check_plan.hpp>

#include <cstddef>
#include <cstdint>
#include <ostream>
#include <string>
#include <type_traits>
#include <vector>

namespace kvmeld {
inline namespace KVMELD_ABI {
namespace testing {

/// Version of the text that dump_plan writes. Readers refuse others.
constexpr std::uint32_t plan_text_version = 1;

/// What becomes of one entry, or of `count` entries in a row that just stay. Weights are bits of floats.
struct saved_entry {
  slot_t slot;                                            ///< first slot of the run
  std::uint32_t count;                                    ///< entries of the run
  fate what;                                              ///< of all of them
  slot_t target, span;                                    ///< as plan_ref has them
  std::uint32_t key_weight, value_weight, degree_weight;  ///< bits of the floats
};

/// The plan of one track.
struct saved_track {
  std::uint32_t layer, sequence, kv_head;  ///< which track
  std::uint32_t length;                    ///< entries the plan was made for
  std::uint32_t kept;                      ///< entries it leaves
  std::uint32_t rounds;                    ///< what planning noted for the round counter
  std::uint32_t threshold;                 ///< and for the next adaptive threshold
  std::uint32_t findings;                  ///< bits of `finding` that planning left
  std::uint32_t members;                   ///< members the plan was made for
  std::vector<std::uint32_t> forgotten;    ///< those of them that go, ascending
  std::vector<saved_entry> entries;        ///< runs of entries
};

/// The plan of some sequences of a cache; tracks in the order (layer, listed sequence, head).
struct saved_plan {
  std::uint32_t layers = 0, kv_heads = 0;  ///< extents that the plan was made for
  std::vector<std::uint32_t> sequences;    ///< listed sequences
  std::vector<saved_track> tracks;         ///< one per track of the listed sequences
};

/// What one entry of a plan says; `count` 1.
inline saved_entry saved_entry_of(plan_ref const& p, std::uint32_t item, slot_t s) {
  std::size_t const i = p.at(item, s);
  return {s,
          1,
          p.what[i],
          p.target[i],
          p.span[i],
          float_bits(p.key_weight[i]),
          float_bits(p.value_weight[i]),
          float_bits(p.degree_weight[i])};
}

/// Whether an entry just stays where it is.
inline bool stays(saved_entry const& e) {
  std::uint32_t const one = float_bits(1.0f);
  return e.what == fate::keep && e.target == e.slot && e.span == 0 && e.key_weight == one &&
         e.value_weight == one && e.degree_weight == one;
}

/// Eight digits at most, whatever a stream's flags and locale say.
inline std::string hex_digits(std::uint32_t x) {
  std::string out;
  do {
    out.insert(out.begin(), "0123456789abcdef"[x % 16]);
    x /= 16;
  } while (x != 0);
  return out;
}

/// One line of words with a space between them.
template <class... Words> std::string words(Words const&... w) {
  auto const text = [](auto const& x) {
    if constexpr (std::is_arithmetic_v<std::decay_t<decltype(x)>>)
      return std::to_string(x);
    else
      return std::string(x);
  };
  std::string line;
  ((line += (line.empty() ? "" : " ") + text(w)), ...);
  return line + "\n";
}

/// Writes a plan of the sequences in `work`, edited or not, in lines of text:
///   kvmeld-plan 1                                        version
///   layers 2 heads 4 sequences 0 3                       the listed sequences follow
///   track 0 0 1 length 50 kept 30 rounds 1 threshold 0 findings 0 members 9
///                                                        layer, sequence, head; for every track, in order
///   forget 2 5                                           members that go, if any do
///   stay 0 16                                            16 entries from slot 0 on stay as they are
///   entry 16 merge 18 0 3f000000 3f000000 3f800000       slot, fate, target, span; key, value, degree weight: float bits
///   end
/// Exact and independent of the locale. Host only.
inline void dump_plan(ledger_ref const& l, plan_ref const& p, work_list work, std::ostream& out) {
  out << words("kvmeld-plan", plan_text_version);
  std::string listed;
  for (std::uint32_t i = 0; i < work.sequence_count; ++i) listed += " " + std::to_string(work.sequences[i]);
  out << words("layers", l.extent.layers, "heads", l.extent.kv_heads, "sequences" + listed);
  for (std::uint32_t item = 0; work.sequence_count != 0 && item < work.tracks(l.extent); ++item) {
    track const t = work.at(l.extent, item);
    std::uint32_t const n = p.old_length[item];
    std::uint32_t kept = 0;
    for (slot_t s = 0; s < n; ++s) kept += p.what[p.at(item, s)] == fate::keep ? 1u : 0u;
    std::uint32_t const members = l.members.capacity == 0 ? 0 : l.members.count[t.index];
    out << words("track", t.layer, t.sequence, t.kv_head, "length", n, "kept", kept, "rounds",
                 l.word(t, track_word::last_rounds), "threshold", l.word(t, track_word::next_threshold),
                 "findings", l.findings[t.index], "members", members);
    std::string forgotten;
    for (std::uint32_t m = 0; m < members; ++m) {
      if (!p.keeps_member(item, m)) forgotten += " " + std::to_string(m);
    }
    if (!forgotten.empty()) out << words("forget" + forgotten);
    for (slot_t s = 0; s < n;) {
      std::uint32_t run = 0;
      while (s + run < n && stays(saved_entry_of(p, item, s + run))) ++run;
      if (run != 0) out << words("stay", s, run);
      s += run;
      if (s == n) break;
      saved_entry const e = saved_entry_of(p, item, s++);
      out << words("entry", e.slot, fate_name(e.what), e.target, e.span, hex_digits(e.key_weight),
                   hex_digits(e.value_weight), hex_digits(e.degree_weight));
    }
  }
  out << "end\n";
}

/// The plan that a cache made last; without one the frame alone.
template <class Cache> void dump_plan(Cache const& cache, std::ostream& out) {
  dump_plan(cache.ledger(), cache.current_plan(), cache.planned_work(), out);
}

/// Runs a call that may refuse; the refusal's text, or nothing.
template <class Call> std::string refusal_of(Call call) {
#if KVMELD_EXCEPTIONS
  try {
    return call().text();
  } catch (invalid_argument const& e) {
    return e.what();
  }
#else
  return call().text();
#endif
}

/// Makes a saved plan the cache's current one, for `apply`: on a cache in the state that the plan was made in, the outcome
/// has the same bits. Needs limits.whole_plan. Returns why it does not fit, or nothing; then the cache's plan keeps
/// everything.
template <class Cache> std::string load_plan(saved_plan const& saved, Cache& cache) {
  ledger_ref const& l = cache.ledger();
  if (saved.layers != l.extent.layers || saved.kv_heads != l.extent.kv_heads) {
    return refusal("load_plan", "shape of the plan",
                   message(saved.layers, " layers of ", saved.kv_heads, " heads"), l.extent.layers,
                   " layers of ", l.extent.kv_heads, " heads, as the cache has");
  }
  // A budget that nothing exceeds: a plan that keeps everything, in the right order.
  std::string problem =
      refusal_of([&] { return cache.plan(saved.sequences, budget::entries(l.extent.capacity)); });
  if (!problem.empty()) return refusal_within("load_plan", problem);
  plan_ref const& p = cache.current_plan();
  std::uint32_t const items = cache.planned_work().tracks(l.extent);
  if (saved.tracks.size() != items) {
    return refusal("load_plan", "number of tracks", saved.tracks.size(), items);
  }
  for (std::uint32_t item = 0; item < items; ++item) {
    track const t = cache.planned_work().at(l.extent, item);
    if (saved.tracks[item].length != l.length[t.index]) {
      return refusal("load_plan", message("number of entries of ", check_calls::track_name(t)),
                     saved.tracks[item].length, l.length[t.index], ", as the track holds");
    }
    std::uint32_t const members = l.members.capacity == 0 ? 0 : l.members.count[t.index];
    if (saved.tracks[item].members != members) {
      return refusal("load_plan", message("number of members of ", check_calls::track_name(t)),
                     saved.tracks[item].members, members, ", as the track holds");
    }
  }
  for (std::uint32_t item = 0; item < items; ++item) {
    for (std::uint32_t m : saved.tracks[item].forgotten) {
      if (m < saved.tracks[item].members) p.member_kept[std::size_t{item} * p.member_stride + m] = 0;
    }
    for (saved_entry const& e : saved.tracks[item].entries) {
      if (e.count != 1 || stays(e) || e.slot >= p.old_length[item]) continue;
      std::size_t const i = p.at(item, e.slot);
      p.what[i] = e.what;
      p.target[i] = e.target;
      p.span[i] = e.span;
      p.key_weight[i] = bits_float(e.key_weight);
      p.value_weight[i] = bits_float(e.value_weight);
      p.degree_weight[i] = bits_float(e.degree_weight);
    }
  }
  problem = plan_problem(cache);
  for (std::uint32_t item = 0; item < items; ++item) {
    track const t = cache.planned_work().at(l.extent, item);
    std::uint32_t kept = 0;
    for (slot_t s = 0; s < p.old_length[item]; ++s) {
      if (!problem.empty()) keep_entry(p, item, s);
      if (p.what[p.at(item, s)] == fate::keep) p.new_slot[p.at(item, s)] = kept++;
    }
    p.new_length[item] = kept;
    for (std::uint32_t m = 0; !problem.empty() && m < saved.tracks[item].members; ++m) {
      p.member_kept[std::size_t{item} * p.member_stride + m] = 1;
    }
    if (!problem.empty()) continue;
    l.word(t, track_word::next_threshold) = saved.tracks[item].threshold;
    l.word(t, track_word::last_rounds) = saved.tracks[item].rounds;
    l.findings[t.index] = saved.tracks[item].findings;
  }
  return problem.empty() ? problem : "load_plan: " + problem;
}

}  // namespace testing
}  // namespace KVMELD_ABI
}  // namespace kvmeld
