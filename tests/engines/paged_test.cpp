// The paged engine: answers that do not depend on what else happens, and pages that are counted right.
#include "kjv.hpp"
#include "support/brief.hpp"

#include <engines/paged/comparison.hpp>
#include <engines/paged/host_engine.hpp>
#include <engines/paged/soak.hpp>
#include <engines/paged/workload.hpp>

#include <demo/methods.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include <doctest/doctest.h>

using namespace paged_engine;

namespace {

engine_options roomy() {
  engine_options o;
  o.sizes.pages = 200;
  o.sizes.slots = 4;
  o.sizes.capacity = 512;
  o.trigger = 96;
  o.budget = 48;
  return o;
}

struct outcome {
  std::map<std::uint32_t, std::vector<int>> tokens;
  totals sums;
  std::uint32_t max_pages = 0;
};

// Six prompts, four of which begin alike.
outcome run(engine_options const& o) {
  host_engine e(engines_test::model(), o, demo::policy_of("chelsea", {}));
  std::vector<int> const system = engines_test::tokens(3000, 20);
  for (std::uint32_t i = 0; i < 6; ++i) {
    request r;
    r.id = i;
    if (i % 3 != 2) r.prompt = system;
    r.shared_tokens = static_cast<std::uint32_t>(r.prompt.size());
    std::vector<int> const text = engines_test::tokens(10000 + 777 * i, 60 + 20 * i);
    r.prompt.insert(r.prompt.end(), text.begin(), text.end());
    r.max_new = 20 + i;
    e.submit(r);
  }
  outcome out;
  while (!e.idle()) {
    for (sequence const& s : e.step()) out.tokens[s.asked.id] = s.tokens;
    REQUIRE(e.page_problem() == "");
  }
  out.sums = e.sums();
  out.max_pages = e.pool().max_used();
  e.forget_prefixes();
  CHECK(e.pool().used() == 0);
  return out;
}

std::string refusal(engine_options const& o, request const& r) {
  try {
    host_engine e(engines_test::model(), o, demo::policy_of("chelsea", {}));
    e.submit(r);
  } catch (std::invalid_argument const& problem) {
    return problem.what();
  }
  return {};
}

}  // namespace

TEST_CASE("an answer depends on its request alone") {
  outcome const first = run(roomy());
  REQUIRE(first.tokens.size() == 6);
  CHECK(first.sums.compressions > 6);
  CHECK(first.sums.prefix_tokens > 0);
  CHECK(first.sums.drafts > 0);
  CHECK(first.sums.preemptions == 0);

  engine_options few = roomy();
  few.sizes.pages = 14;
  outcome const saved = run(few);
  CHECK(saved.tokens == first.tokens);
  CHECK(saved.sums.preemptions > 0);
  CHECK(saved.max_pages <= 14);
  few.preempted = preemption::recompute;
  outcome const again = run(few);
  CHECK(again.tokens == first.tokens);
  CHECK(again.sums.read_again > 0);

  engine_options other = roomy();
  other.drafts = 0;
  other.chunk = 11;
  other.batch_tokens = 17;
  other.sizes.slots = 2;
  outcome const small = run(other);
  CHECK(small.tokens == first.tokens);
  CHECK(small.sums.drafts == 0);
}

TEST_CASE("merging returns the pages behind its budget to the pool") {
  engine_options o = roomy();
  o.sizes.slots = 1;
  o.sizes.page_size = 8;
  o.drafts = 0;
  host_engine e(engines_test::model(), o, demo::policy_of("chelsea", {}));
  e.submit({0, engines_test::tokens(30000, 96), 0, 2});
  e.step();  // the prompt: 96 entries, the trigger, merged to 48
  REQUIRE(e.running().size() == 1);
  CHECK(e.entries(e.running()[0]) == 48);
  CHECK(e.pool().max_used() == 12);
  CHECK(e.pool().used() == 6);
  CHECK(e.sums().pages_returned == 6);

  o.trigger = 0;
  host_engine whole(engines_test::model(), o, demo::policy_of("chelsea", {}));
  whole.submit({0, engines_test::tokens(30000, 96), 0, 2});
  whole.step();
  CHECK(whole.pool().used() == 12);
}

