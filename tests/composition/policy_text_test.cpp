// From texts to policies: presets, parts, parameters, and every refusal.
#include <kvmeld/compose/policy_text.hpp>
#include <kvmeld/kvmeld.hpp>

#include <set>
#include <sstream>
#include <string>
#include <type_traits>
#include <vector>

#include <doctest/doctest.h>

namespace {

using namespace kvmeld;
using compose::composed;

/// How a model rotates that these tests do not ask about.
rope_params some_rope() {
  rope_params rope;
  rope.pairing = rope_pairing::half_split;
  return rope;
}

composed read(std::string const& text) {
  composed out;
  compose::read_policy(text, out, some_rope());
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
    CHECK(name_of_policy(policy) == name_of_policy(p.make(some_rope())));
  }
  CHECK(names.size() > 30);
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
      score_of<score::blended<score::leverage, score::drop_error>>("leverage_dropkv window=4 ridge=0.5");
  CHECK(blend.window == 4);
  CHECK(blend.first.ridge == 0.5f);
}

TEST_CASE(
    "quantities: a number, a share of the budget, the smaller of both, the rest, the rest but a share") {
  CHECK(size_of(selector_of<select::top>("h2o recents=7").recents) == 7);
  CHECK(size_of(selector_of<select::top>("h2o recents=25%").recents) == 10);
  CHECK(size_of(selector_of<select::top>("h2o recents=8|25%").recents) == 8);
  CHECK(size_of(selector_of<select::top>("h2o recents=12|25%").recents) == 10);
  CHECK(size_of(selector_of<select::top>("h2o heavy=rest").heavy) == 35);
  CHECK(size_of(selector_of<select::top>("h2o heavy=rest-10%").heavy) == 31);
  CHECK(size_of(selector_of<select::top>("h2o heavy=rest-0.5%").heavy) == 34);
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
  auto const turned =
      score_of<score::expected_attention>("expected_attention rope=interleaved rope_base=500000");
  CHECK(turned.rope.pairing == rope_pairing::interleaved);
  CHECK(turned.rope.base == 500000.0);
  CHECK(turned.rope.factor == 1.0);
  auto const scaled = score_of<score::distance_preference>(
      "score=distance_preference rope=half_split rope_base=2e3 rope_factor=8 rotary_dim=24");
  CHECK(scaled.rope.base == 2000.0);
  CHECK(scaled.rope.factor == 8.0);
  CHECK(scaled.rope.rotary_dim == 24);
  using compactor = score::blended<score::leverage, score::chunk_attention>;
  CHECK(score_of<compactor>("compactor rope=none").first.rope.pairing == rope_pairing::none);

  // What the program tells, and words that come before it.
  rope_params model;
  model.pairing = rope_pairing::interleaved;
  model.base = 77;
  composed out;
  compose::read_policy("triattention", out, model);
  CHECK(part_of<score::distance_preference>(out.score).rope.base == 77);
  compose::read_policy("triattention rope=half_split", out, model);
  CHECK(part_of<score::distance_preference>(out.score).rope.base == 77);
  CHECK(part_of<score::distance_preference>(out.score).rope.pairing == rope_pairing::half_split);
  compose::read_policy("triattention rope=none", out, model);
  CHECK(!part_of<score::distance_preference>(out.score).rope.active());
  float const table[] = {1.0f, 0.5f};
  model.frequencies = table;
  model.rotary_dim = 4;
  compose::read_policy("triattention rope_base=9", out, model);
  CHECK(part_of<score::distance_preference>(out.score).rope.frequencies == nullptr);
  CHECK(part_of<score::distance_preference>(out.score).rope.base == 9.0);

  // Scores that take keys as they lie, unless the text says how they rotate.
  CHECK(!score_of<score::leverage>("leverage").rope.active());
  CHECK(score_of<score::leverage>("leverage rope=half_split rope_base=5").rope.base == 5.0);
  auto const both = score_of<score::blended<score::leverage, score::learned>>(
      "learned_leverage rope=half_split rope_base=5 ridge=0.5");
  CHECK(both.rope.base == 5.0);  // of learned
  CHECK(!both.first.rope.active());
  CHECK(both.first.ridge == 0.5f);
  using blend = score::blended<score::leverage, score::drop_error>;
  CHECK(!score_of<blend>("leverage_dropkv").first.rope.active());
  CHECK(score_of<blend>("leverage_dropkv rope=half_split rope_base=5").first.rope.base == 5.0);
  CHECK(!score_of<blend>("leverage_dropkv rope=half_split rope_base=5")
             .rope.active());  // of keys that lie unrotated
}

TEST_CASE("frequencies of a text are kept where the program says") {
  composed out;
  std::vector<float> numbers;
  compose::read_policy("triattention rope=half_split frequencies=1,0.25,1e-3", out, nullptr, &numbers);
  rope_params const rope = compose::rope_of(out);
  CHECK(numbers == std::vector<float>{1.0f, 0.25f, 1e-3f});
  CHECK(rope.frequencies == numbers.data());
  CHECK(rope.rotary_dim == 6);
  std::vector<float> const before = numbers;
  CHECK_THROWS(
      compose::read_policy("triattention rope=half_split frequencies=5 window=3", out, nullptr, &numbers));
  CHECK(numbers == before);
  CHECK(compose::rope_of(out).frequencies == numbers.data());
}

