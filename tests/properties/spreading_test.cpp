// Random cases of policies that spread what they evict, and of sets that keep their members' attention.
#include "parts.hpp"
#include "run_case.hpp"

using namespace properties;
using kvmeld::policy;

namespace {

kvmeld::identify::local_span some_span(dice& d) {
  using kvmeld::identify::mask_mode;
  constexpr mask_mode all[] = {mask_mode::bernoulli, mask_mode::expected, mask_mode::threshold};
  return {d.pick(all), d.chance(0.5) ? kvmeld::identify::local_span::whole_window : d.between(1, 12),
          d.next(), d.chance(0.3)};
}
kvmeld::merge::additive some_additive(dice& d) {
  return {d.chance(0.5) ? kvmeld::merge::additive_variant::paper
                        : kvmeld::merge::additive_variant::mass_corrected};
}

}  // namespace

TEST_CASE("CaM over selectors that fill the budget") {
  dice d(131);
  for (int i = 0; i < cases(700); ++i) {
    policy const p{kvmeld::score::global{}, filling_top(d), some_span(d), some_additive(d)};
    run_case<float>(d, p);
    run_case<float>(d, policy{some_local(d), filling_ends(d), some_span(d), some_additive(d)});
    run_case<kvmeld::bfloat16>(d, p);
  }
}

TEST_CASE("spans whose sources are dropped") {
  dice d(132);
  for (int i = 0; i < cases(400); ++i) {
    run_case<float>(d, policy{kvmeld::score::global{}, filling_ends(d), some_span(d), kvmeld::merge::drop{}});
  }
}

TEST_CASE("sets that keep their members' attention") {
  dice d(133);
  for (int i = 0; i < cases(700); ++i) {
    kvmeld::merge::mass_preserving const mass{};
    run_case<float>(
        d,
        policy{kvmeld::score::global{}, fixed_ends(d), some_matching(d, kvmeld::admit::exact_budget{}), mass},
        true);
    run_case<kvmeld::bfloat16>(
        d, policy{kvmeld::score::global{}, some_top(d), some_matching(d, some_share(d)), mass}, false);
    run_case<float>(
        d, policy{kvmeld::score::global{}, some_top(d), some_scan(d, kvmeld::admit::exact_budget{}), mass});
  }
}
