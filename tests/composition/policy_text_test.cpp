// From texts to policies: presets, parts, parameters, and every refusal.
#include <kvmeld/compose/policy_text.hpp>
#include <kvmeld/kvmeld.hpp>

#include <set>
#include <sstream>
#include <string>

#include <doctest/doctest.h>

namespace {

using namespace kvmeld;
using compose::composed;

composed read(std::string const& text) {
  composed out;
  compose::read_policy(text, out);
  return out;
}
template <class Part, class Held> Part part_of(Held held) {
  Part out{};
  int found = 0;
  held.change([&](auto& part) {
    if constexpr (std::is_same_v<std::decay_t<decltype(part)>, Part>) {
      out = part;
      ++found;
    }
  });
  CHECK(found == 1);
  return out;
}
template <class Score> Score score_of(std::string const& text) { return part_of<Score>(read(text).score); }
template <class Selector> Selector selector_of(std::string const& text) {
  return part_of<Selector>(read(text).select);
}
/// What a quantity comes to: of 100 entries with a budget of 40, after 5 were taken.
std::uint32_t size_of(quantity q) { return q.resolve(100, 40, 5); }

}  // namespace

TEST_CASE("every preset of the list can be read by its name, and makes sense") {
  std::set<std::string> names;
  for (compose::named_policy const& p : compose::named_policies()) {
    CAPTURE(p.name);
    CHECK(names.insert(p.name).second);
    CHECK(std::string(p.does).size() > 10);
    composed const policy = read(p.name);
    CHECK(configuration_problem(policy).empty());
    CHECK(name_of_policy(policy) == name_of_policy(p.make(compose::usual_rope())));
  }
  CHECK(names.size() == 33);
}

TEST_CASE("presets by name are the presets") {
  CHECK(name_of_policy(read("snapkv")) == "local x top x evict_rest x drop");
  CHECK(score_of<score::local>("tova").window == 1);
  CHECK(score_of<score::local>("  snapkv\twindow=64\n").window == 64);
  CHECK(score_of<score::local>("snapkv pool=1").pooling.kernel == 1);
  auto const chelsea = selector_of<select::sinks_and_recents>("chelsea");
  CHECK(size_of(chelsea.sinks) == 10);  // a quarter of 40
  CHECK(size_of(chelsea.recents) == 13);
  CHECK(part_of<identify::chunked_bipartite<admit::top_share>>(read("chelsea chunk=64 share=0.5").identify)
            .chunk == 64);
  CHECK(part_of<identify::chunked_bipartite<admit::top_share>>(read("chelsea share=0.5").identify)
            .admission.schedule.initial == 0.5);
  CHECK(selector_of<select::above>("kvzap threshold=-3.5").threshold == -3.5f);
  CHECK(score_of<score::lag_relative>("lagkv lag=16").lag == 16);
  CHECK(score_of<score::expected_attention>("expected_attention future=7").future == 7);
  CHECK(score_of<score::leverage>("leverage ridge=0.25").ridge == 0.25f);
  CHECK(
      score_of<score::keeping_queries<score::root_mean_square>>("attention_matching queries=9").kept.count ==
      9);
  CHECK(part_of<merge::fitted>(read("attention_matching ridge=0.5").merge).ridge == 0.5f);
  CHECK(part_of<identify::nearest_center<admit::ema_threshold, identify::resemblance::keys>>(
            read("d2o beta=0.25").identify)
            .admission.beta == 0.25f);
  CHECK(score_of<score::redundancy>("rkv pool=3 window=4").pool.kernel == 3);
  CHECK(score_of<score::by_chunk<score::local>>("chunkkv chunk=8 window=5").chunk == 8);
  CHECK(score_of<score::by_chunk<score::local>>("chunkkv chunk=8 window=5").window == 5);
  // Parameters of a blend: those of both scores.
  auto const blend =
      score_of<score::blended<score::leverage, score::drop_error>>("recommended window=4 ridge=0.5");
  CHECK(blend.window == 4);
  CHECK(blend.first.ridge == 0.5f);
}