TEST_CASE("shared beginnings are read once, are never written, and outlive who read them") {
  engine_options o = roomy();
  o.sizes.page_size = 8;
  o.drafts = 0;
  host_engine e(engines_test::model(), o, demo::policy_of("chelsea", {}));
  std::vector<int> const system = engines_test::tokens(3000, 24);
  auto const submit = [&](std::uint32_t id, std::size_t from, std::uint32_t more) {
    request r{id, system, 24, more};
    std::vector<int> const text = engines_test::tokens(from, 60);
    r.prompt.insert(r.prompt.end(), text.begin(), text.end());
    e.submit(r);
  };
  submit(0, 10000, 40);
  e.step();
  std::vector<std::uint32_t> const shared(e.running()[0].pages.begin(), e.running()[0].pages.begin() + 3);
  auto const digest = [&] {
    std::uint64_t hash = 1469598103934665603u;
    for (kvmeld::float16 const x : e.kv().read_pages(shared)) hash = (hash ^ x.bits) * 1099511628211u;
    return hash;
  };
  std::uint64_t const before = digest();
  submit(1, 40000, 40);
  submit(2, 70000, 40);
  std::uint32_t max_users = 0;
  while (!e.idle()) {
    e.step();
    REQUIRE(e.page_problem() == "");
    for (std::uint32_t const page : shared) max_users = std::max(max_users, e.pool().users(page));
    REQUIRE(digest() == before);
  }
  CHECK(e.sums().compressions >= 3);
  CHECK(e.sums().prefix_tokens == 2 * 24);
  CHECK(max_users == 4);  // three sequences and the map
  CHECK(e.pool().used() == 3);
}

TEST_CASE("random requests on random engines: no page leaks, none is used twice") {
  std::uint64_t const requests = support::brief() ? 800 : 1500;  // kvmeld_paged --soak runs more
  soak_result const r = soak(requests, 7, 40, 8);
  CHECK(r.problem == "");
  CHECK(r.requests == requests);
  CHECK(r.compared > requests / 20);
  CHECK(r.sums.preemptions > 100);
  CHECK(r.sums.read_again > 100);
  CHECK(r.sums.compressions > 100);
  CHECK(r.sums.prefix_tokens > 100);
  CHECK(r.sums.accepted > 100);
}

TEST_CASE("requests that could never run are refused by name") {
  engine_options o = roomy();
  o.sizes.pages = 5;
  std::vector<int> const text = engines_test::tokens(0, 200);
  CHECK(refusal(o, {3, {}, 0, 1}) == "request 3: the prompt is empty or nothing new is asked for");
  CHECK(refusal(o, {3, text, 0, 5}) == "request 3: 6 pages; the pool has 5");
  CHECK(refusal(o, {3, text, 0, 2000}) == "request 3: 2200 tokens; the model allows 2048");
  o.sizes.pages = 100;
  CHECK(refusal(o, {3, text, 30, 5}) ==
        "request 3: shared_tokens is 30; it must be at most 24, half the budget, because they stay whole and "
        "policies pin recent entries too");
  o.trigger = 0;
  CHECK(refusal(o, {3, text, 0, 400}) == "request 3: 600 entries; the capacity is 512");
  o.trigger = 48;
  CHECK(refusal(o, {3, text, 0, 5}) ==
        "engine: budget is 48; it must be at least 1 and below 48, the trigger");
}

