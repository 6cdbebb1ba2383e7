// expect SCORE_OTHER_FACTS: kvmeld: the score states no `static constexpr score_facts facts`
// expect SCORE_FLAG: kvmeld: the score states no `static constexpr score_facts facts`
// expect SCORE_STATIC_CHANNELS: kvmeld: the score's `channels\(\)` is not static constexpr, and it has no `max_channels`
// expect SCORE_UPDATE: kvmeld: the score has channels, but no `channel_update update\(channel, window_rows, rows\)`
// expect SCORE_NEXT_WINDOW: kvmeld: the score has channels, but no `std::uint32_t next_window\(window_rows, rows\)`
// expect SCORE_ABSORB: kvmeld: the score has a table, but no `absorb\(team, table, head, queries\)`
// expect SCORE_EVALUATE: kvmeld: the score has no `float importance\(view, i\)`, and no `evaluate\(team, view, out\)`
// expect SCORE_ROWS: kvmeld: the score reads rows, but has no `evaluate\(team, view, rows, out\)`
// expect SCORE_COPY: kvmeld: the score is not trivially copyable
// expect SELECT_OTHER_FACTS: kvmeld: the selector states no `static constexpr select_facts facts`
// expect SELECT_FLAG: kvmeld: the selector states no `static constexpr select_facts facts`
// expect SELECT_PINNED: kvmeld: the selector has no `pins pinned\(length, limit, frozen\)`
// expect SELECT_ASSIGN: kvmeld: the selector has no `role choose\(view, i\)`, and no `assign\(team, view, pins\)`
// expect SELECT_COPY: kvmeld: the selector is not trivially copyable
// expect IDENTIFY_OTHER_FACTS: kvmeld: the identifier states no `static constexpr identify_facts facts`
// expect IDENTIFY_FLAG: kvmeld: the identifier states no `static constexpr identify_facts facts`
// expect IDENTIFY_SCRATCH: kvmeld: the identifier has tiles, but no `std::size_t scratch_bytes\(shape, lanes\)`
// expect IDENTIFY_PROPOSE: kvmeld: the identifier has tiles, but no `propose\(tile\)`
// expect IDENTIFY_ADMIT: kvmeld: the identifier has no `admit\(round\)`
// expect IDENTIFY_READS_LIVE: kvmeld: the identifier states that it does not `reads_live`, but merges or reads rows
// expect IDENTIFY_COPY: kvmeld: the identifier is not trivially copyable
// expect ADMIT_FLAG: kvmeld: the admission states no `static constexpr admit_facts facts`
// expect ADMIT_ALLOW: kvmeld: the admission has no `admission allow\(state, middle, round\)`
// expect ADMIT_COPY: kvmeld: the admission is not trivially copyable
// expect MERGE_OTHER_FACTS: kvmeld: the merge function states no `static constexpr merge_facts facts`
// expect MERGE_FLAG: kvmeld: the merge function states no `static constexpr merge_facts facts`
// expect MERGE_CARRIES_DEGREE: kvmeld: the merge function has no `bool carries_degree\(\)`
// expect MERGE_SCRATCH: kvmeld: the merge function has no `std::size_t scratch_bytes\(shape, lanes\)`
// expect MERGE_WEIGH: kvmeld: the merge function has no `float weight\(set_view, i\)`, and no `weigh\(wave, tile, pivot,
// expect MERGE_PREPARE: kvmeld: the merge function is cooperative, but has no `prepare\(team, key_channels\)`
// expect MERGE_WEIGH_TOGETHER: kvmeld: the merge function is cooperative, but has no `weigh\(team, wave, keys, tile, pivot,
// expect MERGE_WEIGH_SPANS: kvmeld: the merge function spreads, but has no `weigh_spans\(team, wave, tile, sources\)`
// expect MERGE_COPY: kvmeld: the merge function is not trivially copyable
// expect LAYOUT_ELEMENT: kvmeld: the layout has no type `element_type`
// expect LAYOUT_CHANNEL_RUN: kvmeld: the layout has no `static constexpr int channel_run`
// expect LAYOUT_TOKEN_RUN: kvmeld: the layout has no `static constexpr int token_run`
// expect LAYOUT_CHANNELS: kvmeld: the layout has no `std::uint32_t channels\(\)`
// expect LAYOUT_WRITABLE: kvmeld: the layout has no `bool writable\(track, slot\)`
// expect LAYOUT_LOAD_TILE: kvmeld: the layout has no `load_tile\(team, track, first, tokens, channel, channels, out, ld\)`
// expect LAYOUT_ENCODE_ROW: kvmeld: the layout has no `encode_row\(team, track, slot, value\)`
// expect LAYOUT_COPY_ROW: kvmeld: the layout has no `copy_row\(team, track, to, from\)`
// expect LAYOUT_COPY: kvmeld: the layout is not trivially copyable
// expect POLICY: kvmeld: the policy is not a kvmeld::policy of score, selector, identifier and merge function
// Parts of one's own, each with all that its contract asks for, but for one thing. They are used as an engine
// uses them, so that a member that nobody asks for would show as an error from inside the library.
#include <kvmeld/kvmeld.hpp>

