// Every meaningful score x selector x identifier x merge, composed at run time, on random tracks: what must
// hold of each, and that the others are refused.
#include <doctest/doctest.h>

#include <kvmeld/compose/composed.hpp>

#include <cstdint>
#include <string>
#include <vector>

#include "life.hpp"
#include "support/brief.hpp"
#include "support/learned.hpp"
#include "support/random_cache.hpp"

namespace table_cases {

namespace {

using composition_test::subject;
using kvmeld::compose::composed;
using support::dice;

bool starts(std::string const& name, char const* with) { return name.rfind(with, 0) == 0; }

// What a composition means, by the names alone: told apart from the library's rule.
bool meaningful(std::string const& score, std::string const& select, std::string const& identify,
                std::string const& merge) {
  bool const nearest = starts(identify, "nearest"), bipartite = starts(identify, "chunked"),
             scan = starts(identify, "consecutive"), span = identify == "local_span",
             means = identify == "centroids";
  if (score == "none") {
    bool const ranks = select == "top" || select == "above" || select == "tiers" || scan || span;
    bool const weighs = merge == "score_weighted" || merge == "mass_preserving" || merge == "collapsed";
    if (ranks || weighs) return false;
  }
  bool const orders =
      score == "key_difference" || score == "key_norm" || score == "lag_relative" || score == "leverage" ||
      score == "leverage+drop_error" || score == "expected_attention" || score == "given" ||
      score == "max_attention" || score == "distance_preference" || score == "redundancy" ||
      score == "drop_error" || score == "chunk_attention" || score == "leverage+chunk_attention" ||
      score == "root_mean_square" || score == "root_mean_square+queries" || score == "leverage+queries" ||
      score == "learned" || score == "leverage+learned" || score == "max_output" || score == "local*value";
  bool const peaks = score == "max_attention" || score == "max_output" || score == "learned";
  bool const computes = (merge == "score_weighted" && !peaks) || merge == "mass_preserving" ||
                        merge == "collapsed" || (span && merge == "additive");
  if (orders && computes) return false;
  if (nearest != (select == "tiers") && (nearest || bipartite || scan || span || means)) return false;
  if (merge == "drop") return true;
  bool const evicts = identify == "none" || identify == "evict_rest";
  if (merge == "fitted") return evicts && score.find("+queries") != std::string::npos;
  if (merge == "additive") return span;
  if (merge == "similarity_weighted") return nearest || bipartite;
  return nearest || bipartite || scan || means;
}

// Pinned counts as small budgets allow them.
kvmeld::compose::any_selector small(std::string const& name, bool fills) {
  using kvmeld::quantity;
  quantity const rest = fills ? quantity::rest_of_budget() : quantity::of_budget(0.25);
  if (name == "top") return kvmeld::select::top{quantity::entries(1), quantity::of_budget(0.3), rest};
  if (name == "above") return kvmeld::select::above{0.05f, quantity::entries(1), quantity::of_budget(0.3)};
  if (name == "tiers")
    return kvmeld::select::tiers{quantity::entries(1), quantity::entries(6), quantity::entries(1), 3.0};
  return kvmeld::select::sinks_and_recents{quantity::entries(2), fills ? rest : quantity::of_budget(0.3)};
}

}  // namespace

TEST_CASE("every meaningful composition keeps its promises, and the others are refused") {
  using namespace kvmeld::compose;
  kvmeld::shape const s{1, 2, 2, 2, 6, 5, 70};
  std::uint32_t accepted = 0, refused = 0;
  std::uint64_t seed = 4000;
  for (any_score const& score : all_of<any_score>()) {
    for (any_selector const& select : all_of<any_selector>()) {
      for (any_identifier const& identify : all_of<any_identifier>()) {
        for (any_merge const& merge : all_of<any_merge>()) {
          bool const fills = !identify.facts_now().makes_sets;
          composed const p = support::taught({score, small(select.name(), fills), identify, merge}, s);
          INFO(kvmeld::name_of_policy(p));
          bool const means = meaningful(score.name(), select.name(), identify.name(), merge.name());
          CHECK(kvmeld::configuration_problem(p).empty() == means);
          if (!means) {
            ++refused;
            support::engine_memory<float> memory(s);
            CHECK_THROWS_AS(support::make_cache(memory, p), kvmeld::invalid_argument);
            continue;
          }
          ++accepted;
          dice d(++seed);
          // Under AddressSanitizer every fourth of them, others in every run.
          if (support::brief() && seed % 4 != support::test_run() % 4) continue;
          auto const first = kvmeld::budget::entries(d.between(24, 50)),
                     second = kvmeld::budget::entries(d.between(20, 40));
          kvmeld::cache_options whole;
          whole.wave_tracks = d.between(0, 4);
          std::string broken;
          subject<composed> a(s, p, whole, 1);
          a.live(seed, first, second, broken);
          CHECK(broken == "");
          if (identify.facts_now().meets_budget) {
            CHECK(a.cache.longest(0) <= second.resolve({}, 0));
            CHECK((a.cache.warnings(0) & kvmeld::warning::budget_unreached) == 0);
          }
          // The same bits on more threads in other waves.
          kvmeld::cache_options other;
          other.wave_tracks = 1;
          subject<composed> b(s, p, other, 2);
          b.live(seed, first, second, broken);
          CHECK(a.same_as(b));
        }
      }
    }
  }
  MESSAGE(accepted, " compositions ran, ", refused, " were refused");
  CHECK(accepted > 3800);  // docs/features.md, docs/architecture.md
}

}  // namespace table_cases
