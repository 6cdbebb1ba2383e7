// Plans as text: what is read is what was written, replay gives the same bits, and what is garbled is refused.
#include <kvmeld/kvmeld.hpp>
#include <kvmeld/testing.hpp>

#include <cstddef>
#include <cstdint>
#include <locale>
#include <sstream>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "apply/hand_made.hpp"
#include "support/cache_bytes.hpp"
#include "support/random_cache.hpp"

namespace plan_text_cases {

using kvmeld::testing::dump_plan;
using kvmeld::testing::load_plan;
using kvmeld::testing::read_plan;
using kvmeld::testing::saved_plan;

namespace {

// Two copies of one state: a plan is applied in one, replayed in the other.
template <class T, class Policy> struct pair {
  support::engine_memory<T> first, second;
  decltype(support::make_cache(std::declval<support::engine_memory<T>&>(), std::declval<Policy const&>())) a,
      b;

  pair(support::dice& d, kvmeld::shape const& s, Policy const& policy, std::uint32_t members = 0)
      : first(filled(d, s)),
        second(first),
        a(support::make_cache(first, policy, support::with_plan(members))),
        b(a.clone(second.tensors())) {
    for (std::uint32_t q = 0; q < s.sequences; ++q) a.open(q, s.capacity - q, q == 0 ? 2 : 0);
    for (std::size_t i = 0; i < s.tracks(); ++i)
      a.ledger().track_words[i * kvmeld::track_word::count + kvmeld::track_word::observed_rows] = 1;
    for (std::uint32_t c = 0; c < a.ledger().channels.count; ++c)
      for (std::size_t i = 0; i < s.slots(); ++i)
        a.ledger().channel_data[c][i] = static_cast<float>(d.uniform());
    b = a.clone(second.tensors());
  }
  static support::engine_memory<T> filled(support::dice& d, kvmeld::shape const& s) {
    support::engine_memory<T> m(s);
    for (std::uint32_t q = 0; q < s.sequences; ++q)
      m.fill_sequence(d, q, 0, s.capacity, support::texture::walk);
    return m;
  }
  bool same() const { return first == second && support::ledger_bytes(a) == support::ledger_bytes(b); }
};
template <class T, class Policy>
pair<T, Policy> make_pair_of(support::dice& d, kvmeld::shape const& s, Policy const& p) {
  return {d, s, p};
}

template <class Cache> std::string text_of(Cache const& cache) {
  std::ostringstream out;
  dump_plan(cache, out);
  return out.str();
}

std::string read(std::string const& text, saved_plan& plan) {
  std::istringstream in(text);
  return read_plan(in, plan);
}
std::string refused(std::string const& text) {
  saved_plan plan;
  std::string const problem = read(text, plan);
  CHECK(plan.tracks.empty());
  return problem;
}

template <class T, class Policy>
void replays(std::uint64_t seed, Policy const& policy, std::uint32_t members = 0) {
  support::dice d(seed);
  kvmeld::shape const s{d.between(1, 2),  d.between(1, 3),  d.between(1, 2),  1,
                        d.between(1, 20), d.between(1, 20), d.between(20, 60)};
  pair<T, Policy> x(d, s, policy, members);
  std::vector<std::uint32_t> slots;
  for (std::uint32_t q = s.sequences; q-- > 0;) slots.push_back(q);
  if (slots.size() > 1 && d.chance(0.5)) slots.pop_back();
  std::uint32_t const n = s.capacity;
  for (int round = 0; round < 2; ++round) {
    x.a.plan(slots, kvmeld::budget::entries(round == 0 ? n / 2 + 4 : n / 2 + 3),
             kvmeld::shortfall::evict_lowest);
    std::string const text = text_of(x.a);
    saved_plan plan;
    CHECK(read(text, plan) == "");
    CHECK(load_plan(plan, x.b) == "");
    CHECK(text_of(x.b) == text);
    std::ostringstream one, other;
    x.a.print_plan(one);
    x.b.print_plan(other);
    CHECK(one.str() == other.str());
    x.a.apply();
    x.b.apply();
    CHECK(x.same());
  }
}

// A dump to spoil: sequence slot 1 of a cache, merged by Chelsea.
struct spoilt {
  support::dice d{9};
  kvmeld::shape s{1, 2, 2, 1, 8, 8, 30};
  decltype(make_pair_of<float>(d, s,
                               kvmeld::preset::chelsea::with_schedule({}, kvmeld::quantity::entries(1),
                                                                      kvmeld::quantity::entries(2)))) x =
      make_pair_of<float>(d, s,
                          kvmeld::preset::chelsea::with_schedule({}, kvmeld::quantity::entries(1),
                                                                 kvmeld::quantity::entries(2)));
  std::string text;
  spoilt() {
    x.a.plan({1}, kvmeld::budget::entries(20));
    text = text_of(x.a);
  }
  std::string with(std::string const& from, std::string const& to) const {
    std::size_t const at = text.find(from);
    REQUIRE(at != std::string::npos);
    return std::string(text).replace(at, from.size(), to);
  }
};

}  // namespace

TEST_CASE("a plan replayed from its text gives the same bits") {
  using namespace kvmeld;
  auto const few = quantity::entries(2);
  for (std::uint64_t seed = 0; seed < 25; ++seed) {
    replays<float>(seed, preset::chelsea::with_schedule({}, few, few));
    replays<kvmeld::half>(seed, policy{score::global{}, select::top{few, few, few},
                                       identify::consecutive_threshold<>{}, merge::gaussian{}});
    replays<bfloat16>(seed, preset::h2o::halves());
    replays<float>(seed, preset::ems::shared(few, 4, 0.1f, 1.5), 40);
    replays<float>(seed, preset::ems::collapsed(few, 4, 0.1f, 1.5));
  }
}

TEST_CASE("every fate and any weight survives, members too") {
  support::dice d(4);
  kvmeld::shape const s{1, 1, 1, 1, 6, 5, 12};
  auto const policy = hand_made::policy();
  pair<float, decltype(hand_made::policy())> x(d, s, policy, 12);
  x.a.plan({0}, kvmeld::budget::entries(12));
  kvmeld::plan_ref const p = x.a.current_plan();
  auto const put = [&](kvmeld::slot_t slot, kvmeld::fate f, kvmeld::slot_t target, std::uint32_t span,
                       float k, float v, float n) {
    p.what[slot] = f;
    p.target[slot] = target;
    p.span[slot] = span;
    p.key_weight[slot] = k;
    p.value_weight[slot] = v;
    p.degree_weight[slot] = n;
  };
  using kvmeld::fate;
  put(3, fate::merge, 4, 0, 0.1f, -0.3f, 1.0f);
  put(4, fate::keep, 4, 0, 0.9f, 1.3f, 0.5f);
  put(5, fate::share, 6, 0, 1e-40f, 1e9f, 0.0f);
  put(6, fate::keep, 6, 0, -0.0f, 0.7f, 1.0f);
  put(7, fate::spread, 8, 2, 0.0f, 1.0f / 3, 0.25f);
  put(8, fate::keep, 8, 0, 1.0f, 0.8f, 1.0f);
  put(10, fate::drop, 10, 0, 0.123f, 4.5f, 0.0f);
  CHECK(kvmeld::testing::plan_problem(x.a) == "");
  CHECK(text_of(x.a) ==
        "kvmeld-plan 1\nlayers 1 heads 1 sequences 0\ntrack 0 0 0 length 12 kept 8 rounds 0 threshold 0 "
        "findings 0 members 0\nstay 0 3\nentry 3 merge 4 0 3dcccccd be99999a 3f800000\nentry 4 keep 4 0 "
        "3f666666 3fa66666 3f000000\nentry 5 share 6 0 116c2 4e6e6b28 0\nentry 6 keep 6 0 80000000 3f333333 "
        "3f800000\nentry 7 spread 8 2 0 3eaaaaab 3e800000\nentry 8 keep 8 0 3f800000 3f4ccccd 3f800000\nstay "
        "9 1\nentry 10 drop 10 0 3dfbe76d 40900000 0\nstay 11 1\nend\n");
  saved_plan plan;
  CHECK(read(text_of(x.a), plan) == "");
  CHECK(text_of(x.b) == "kvmeld-plan 1\nlayers 1 heads 1 sequences\nend\n");  // no plan yet
  CHECK(load_plan(plan, x.b) == "");
  CHECK(text_of(x.b) == text_of(x.a));
  x.a.apply();
  x.b.apply();
  CHECK(x.same());
  CHECK(x.a.ledger().members.count[0] == 1);
  // The one member goes with the next plan.
  x.a.plan({0}, kvmeld::budget::entries(12));
  x.a.current_plan().member_kept[0] = 0;
  std::string const text = text_of(x.a);
  CHECK(text == "kvmeld-plan 1\nlayers 1 heads 1 sequences 0\ntrack 0 0 0 length 8 kept 8 rounds 0 threshold "
                "0 findings 0 members 1\nforget 0\nstay 0 8\nend\n");
  CHECK(read(text, plan) == "");
  saved_plan other = plan;
  other.tracks[0].members = 2;
  CHECK(load_plan(other, x.b) == "load_plan: number of members of track (layer 0, sequence 0, head 0) is 2; "
                                 "it must be 1, as the track holds");
  CHECK(load_plan(plan, x.b) == "");
  CHECK(text_of(x.b) == text);
  x.a.apply();
  x.b.apply();
  CHECK(x.same());
  CHECK(x.a.ledger().members.count[0] == 0);
  auto const forgetting = [&](char const* list) {
    std::string changed = text;
    return refused(changed.replace(changed.find("forget 0"), 8, list));
  };
  CHECK(forgetting("forget 1") ==
        "read_plan: line 4: member is 1; it must be less than 1 and more than the member before it");
  CHECK(forgetting("forget 0 0") ==
        "read_plan: line 4: member is 0; it must be less than 1 and more than the member before it");
  CHECK(forgetting("forget") ==
        "read_plan: line 4: member is missing; it must be there, before the line ends");
  CHECK(forgetting("forget 0\nforget 0") ==
        "read_plan: line 5: first word is \"forget\"; it must be \"stay\" or \"entry\"");
}

TEST_CASE("the text does not depend on a stream's flags or locale") {
  struct grouped : std::numpunct<char> {
    char do_thousands_sep() const override { return '.'; }
    std::string do_grouping() const override { return "\1"; }
    char do_decimal_point() const override { return ','; }
  };
  spoilt x;
  std::ostringstream out;
  out.imbue(std::locale(out.getloc(), new grouped));
  out << std::hex << std::showbase << std::uppercase;
  dump_plan(x.x.a, out);
  CHECK(out.str() == x.text);
}

TEST_CASE("garbled texts are refused by line") {
  spoilt const x;
  CHECK(refused("") == "read_plan: line 1: text is cut off; it must be complete, with a last line \"end\"");
  CHECK(refused("hello\n") == "read_plan: line 1: first word is another; it must be \"kvmeld-plan\"");
  CHECK(refused("kvmeld-plan\n") ==
        "read_plan: line 1: version is missing; it must be there, before the line ends");
  CHECK(refused("kvmeld-plan 2\n") == "read_plan: line 1: version is 2; it must be 1");
  CHECK(refused("kvmeld-plan 1 x\n") == "read_plan: line 1: rest of the line is \"x\"; it must be empty");
  CHECK(refused("kvmeld-plan 1\n") ==
        "read_plan: line 2: text is cut off; it must be complete, with a last line \"end\"");
  CHECK(refused(x.with("layers", "layer")) ==
        "read_plan: line 2: first word is another; it must be \"layers\"");
  CHECK(refused(x.with("layers 1", "layers -1")) ==
        "read_plan: line 2: number of layers is \"-1\"; it must be a whole number of 32 bits in base 10");
  CHECK(refused(x.with("layers 1", "layers 4294967296")) ==
        "read_plan: line 2: number of layers is \"4294967296\"; it must be a whole number of 32 bits in base "
        "10");
  CHECK(refused(x.with("heads", "herds")) == "read_plan: line 2: word is \"herds\"; it must be \"heads\"");
  CHECK(
      refused(x.with("track 0 1 0", "track 0 0 0")) ==
      "read_plan: line " +
          std::to_string(4 +
                         [&] {
                           std::size_t n = 0;
                           for (std::size_t i = x.text.find("track 0 1 0"); i < x.text.find("track 0 1 1");
                                ++i)
                             n += x.text[i] == '\n' ? 1 : 0;
                           return n - 2;
                         }()) +
          ": track is (layer 0, sequence 0, head 0); it must be in the order of layers, sequences and heads");
  CHECK(refused(x.with("length 29", "length 30")).find("read_plan: line ") == 0);
  CHECK(refused(x.with("kept 20", "kept 19"))
            .find("number of entries kept is 19; it must be 20, as the lines of the track say") !=
        std::string::npos);
  CHECK(refused(x.with("stay", "stray")) ==
        "read_plan: line 4: first word is \"stray\"; it must be \"stay\" or \"entry\"");
  CHECK(refused(x.with("stay 0", "stay 1")).find("read_plan: line 4: range of entries is 1 to ") == 0);
  CHECK(refused(x.with("merge", "forge"))
            .find("fate is \"forge\"; it must be keep, merge, share, spread or drop") != std::string::npos);
  CHECK(refused(x.with("3f000000", "3f00000g"))
            .find("weight is \"3f00000g\"; it must be a whole number of 32 bits in base 16") !=
        std::string::npos);
  CHECK(refused(x.with("end", "and")).find("first word is another; it must be \"end\"") != std::string::npos);
  CHECK(refused(x.with("\ntrack 0 1 1", "\nend\ntrack 0 1 1"))
            .find("first word is another; it must be \"track\", for track 2 of 2") != std::string::npos);
  std::string const whole = x.text;
  for (std::size_t n = 0; n < whole.size(); ++n)
    CHECK(refused(whole.substr(0, n)) != "");  // cut off anywhere
}

TEST_CASE("plans that do not fit a cache are refused, and leave it a plan that keeps everything") {
  spoilt x;
  saved_plan plan;
  CHECK(read(x.text, plan) == "");
  auto const left = [&](saved_plan const& p) {
    std::string const problem = load_plan(p, x.x.b);
    if (!problem.empty() && x.x.b.planned_work().sequence_count != 0) {
      kvmeld::testing::watch const before(x.x.b);
      CHECK(kvmeld::testing::plan_problem(x.x.b) == "");
      x.x.b.apply();
      CHECK(before.unchanged(x.x.b) == "");
    }
    return problem;
  };
  saved_plan other = plan;
  other.layers = 7;
  CHECK(left(other) == "load_plan: shape of the plan is 7 layers of 2 heads; it must be 1 layers of 2 heads, "
                       "as the cache has");
  other = plan;
  other.tracks.pop_back();
  CHECK(left(other) == "load_plan: number of tracks is 1; it must be 2");
  other = plan;
  other.tracks[1].length = 3;
  CHECK(left(other) == "load_plan: number of entries of track (layer 0, sequence 1, head 1) is 3; it must be "
                       "29, as the track holds");
  other = plan;
  for (auto& e : other.tracks[0].entries)
    if (e.what == kvmeld::fate::merge) e.target = 99;
  CHECK(left(other).find(" of track (layer 0, sequence 1, head 0) is ") != std::string::npos);
  other = plan;
  other.sequences = {2};
  CHECK(left(other) == "load_plan: plan: sequence slot is 2; it must be 0 to 1");
  other.sequences.clear();
  other.tracks.clear();
  CHECK(left(other) == "load_plan: apply: plan is missing; it must be made first (call plan)");
  CHECK(left(plan) == "");
}

TEST_CASE("mutated texts are refused or are plans, never anything worse") {
  spoilt x;
  std::size_t read_well = 0, loaded = 0, not_read = 0;
  support::dice d(77);
  for (int i = 0; i < 3000; ++i) {
    std::string text = x.text;
    for (std::uint32_t times = d.between(1, 3); times > 0; --times) {
      auto const at = d.below(static_cast<std::uint32_t>(text.size()));
      constexpr char letters[] = "0123456789abcdef \nkestmrgdxp-.";
      char const c = letters[d.below(sizeof letters - 1)];
      switch (d.below(4)) {
      case 0: text[at] = c; break;
      case 1: text.insert(at, 1, c); break;
      case 2: text.erase(at, d.between(1, 12)); break;
      default: text.insert(at, text.substr(d.below(static_cast<std::uint32_t>(text.size())), d.below(40)));
      }
      if (text.empty()) text = "x";
    }
    saved_plan plan;
    std::string const problem = read(text, plan);
    if (!problem.empty()) {
      CHECK(problem.find("read_plan: line ") == 0);
      ++not_read;
      continue;
    }
    ++read_well;
    support::engine_memory<float> memory = x.x.second;
    auto cache = x.x.b.clone(memory.tensors());
    if (!load_plan(plan, cache).empty()) continue;
    ++loaded;
    CHECK(kvmeld::testing::plan_problem(cache) == "");
    cache.apply();
    CHECK(kvmeld::testing::invariant_problem(cache) == "");
  }
  CHECK(not_read > 1000);
  CHECK(read_well > 20);
  CHECK(loaded > 10);
}

}  // namespace plan_text_cases
