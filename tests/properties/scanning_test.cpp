// Random cases of policies that scan for consecutive entries, with every weight.
#include "parts.hpp"
#include "run_case.hpp"

using namespace properties;
using kvmeld::policy;

TEST_CASE("KVMerger to a budget") {
  dice d(111);
  for (int i = 0; i < cases(900); ++i) {
    policy const p{kvmeld::score::global{}, some_top(d),
                   some_scan(d, kvmeld::admit::exact_budget{d.between(1, 20)}), some_gaussian(d)};
    run_case<float>(d, p);
    run_case<kvmeld::bfloat16>(d, p);
  }
}

TEST_CASE("KVMerger at a threshold") {
  dice d(112);
  for (int i = 0; i < cases(900); ++i) {
    run_case<float>(
        d, policy{kvmeld::score::global{}, some_top(d), some_scan(d, some_threshold(d)), some_gaussian(d)});
  }
}

TEST_CASE("consecutive entries, averaged or dropped") {
  dice d(113);
  for (int i = 0; i < cases(700); ++i) {
    run_case<float>(d, policy{some_local(d), some_ends(d), some_scan(d, kvmeld::admit::exact_budget{}),
                              kvmeld::merge::average{}});
    run_case<float>(d, policy{kvmeld::score::global{}, some_ends(d), some_scan(d, some_threshold(d)),
                              kvmeld::merge::drop{}});
  }
}