#include <cstddef>
#include <cstdint>

// What makes a type not trivially copyable.
struct copied {
  copied() = default;
  copied(copied const&) {}
};

struct my_score {
#if defined(SCORE_FLAG)
  static constexpr kvmeld::score_kind gives = kvmeld::score_kind::none;
#elif defined(SCORE_OTHER_FACTS)
  static constexpr kvmeld::admit_facts facts{};
#elif defined(SCORE_ROWS)
  static constexpr kvmeld::score_facts facts{&kvmeld::score_facts::reads_rows};
#endif
#if defined(SCORE_ABSORB)
  std::size_t table_floats(kvmeld::shape const&) const { return 1; }
#endif
#if defined(SCORE_STATIC_CHANNELS)
  kvmeld::channel_list channels() const { return {}; }
#else
  static constexpr kvmeld::channel_list channels() { return {}; }
#endif
#if !defined(SCORE_UPDATE)
  kvmeld::channel_update update(std::uint32_t, std::uint32_t, std::uint32_t) const { return {-1, 0}; }
#endif
#if !defined(SCORE_NEXT_WINDOW)
  std::uint32_t next_window(std::uint32_t, std::uint32_t) const { return 0; }
#endif
#if !defined(SCORE_EVALUATE)
  template <class Team> void evaluate(Team const&, kvmeld::score_view const&, float*) const {}
#endif
#if defined(SCORE_COPY)
  copied member;
#endif
};

struct my_selector {
#if defined(SELECT_FLAG)
  static constexpr bool needs_score = false;
#elif defined(SELECT_OTHER_FACTS)
  static constexpr kvmeld::merge_facts facts{};
#endif
#if !defined(SELECT_PINNED)
  kvmeld::pins pinned(std::uint32_t, std::uint32_t, std::uint32_t) const { return {}; }
#endif
#if !defined(SELECT_ASSIGN)
  template <class Team> void assign(Team const&, kvmeld::select_view const&, kvmeld::pins const&) const {}
#endif
#if defined(SELECT_COPY)
  copied member;
#endif
};

struct my_admission {
#if defined(ADMIT_FLAG)
  static constexpr bool repeats = false;
#endif
#if !defined(ADMIT_ALLOW)
  kvmeld::admission allow(kvmeld::track_state const&, std::uint32_t, std::uint32_t) const { return {}; }
#endif
#if defined(ADMIT_COPY)
  copied member;
#endif
};

struct my_identifier {
#if defined(IDENTIFY_FLAG)
  static constexpr bool needs_score = false;
#elif defined(IDENTIFY_OTHER_FACTS)
  static constexpr kvmeld::admit_facts facts{};
#elif defined(IDENTIFY_READS_LIVE)
  static constexpr kvmeld::identify_facts facts =
      kvmeld::changed_facts(kvmeld::identify_facts{}, &kvmeld::identify_facts::reads_live, false);
#else
  static constexpr kvmeld::identify_facts facts{&kvmeld::identify_facts::needs_keys};
#endif
  std::uint32_t tiles(kvmeld::shape const&) const { return 0; }
#if !defined(IDENTIFY_SCRATCH)
  std::size_t scratch_bytes(kvmeld::shape const&, int) const { return 0; }
#endif
#if !defined(IDENTIFY_PROPOSE)
  template <class Tile> void propose(Tile const&) const {}
#endif
#if !defined(IDENTIFY_ADMIT)
  template <class Round> void admit(Round&) const {}
#endif
#if defined(IDENTIFY_COPY)
  copied member;
#endif
};