TEST_CASE("quantities: a number, a share of the budget, the smaller of both, the rest") {
  CHECK(size_of(selector_of<select::top>("h2o recents=7").recents) == 7);
  CHECK(size_of(selector_of<select::top>("h2o recents=25%").recents) == 10);
  CHECK(size_of(selector_of<select::top>("h2o recents=8|25%").recents) == 8);
  CHECK(size_of(selector_of<select::top>("h2o recents=12|25%").recents) == 10);
  CHECK(size_of(selector_of<select::top>("h2o heavy=rest").heavy) == 35);
  CHECK(size_of(selector_of<select::top>("h2o sinks=2 heavy=12.5%").heavy) == 5);
  CHECK(size_of(selector_of<select::tiers>("d2o recents=9").window) == 9);
  CHECK(size_of(selector_of<select::tiers>("d2o heavy=9").protect) == 9);
}

TEST_CASE("criticalkv ranks the entries apart that the selector pins, whatever words say of them") {
  using critical = score::critical<score::local>;
  auto const agree = [](std::string const& text) {
    critical const c = score_of<critical>(text);
    auto const s = selector_of<select::top>(text);
    return size_of(c.sinks) == size_of(s.sinks) && size_of(c.recents) == size_of(s.recents);
  };
  CHECK(size_of(score_of<critical>("criticalkv").recents) == 32);
  CHECK(size_of(score_of<critical>("criticalkv recents=7 sinks=3").recents) == 7);
  for (char const* text : {"criticalkv", "criticalkv recents=7 sinks=3", "score=local*value",
                           "score=local*value sinks=2 identify=chunked_bipartite merge=degree_weighted"}) {
    CAPTURE(text);
    CHECK(agree(text));
  }
  std::string const tiers =
      "score=local*value select=tiers recents=9 identify=nearest_center:threshold merge=average";
  CHECK(size_of(score_of<critical>(tiers).recents) == 9);
  CHECK(size_of(score_of<critical>("score=local*value select=sinks_and_recents").recents) == 35);
}

TEST_CASE("parts by their names, with counts that suit the identifier") {
  composed const merging =
      read("score=key_difference select=top identify=chunked_bipartite merge=degree_weighted chunk=64");
  CHECK(name_of_policy(merging) == "key_difference x top x chunked_bipartite:top_share x degree_weighted");
  CHECK(size_of(part_of<select::top>(merging.select).heavy) == 10);
  CHECK(size_of(part_of<select::top>(read("score=key_difference").select).heavy) == 35);
  CHECK(name_of_policy(read("score=key_norm")) == "key_norm x top x evict_rest x drop");
  CHECK(size_of(selector_of<select::sinks_and_recents>("select=sinks_and_recents").recents) == 35);
  CHECK(size_of(selector_of<select::sinks_and_recents>(
                    "select=sinks_and_recents identify=chunked_bipartite:exact_budget merge=average")
                    .recents) == 13);
  CHECK(
      part_of<identify::consecutive_threshold<admit::threshold>>(
          read("score=global identify=consecutive_threshold:threshold merge=gaussian threshold=0.9").identify)
          .admission.theta == 0.9f);
}

TEST_CASE("rotations, where a score turns keys back") {
  CHECK(score_of<score::expected_attention>("expected_attention").rope.pairing == rope_pairing::half_split);
  auto const turned =
      score_of<score::expected_attention>("expected_attention rope=interleaved rope_base=500000");
  CHECK(turned.rope.pairing == rope_pairing::interleaved);
  CHECK(turned.rope.base == 500000.0);
  CHECK(score_of<score::distance_preference>("score=distance_preference rope_base=2e3").rope.base == 2000.0);
  CHECK(score_of<score::blended<score::leverage, score::chunk_attention>>("compactor rope=none")
            .first.rope.pairing == rope_pairing::none);
  rope_params model;
  model.pairing = rope_pairing::interleaved;
  model.base = 77;
  composed out;
  compose::read_policy("triattention", out, model);
  CHECK(part_of<score::distance_preference>(out.score).rope.base == 77);
  CHECK(!score_of<score::leverage>("leverage").rope.active());  // whose preset takes keys as they lie
}

