// Policies that merge: the host's plans; rows to the last bit but where exponentials weigh them.
#include "twins.cuh"

TEST_CASE("merges on a device are the host's") {
  using kvmeld::quantity;
  for (auto tuning : {kvmeld::tuning::off, kvmeld::tuning::on}) {
    cuda_test::same_life<__nv_bfloat16>("chelsea",
                                        kvmeld::preset::chelsea::with_schedule({0.45, 0.05, 3, 0.05},
                                                                               quantity::entries(2),
                                                                               quantity::entries(6)),
                                        0, tuning);
    cuda_test::same_life<__half>("kvmerger", kvmeld::preset::kvmerger::for_budget(), 1, tuning);
  }
}

TEST_CASE("shared entries on a device are the host's") {
  for (auto tuning : {kvmeld::tuning::off, kvmeld::tuning::on}) {
    cuda_test::same_life<__nv_bfloat16>("ems", kvmeld::preset::ems::shared(), 1, tuning);
  }
}

TEST_CASE("merges of rows that lie anywhere, of wide rows, and of heads with one plan are the host's") {
  using kvmeld::quantity;
  auto const chelsea = kvmeld::preset::chelsea::with_schedule({0.45, 0.05, 3, 0.05}, quantity::entries(2),
                                                              quantity::entries(6));
  for (auto tuning : {kvmeld::tuning::off, kvmeld::tuning::on}) {
    for (kvmeld::shape const& s : {cuda_test::crooked, cuda_test::wide}) {
      cuda_test::made_for const now(s);
      cuda_test::same_life<__nv_bfloat16>("chelsea", chelsea, 0, tuning);
      cuda_test::same_life<__half>("kvmerger", kvmeld::preset::kvmerger::for_budget(), 1, tuning);
    }
    cuda_test::made_for const layers(cuda_test::crooked, kvmeld::plan_scope::layer);
    cuda_test::same_life<__nv_bfloat16>("chelsea", chelsea, 0, tuning);
  }
}

TEST_CASE("merges of tracks that share their budgets are the host's") {
  using kvmeld::quantity;
  auto const chelsea = kvmeld::preset::chelsea::with_schedule({0.45, 0.05, 3, 0.05}, quantity::entries(2),
                                                              quantity::entries(6));
  for (auto tuning : {kvmeld::tuning::off, kvmeld::tuning::on}) {
    for (auto over : {kvmeld::split::layer, kvmeld::split::group}) {
      cuda_test::shared_over const now(over);
      cuda_test::same_life<__nv_bfloat16>("chelsea", chelsea, 0, tuning);
      cuda_test::same_life<__half>("kvmerger", kvmeld::preset::kvmerger::for_budget(), 1, tuning);
    }
  }
}