struct my_merge {
#if defined(MERGE_FLAG)
  static constexpr bool needs_score = false;
#elif defined(MERGE_OTHER_FACTS)
  static constexpr kvmeld::admission facts{};
#elif defined(MERGE_PREPARE) || defined(MERGE_WEIGH_TOGETHER)
  static constexpr kvmeld::merge_facts facts{&kvmeld::merge_facts::cooperative};
#elif defined(MERGE_WEIGH_SPANS)
  static constexpr kvmeld::merge_facts facts{&kvmeld::merge_facts::spreads};
#endif
#if !defined(MERGE_CARRIES_DEGREE)
  bool carries_degree() const { return true; }
#endif
#if !defined(MERGE_SCRATCH)
  std::size_t scratch_bytes(kvmeld::shape const&, int) const { return 0; }
#endif
#if defined(MERGE_WEIGH_TOGETHER)
  template <class Team> int prepare(Team const&, std::uint32_t) const { return 0; }
#endif
#if !defined(MERGE_WEIGH)
  void weigh(kvmeld::wave_ref const&, kvmeld::tile const&, kvmeld::slot_t, kvmeld::member_list const&) const {
  }
#endif
#if defined(MERGE_COPY)
  copied member;
#endif
};

// A layout for one float per row: whatever is asked, it is there.
struct my_layout {
#if !defined(LAYOUT_ELEMENT)
  using element_type = float;
#endif
#if !defined(LAYOUT_CHANNEL_RUN)
  static constexpr int channel_run = 0;
#endif
#if !defined(LAYOUT_TOKEN_RUN)
  static constexpr int token_run = 1;
#endif
#if !defined(LAYOUT_CHANNELS)
  std::uint32_t channels() const { return 1; }
#endif
#if !defined(LAYOUT_WRITABLE)
  bool writable(kvmeld::track, kvmeld::slot_t) const { return true; }
#endif
#if !defined(LAYOUT_LOAD_TILE)
  template <class Team>
  void load_tile(Team const&, kvmeld::track, kvmeld::slot_t, std::uint32_t, std::uint32_t, std::uint32_t,
                 float*, std::uint32_t) const {}
#endif
#if !defined(LAYOUT_ENCODE_ROW)
  template <class Team, class F> void encode_row(Team const&, kvmeld::track, kvmeld::slot_t, F) const {}
#endif
#if !defined(LAYOUT_COPY_ROW)
  template <class Team> void copy_row(Team const&, kvmeld::track, kvmeld::slot_t, kvmeld::slot_t) const {}
#endif
#if defined(LAYOUT_COPY)
  copied member;
#endif
};

#if defined(ADMIT_FLAG) || defined(ADMIT_ALLOW) || defined(ADMIT_COPY)
using identifier = kvmeld::identify::chunked_bipartite<my_admission>;
#else
using identifier = my_identifier;
#endif
#if defined(POLICY)
using composition = my_score;
#else
using composition = kvmeld::policy<my_score, my_selector, identifier, my_merge>;
#endif

#if defined(KVMELD_CONTROL)  // nothing is left out: an admission of one's own serves as well
template class kvmeld::policy<my_score, my_selector, kvmeld::identify::chunked_bipartite<my_admission>,
                              my_merge>;
#endif

std::uint32_t use(kvmeld::kv<my_layout, kvmeld::strided<float>> x) {
  kvmeld::merged_cache cache{kvmeld::host_executor(1), composition{}, x, kvmeld::cache_options{}};
  cache.open(0, 10);
  cache.observe_rows(kvmeld::query_batch(0, 0, 1), kvmeld::head_rows<float const>{});
  cache.compress({0}, kvmeld::budget::ratio(0.5));
  cache.plan({0}, kvmeld::budget::ratio(0.5));
  cache.apply();
  return cache.length(0, 0, 0);
}
