// Random cases of policies that merge into centres: EMS, shared and collapsed, and what resembles it.
#include "parts.hpp"
#include "run_case.hpp"

using namespace properties;
using kvmeld::policy;
using kvmeld::identify::resemblance;

namespace {

template <resemblance By>
kvmeld::identify::nearest_center<kvmeld::admit::threshold, By> some_nearest(dice& d) {
  return {{static_cast<float>(d.chance(0.3) ? 2 * d.uniform() - 1 : 0.3 * d.uniform()), d.chance(0.5)}};
}
kvmeld::score::global_local some_global_local(dice& d) { return {d.between(1, 20), some_local(d).pooling}; }

}  // namespace

TEST_CASE("EMS with shared entries") {
  dice d(131);
  for (int i = 0; i < cases(900); ++i) {
    policy const p{some_global_local(d), some_tiers(d), some_nearest<resemblance::keys_and_values>(d),
                   kvmeld::merge::shared{}};
    run_case<float>(d, p);
    run_case<kvmeld::float16>(d, p);
  }
}

TEST_CASE("EMS with collapsed entries") {
  dice d(132);
  for (int i = 0; i < cases(900); ++i) {
    policy const p{some_global_local(d), some_tiers(d), some_nearest<resemblance::keys_and_values>(d),
                   kvmeld::merge::collapsed{}};
    run_case<float>(d, p);
    run_case<kvmeld::bfloat16>(d, p);
  }
}

TEST_CASE("nearest keys, products as printed, other scores") {
  dice d(133);
  for (int i = 0; i < cases(900); ++i) {
    run_case<float>(d, policy{some_local(d), some_tiers(d), some_nearest<resemblance::signed_product>(d),
                              kvmeld::merge::shared{}});
    run_case<float>(d, policy{kvmeld::score::global{}, some_tiers(d), some_nearest<resemblance::keys>(d),
                              kvmeld::merge::collapsed{}});
  }
}
