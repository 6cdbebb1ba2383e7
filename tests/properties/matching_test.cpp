// Random cases of policies that match in chunks, in several rounds or one.
#include "parts.hpp"
#include "run_case.hpp"

using namespace properties;
using kvmeld::policy;

TEST_CASE("Chelsea: rounds over degree-weighted stars") {
  dice d(101);
  for (int i = 0; i < cases(900); ++i) {
    policy const p{kvmeld::score::none{}, fixed_ends(d), some_matching(d, some_share(d)),
                   kvmeld::merge::degree_weighted{}};
    run_case<float>(d, p);
    run_case<kvmeld::float16>(d, p);
  }
}

TEST_CASE("matching to a budget, weighed by score, with heavy hitters kept") {
  dice d(102);
  for (int i = 0; i < cases(900); ++i) {
    run_case<float>(d,
                    policy{kvmeld::score::global{}, some_top(d),
                           some_matching(d, kvmeld::admit::exact_budget{}), kvmeld::merge::score_weighted{}},
                    false);
  }
}

TEST_CASE("matching above a threshold, averaged") {
  dice d(103);
  for (int i = 0; i < cases(900); ++i) {
    run_case<float>(
        d, policy{some_local(d), some_top(d), some_matching(d, some_threshold(d)), kvmeld::merge::average{}});
  }
}

TEST_CASE("matching in rounds whose sources are dropped") {
  dice d(104);
  for (int i = 0; i < cases(900); ++i) {
    run_case<float>(d, policy{kvmeld::score::none{}, fixed_ends(d), some_matching(d, some_share(d)),
                              kvmeld::merge::drop{}});
  }
}

TEST_CASE("matching beside a selector that drops by itself") {
  dice d(105);
  for (int i = 0; i < cases(900); ++i) {
    with_irrelevant const select{{few(d), few(d)}, static_cast<float>(d.uniform())};
    run_case<float>(d,
                    policy{kvmeld::score::global{}, select, some_matching(d, some_share(d)),
                           kvmeld::merge::degree_weighted{}},
                    false);
  }
}