TEST_CASE("the pool counts users and tells who miscounts") {
  page_pool pool(2);
  std::uint32_t const a = pool.take(), b = pool.take();
  CHECK(a != b);
  CHECK_THROWS_WITH(pool.take(), "page_pool: take with no free page");
  pool.share(a);
  CHECK(pool.shared()[a] == 1);
  pool.release(a);
  CHECK(pool.shared()[a] == 0);
  CHECK(pool.used() == 2);
  pool.release(a);
  CHECK(pool.available() == 1);
  std::string const text = "page_pool: page " + std::to_string(a) + " is free, but somebody uses it";
  CHECK_THROWS_WITH(pool.release(a), text.c_str());
  CHECK_THROWS_WITH(pool.share(a), text.c_str());
  CHECK(pool.take() == a);
}

TEST_CASE("drafts are what followed the last words the last time") {
  CHECK(look_up({1, 2, 3, 9, 8, 1, 2, 3, 7, 6, 5, 1, 2, 3}, 3, 2) == std::vector<int>{7, 6});
  CHECK(look_up({1, 2, 3, 4}, 2, 3).empty());
  CHECK(look_up({5, 5, 5, 5}, 2, 3) == std::vector<int>{5});
  CHECK(look_up({1}, 2, 3).empty());
}

TEST_CASE("a comparison serves the same requests from the same pool") {
  std::vector<int> const ids = engines_test::tokens(0, 20000);
  std::string const text(ids.begin(), ids.end());
  auto const work = make_workload(text, 4, 160, 1, 30, 0);
  for (workload_item const& item : work) {
    CHECK(item.arrives == 0);
    CHECK((item.asked.max_new >= 30 && item.asked.max_new < 70));
  }
  engine_options o;
  o.sizes.pages = 36;  // one request of 16 entries a page, or a little more
  o.sizes.slots = 4;
  o.sizes.capacity = 512;
  o.chunk = 32;
  std::vector<std::string> told;
  comparison const c = compare(engines_test::model(), work, o, {"streaming_llm", "leverage_dropkv"},
                               {0.8, 0.5}, [&](std::string const& policy) { told.push_back(policy); });
  CHECK(told == std::vector<std::string>{"full", "streaming_llm", "streaming_llm", "leverage_dropkv",
                                         "leverage_dropkv"});
  REQUIRE(c.rows.size() == 5);
  double prompts = 0;
  for (workload_item const& item : work) prompts += static_cast<double>(item.asked.prompt.size());
  CHECK(c.mean_prompt == doctest::Approx(prompts / 4));
  for (std::size_t i = 0; i < 5; ++i) {
    compared_row const& row = c.rows[i];
    CHECK(row.policy == told[i]);
    CHECK(row.result.tokens.size() == 4);
    for (workload_item const& item : work)
      CHECK(row.result.tokens.at(item.asked.id).size() == item.asked.prompt.size() + item.asked.max_new);
    CHECK(row.result.digits == 20);
    CHECK((row.result.mean_running() > 0 && row.result.mean_running() <= 4));
    CHECK(row.result.most_running <= 4);
    CHECK(row.most_pages <= 36);
    CHECK((row.sums.compressions == 0) == (i == 0));
    double const share = i == 0 ? 1 : i % 2 == 1 ? 0.8 : 0.5;
    CHECK(row.share == share);
    CHECK(row.budget == (i == 0 ? 0 : static_cast<std::uint32_t>(share * c.mean_prompt)));
    CHECK(row.trigger == (i == 0 ? 0 : row.budget + 32));
  }
  CHECK(c.rows[2].result.mean_running() > c.rows[0].result.mean_running());
  // A share that keeps too little is refused before anything is served.
  told.clear();
  CHECK_THROWS_WITH_AS(compare(engines_test::model(), work, o, {"leverage_dropkv"}, {0.2},
                               [&](std::string const& p) { told.push_back(p); }),
                       doctest::Contains("with a budget of 20%, which keeps"), std::invalid_argument);
  CHECK(told.empty());
  std::ostringstream table;
  print_table(c, table);
  CHECK(table.str().find("4 requests at once") == 0);
  CHECK(table.str().find("full                  100%      all") != std::string::npos);
}