TEST_CASE("refusals, and a policy that stays as it was") {
  composed out = read("h2o");
  auto const refuses = [&](std::string const& text, std::string const& why) {
    CAPTURE(text);
    CHECK_THROWS_WITH_AS(compose::read_policy(text, out), why.c_str(), invalid_argument);
    CHECK(name_of_policy(out) == "global x top x evict_rest x drop");
  };
  std::string const names =
      "one of " + compose::names_of_policies() + ", or parts such as score=key_difference select=top";
  refuses("", "policy: name is \"\"; it must be " + names);
  refuses("snapkw", "policy: name is \"snapkw\"; it must be " + names);
  refuses("snapkv\x01", "policy: name is \"snapkv?\"; it must be " + names);
  refuses(
      "snapkv h2o",
      "policy: word 2 is \"h2o\"; it must be a name and a value, such as window=32, because only the first "
      "word names a preset");
  refuses("score=global h2o",
          "policy: word 2 is \"h2o\"; it must be a name and a value, such as window=32, because only the "
          "first word names a preset");
  refuses("snapkv window=3 window=3", "policy: number of times that \"window\" is given is 2; it must be 1");
  refuses("snapkv merge=average",
          "policy: merge is \"average\"; it must be absent, because the preset snapkv has parts of its "
          "own");
  refuses("score=x", "policy: score is \"x\"; it must be one of " + compose::names_of<compose::any_score>());
  refuses("select=x",
          "policy: select is \"x\"; it must be one of " + compose::names_of<compose::any_selector>());
  refuses("identify=x",
          "policy: identify is \"x\"; it must be one of " + compose::names_of<compose::any_identifier>());
  refuses("merge=x", "policy: merge is \"x\"; it must be one of " + compose::names_of<compose::any_merge>());
  refuses("snapkv chunk=3",
          "policy: parameter is \"chunk\"; it must be one that a part of local x top x evict_rest x drop "
          "has, of window, "
          "pool, lag, future, queries, ridge, sinks, recents, heavy, threshold, chunk, share, beta");
  refuses("snapkv rope=none",
          "policy: rope is given; it must be absent, because the score local does not turn keys back");
  refuses(
      "leverage rope_base=3",
      "policy: rope_base is given; it must be absent, because the score leverage does not turn keys back");
  refuses("compactor rope=round", "policy: rope is \"round\"; it must be half_split, interleaved or none");
  refuses("compactor rope_base=x", "policy: rope_base is \"x\"; it must be a number");
  for (char const* wrong : {"x", "-1", "4294967296", "1.5", "", "0x10", "1e3", "3%"}) {
    refuses(std::string("snapkv window=") + wrong,
            std::string("policy: window is \"") + wrong + "\"; it must be a whole number below 2^32");
  }
  for (char const* wrong : {"x", "nan", "inf", "1e999", "1,5", ""}) {
    refuses(std::string("leverage ridge=") + wrong,
            std::string("policy: ridge is \"") + wrong + "\"; it must be a number");
  }
  for (char const* wrong : {"x", "101%", "-1%", "%", "3|", "3|4", "|3%", "rests", "25%|3", "-1", "nan%"}) {
    refuses(std::string("h2o recents=") + wrong, std::string("policy: recents is \"") + wrong +
                                                     "\"; it must be a number of entries, a share of the "
                                                     "budget such as 25%, the smaller of both such as "
                                                     "16|25%, or rest");
  }
  // What kvmeld itself refuses, in its own words.
  CHECK_THROWS_WITH(compose::read_policy("snapkv window=0", out),
                    doctest::Contains("window is 0; it must be "));
  CHECK_THROWS_WITH(compose::read_policy("select=top", out), doctest::Contains("it must be "));
  CHECK_THROWS_WITH(compose::read_policy("score=key_norm merge=gaussian", out),
                    doctest::Contains("it must be "));
}

TEST_CASE("the list of parameters names each parameter once") {
  std::istringstream lines{std::string(compose::parameters())};
  std::set<std::string> names;
  for (std::string line; std::getline(lines, line);) {
    CHECK(line.find('\t') != std::string::npos);
    CHECK(names.insert(line.substr(0, line.find('\t'))).second);
  }
  CHECK(names.size() == 13);
}