TEST_CASE("policies that turn keys are told how, or refused") {
  std::set<std::string> turning;
  for (compose::named_policy const& p : compose::named_policies()) {
    CAPTURE(p.name);
    bool const needs = compose::needs_rope(read(p.name));
    if (needs) turning.insert(p.name);
    composed out;
    if (needs) {
      CHECK_THROWS_WITH_AS(
          compose::read_policy(p.name, out),
          doctest::Contains("policy: rope is not given; it must be half_split, interleaved or none, as "
                            "the model rotates keys, because the "),
          invalid_argument);
    } else {
      compose::read_policy(p.name, out);  // none has to be told weights, either
    }
    CHECK(!compose::says_rope(p.name));
  }
  CHECK(turning == std::set<std::string>{"compactor", "expected_attention", "kvzip_centroids", "learned",
                                         "learned_centroids", "learned_leverage", "triattention",
                                         "triattention_merging"});
  CHECK(compose::says_rope("compactor rotary_dim=3"));
  CHECK(!compose::says_rope("rope"));
  // Every score: what the program tells reaches those that need it, and only those.
  for (compose::any_score const& score : compose::all_of<compose::any_score>()) {
    CAPTURE(score.name());
    composed policy;
    policy.score = score;
    rope_params told = some_rope();
    told.base = 123;
    bool const takes = compose::set_rope(policy, told);
    CHECK((compose::rope_of(policy).base == 123) == takes);
    CHECK((!compose::needs_rope(policy) || takes));
  }
}

TEST_CASE("refusals, and a policy that stays as it was") {
  composed out = read("h2o");
  auto const refuses = [&](std::string const& text, std::string const& why) {
    CAPTURE(text);
    CHECK_THROWS_WITH_AS(compose::read_policy(text, out, some_rope()), why.c_str(), invalid_argument);
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
          "pool, lag, future, queries, ridge, sinks, recents, heavy, threshold, chunk, steps, share, "
          "beta");
  refuses("snapkv rope=none",
          "policy: rope is given; it must be absent, because neither the score local nor the identifier "
          "evict_rest turns keys back");
  refuses("kvzip rope_base=3", "policy: rope_base is given; it must be absent, because neither the score "
                               "max_attention nor the identifier evict_rest turns keys back");
  refuses("snapkv rotary_dim=8",
          "policy: rotary_dim is given; it must be absent, because neither the score local nor the "
          "identifier evict_rest turns keys back");
  refuses("compactor rope=round", "policy: rope is \"round\"; it must be half_split, interleaved or none");
  refuses("compactor rope_base=x", "policy: rope_base is \"x\"; it must be a number");
  refuses("compactor rope_base=0", "policy: rope_base is 0; it must be above 0");
  refuses("compactor rope_factor=0", "policy: rope_factor is 0; it must be above 0");
  refuses("compactor rotary_dim=0", "policy: rotary_dim is 0; it must be above 0");
  refuses("compactor rotary_dim=1.5", "policy: rotary_dim is \"1.5\"; it must be a whole number below 2^32");
  refuses(
      "compactor rope=none rope_base=5",
      "policy: rope is none; it must be half_split or interleaved where other words say how far keys turn");
  refuses("compactor rope_base=5 frequencies=1", "policy: frequencies is given; it must be absent, because "
                                                 "rope_base or rope_factor says how far keys turn");
  refuses("compactor frequencies=1",
          "policy: frequencies is given; it must be absent, because this program keeps no memory for them "
          "(read_policy's `frequencies`)");
  for (char const* wrong : {"", ",", "1,", "1,,2", "x", "1;2", "nan", "1,inf", "1e99"}) {
    refuses(std::string("compactor frequencies=") + wrong,
            std::string("policy: frequencies is \"") + wrong +
                "\"; it must be finite numbers with commas between them, radians a position of each pair of "
                "channels");
  }
  auto const untold = [&](std::string const& text, std::string const& why) {
    CAPTURE(text);
    std::vector<float> numbers;
    CHECK_THROWS_WITH_AS(compose::read_policy(text, out, nullptr, &numbers), why.c_str(), invalid_argument);
    CHECK(numbers.empty());
  };
  untold("compactor rope_base=5",
         "policy: rope is not given; it must be half_split or interleaved, because rope_base is given");
  untold("compactor rope=half_split",
         "policy: rope_base is not given; it must be given, or frequencies: how far the model "
         "turns keys a position");
  untold("compactor rope=half_split frequencies=1,2 rotary_dim=8",
         "policy: rotary_dim is 8; it must be 4, two channels for each number of frequencies");
  for (char const* wrong : {"x", "-1", "4294967296", "1.5", "", "0x10", "1e3", "3%"}) {
    refuses(std::string("snapkv window=") + wrong,
            std::string("policy: window is \"") + wrong + "\"; it must be a whole number below 2^32");
  }
  for (char const* wrong : {"x", "nan", "inf", "1e999", "1,5", ""}) {
    refuses(std::string("leverage ridge=") + wrong,
            std::string("policy: ridge is \"") + wrong + "\"; it must be a number");
  }
  for (char const* wrong :
       {"x", "101%", "-1%", "%", "3|", "3|4", "|3%", "rests", "25%|3", "-1", "nan%", "rest-", "rest-5",
        "rest-%", "rest-0%", "rest-101%", "rest--1%", "rest-nan%", "rest5%"}) {
    refuses(std::string("h2o recents=") + wrong, std::string("policy: recents is \"") + wrong +
                                                     "\"; it must be a number of entries, a share of the "
                                                     "budget such as 25%, the smaller of both such as "
                                                     "16|25%, rest, or rest but a share such as rest-5%");
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
  CHECK(names.size() == 14);
}
