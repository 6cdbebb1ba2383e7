// Random cases of policies that only evict, or nothing but fall back.
#include "parts.hpp"
#include "run_case.hpp"

using namespace properties;
using kvmeld::policy;

TEST_CASE("StreamingLLM: the ends fill the budget") {
  dice d(121);
  for (int i = 0; i < cases(900); ++i) {
    policy const p{kvmeld::score::none{}, filling_ends(d), kvmeld::identify::evict_rest{},
                   kvmeld::merge::drop{}};
    run_case<float>(d, p);
    run_case<kvmeld::float16>(d, p);
  }
}

TEST_CASE("H2O and SnapKV: the best scores fill the budget") {
  dice d(122);
  for (int i = 0; i < cases(700); ++i) {
    run_case<float>(d, policy{kvmeld::score::global{}, filling_top(d), kvmeld::identify::evict_rest{},
                              kvmeld::merge::drop{}});
    run_case<float>(
        d, policy{some_local(d), filling_top(d), kvmeld::identify::evict_rest{}, kvmeld::merge::drop{}});
  }
}

TEST_CASE("no sets at all: the fallback evicts, or the shortfall is reported") {
  dice d(123);
  for (int i = 0; i < cases(700); ++i) {
    run_case<float>(
        d, policy{kvmeld::score::global{}, some_top(d), kvmeld::identify::none{}, kvmeld::merge::drop{}});
  }
}
