// The same sequence on a device and on the host's generic loops. A `Device` says what a device is to a test:
//   half, bfloat16            its 16-bit types
//   executor_type             what executor(tuning) gives
//   array<T>(n), (vector)     memory that it can reach, freed at the end: data(), put(vector), get()
//   settled(executor)         waits for everything; false after an error
#pragma once

#include <kvmeld/kvmeld.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string>
#include <type_traits>
#include <vector>

#include <doctest/doctest.h>

#include "support/brief.hpp"
#include "support/random_cache.hpp"

namespace device_test {

// Uniform numbers in [-1, 1), the same everywhere.
class noise {
public:
  explicit noise(std::uint32_t seed) : state_(seed) {}
  std::uint32_t next() { return state_ = state_ * 1664525u + 1013904223u; }
  float uniform() { return static_cast<float>(next() >> 8) * (1.0f / 8388608.0f) - 1.0f; }

private:
  std::uint32_t state_;
};

// What the twins are made for; tests set others for a while.
inline kvmeld::shape extent{2, 3, 2, 2, 64, 48, 320};
inline kvmeld::plan_scope scope = kvmeld::plan_scope::head;
inline kvmeld::budget_scope over = kvmeld::budget_scope::head;

struct made_for {
  explicit made_for(kvmeld::shape const& s, kvmeld::plan_scope of = kvmeld::plan_scope::head) {
    extent = s;
    scope = of;
  }
  made_for(made_for const&) = delete;
  made_for& operator=(made_for const&) = delete;
  ~made_for() {
    extent = before;
    scope = kvmeld::plan_scope::head;
  }
  kvmeld::shape before = extent;
};

// Budgets shared for a while.
struct shared_over {
  explicit shared_over(kvmeld::budget_scope of) { over = of; }
  shared_over(shared_over const&) = delete;
  shared_over& operator=(shared_over const&) = delete;
  ~shared_over() { over = kvmeld::budget_scope::head; }
};

// Rows that lie at no multiples of 16 bytes, wide groups; rows of 128 channels.
inline constexpr kvmeld::shape crooked{2, 3, 2, 4, 37, 20, 320}, wide{1, 3, 2, 8, 128, 128, 320};
constexpr std::uint32_t members = 700;

// What a life begins with, and the budgets of its compressions and of its plan.
struct tokens_of_life {
  std::uint32_t first = 300, second = 200, budget = 120, smaller = 90, smallest = 70;
};

inline auto steep_chelsea() {
  using kvmeld::quantity;
  return kvmeld::preset::chelsea::with_schedule({0.45, 0.05, 3, 0.05}, quantity::entries(2),
                                                quantity::entries(6));
}

// Whether a device is slow: what a long generic form leaves on one shape is then not asked of the others.
inline bool brief() { return std::getenv("KVMELD_BRIEF_DEVICE_TESTS") != nullptr; }
/// A slow device tries one of two in a run, and the other in the next.
inline bool tried(std::uint64_t which) { return !brief() || support::test_run() % 2 == which; }

template <class T> std::vector<T> random_rows(noise& n, std::uint32_t channels, float walk) {
  std::vector<T> out(extent.slots() * channels);
  std::vector<float> row(channels, 0.0f);
  for (std::size_t i = 0; i < out.size(); ++i) {
    float& x = row[i % channels];
    x = walk * x + n.uniform();
    out[i] = kvmeld::element_traits<T>::from_float(x);
  }
  return out;
}

template <class Policy> kvmeld::cache_options usual_limits() {
  kvmeld::cache_options s{extent};
  s.scope = scope;
  s.budgets_over = over;
  s.whole_plan = s.stats = true;
  s.members = kvmeld::shares_entries<typename Policy::merge_type>::value ? members : 0;
  return s;
}

// Every call goes to both caches. T is a 16-bit type, for which plans agree bit for bit.
template <class Device, class T, class Policy> class twins {
public:
  template <class U> using device_array = typename Device::template array<U>;

  // `far`: the device's policy, where it reads memory.
  twins(Device const& device, Policy const& policy, std::uint32_t seed,
        kvmeld::tuning tuning = kvmeld::tuning::off,
        kvmeld::cache_options const& options = usual_limits<Policy>(), Policy const* far = nullptr)
      : noise_(seed),
        keys_(random_rows<T>(noise_, extent.key_dim, 0.9f)),
        values_(random_rows<T>(noise_, extent.value_dim, 0.0f)),
        device_keys_(keys_),
        device_values_(values_),
        host_(kvmeld::host_executor(2, kvmeld::tuning::off), policy, tensors(keys_.data(), values_.data()),
              options),
        device_(device.executor(tuning), far != nullptr ? *far : policy,
                tensors(device_keys_.data(), device_values_.data()), options) {}

  template <class F> void both(F f) {
    f(host_);
    f(device_);
  }
  auto& host() { return host_; }
  auto& device() { return device_; }
  void observe(std::uint32_t slot, std::uint32_t rows) {
    std::uint32_t const tokens = extent.capacity + members;
    std::vector<float> p(std::size_t{extent.query_heads()} * rows * tokens);
    for (float& x : p) x = 0.01f * (1.0f + noise_.uniform());
    device_array<float> const far(p);
    for (std::uint32_t layer = 0; layer < extent.layers; ++layer) {
      support::observe_numbers(host_, {layer, slot, rows}, p.data(), rows, tokens);
      support::observe_numbers(device_, {layer, slot, rows}, far.data(), rows, tokens);
    }
  }

  // The ledgers' bytes, and rows within `units` of the last place that T has at the row's largest number.
  void check(std::uint32_t slot, int units = 0) {
    settle();
    device_.sync_lengths(slot);
    CHECK(device_.longest(slot) == host_.longest(slot));
    CHECK(device_.warnings(slot) == host_.warnings(slot));
    if (units == 0) {
      CHECK(device_.save(slot) == host_.save(slot));
      check_figures(slot);
    } else {
      check_entries(slot);
    }
    CHECK(farthest(keys_, device_keys_.get(), extent.key_dim) <= units);
    CHECK(farthest(values_, device_values_.get(), extent.value_dim) <= units);
  }
  void check_attention(std::uint32_t slot) {
    check_attention_of<float>(slot);
    check_attention_of<T>(slot);  // what the tuned form is for
  }

  // A row that is no number.
  void poison(kvmeld::track where, std::uint32_t slot) {
    tensors(keys_.data(), values_.data()).keys.locate(where, slot).base[3] =
        kvmeld::element_traits<T>::from_float(kvmeld::bits_float(0x7fc00000u));
    device_keys_.put(keys_);
  }

  void settle() { REQUIRE(Device::settled(device_.executor())); }

private:
  void check_figures(std::uint32_t slot) {
    both([&](auto& c) { c.request_stats({slot}); });
    settle();
    CHECK(device_.stats_ready());
    for (std::uint32_t layer = 0; layer < extent.layers; ++layer) {
      for (std::uint32_t head = 0; head < extent.kv_heads; ++head) {
        kvmeld::cache_stats const here = host_.stats(layer, slot, head);
        kvmeld::cache_stats const there = device_.stats(layer, slot, head);
        CHECK(std::memcmp(&here, &there, sizeof here) == 0);
      }
    }
  }
  // Positions are the same; degrees too, up to an exponential.
  void check_entries(std::uint32_t slot) {
    auto const& here = host_.ledger();
    auto const& there = device_.ledger();
    std::vector<float> degrees(extent.slots());
    std::vector<kvmeld::position_t> positions(extent.slots());
    device_.executor().download(degrees.data(), there.degree, degrees.size() * sizeof(float));
    device_.executor().download(positions.data(), there.position,
                                positions.size() * sizeof(kvmeld::position_t));
    for (std::uint32_t i = 0; i < extent.layers * extent.kv_heads; ++i) {
      kvmeld::track const t = kvmeld::make_track(extent, i / extent.kv_heads, slot, i % extent.kv_heads);
      for (std::uint32_t s = 0; s < here.length[t.index]; ++s) {
        std::size_t const at = here.at(t, s);
        CHECK(degrees[at] == doctest::Approx(here.degree[at]).epsilon(1e-5));
        CHECK(positions[at] == here.position[at]);
      }
    }
  }
  template <class Q> void check_attention_of(std::uint32_t slot) {
    std::uint32_t const heads = extent.query_heads();
    std::vector<Q> q;
    for (std::uint32_t i = 0; i < 3 * heads * extent.key_dim; ++i)
      q.push_back(kvmeld::element_traits<Q>::from_float(noise_.uniform()));
    std::vector<float> out(std::size_t{3} * heads * extent.value_dim), lse(std::size_t{3} * heads);
    device_array<Q> const far_q(q);
    device_array<float> far_out(out), far_lse(lse);
    auto const attend = [&](auto& cache, Q const* from, float* to, float* sums,
                            kvmeld::span<float> memory = {}) {
      kvmeld::attention::attend(cache.executor(), kvmeld::query_batch{extent.layers - 1, slot, 3},
                                kvmeld::rows_by_token(from, 3, heads, extent.key_dim), cache.ref(),
                                kvmeld::rows_by_token(to, 3, heads, extent.value_dim),
                                kvmeld::rows_by_head(sums, 3, heads, 1), kvmeld::attention_params{},
                                {memory.size() == 0 ? 1u : 3u, memory, 64});
    };
    attend(host_, q.data(), out.data(), lse.data());
    attend(device_, far_q.data(), far_out.data(), far_lse.data());
    compare(out, lse, far_out, far_lse);
    far_out.put(std::vector<float>(out.size()));
    std::size_t const floats = kvmeld::attention::split_floats(extent, 3, 1, 3);
    device_array<float> memory(floats);  // the keys of a track over several blocks
    attend(device_, far_q.data(), far_out.data(), far_lse.data(), {memory.data(), floats});
    compare(out, lse, far_out, far_lse);
  }
  void compare(std::vector<float> const& out, std::vector<float> const& lse,
               device_array<float> const& far_out, device_array<float> const& far_lse) {
    settle();
    std::vector<float> const got = far_out.get(), got_lse = far_lse.get();
    for (std::size_t i = 0; i < out.size(); ++i) CHECK(got[i] == doctest::Approx(out[i]).epsilon(2e-4));
    for (std::size_t i = 0; i < lse.size(); ++i) CHECK(got_lse[i] == doctest::Approx(lse[i]).epsilon(2e-5));
  }
  static kvmeld::kv<kvmeld::strided<T>, kvmeld::strided<T>> tensors(T* keys, T* values) {
    return {kvmeld::strided<T>(keys, "LSTHC", extent, extent.key_dim),
            kvmeld::strided<T>(values, "LSTHC", extent, extent.value_dim)};
  }
  static double farthest(std::vector<T> const& a, std::vector<T> const& b, std::uint32_t channels) {
    constexpr int digits = std::is_same_v<T, typename Device::float16> ? 11 : 8;
    double most = 0.0;
    for (std::size_t row = 0; row < a.size(); row += channels) {
      float largest = 0.0f, off = 0.0f;
      for (std::size_t i = row; i < row + channels; ++i) {
        float const x = kvmeld::element_traits<T>::to_float(a[i]),
                    y = kvmeld::element_traits<T>::to_float(b[i]);
        largest = std::max(largest, std::abs(x));
        if (std::memcmp(&a[i], &b[i], sizeof(T)) == 0) continue;  // also where it is no number
        // A difference that is no number is as far as can be.
        off = std::max(off, std::abs(x - y) < 1e30f ? std::abs(x - y) : 1e30f);
      }
      if (off > 0.0f) most = std::max(most, std::ldexp(double{off}, digits - 1 - std::ilogb(largest)));
    }
    return most;
  }

  noise noise_;
  std::vector<T> keys_, values_;
  device_array<T> device_keys_, device_values_;
  using layout = kvmeld::strided<T>;
  kvmeld::merged_cache<kvmeld::host_executor, Policy, layout, layout> host_;
  kvmeld::merged_cache<typename Device::executor_type, Policy, layout, layout> device_;
};

// Two compressions with tokens in between, a plan of its own, a fork and a cut.
// Tuned forms may take another partner where two are equally good up to rounding; these rows have no such
// pairs.
template <class T, class Device, class Policy>
void same_life(Device const& device, char const* name, Policy const& policy, int units = 0,
               kvmeld::tuning tuning = kvmeld::tuning::off, tokens_of_life const& life = {},
               Policy const* far = nullptr) {
  CAPTURE(std::string(name));
  CAPTURE(static_cast<int>(tuning));
  twins<Device, T, Policy> pair(device, policy, 17, tuning, usual_limits<Policy>(), far);
  std::uint32_t const slots[] = {0, 1}, counts[] = {8, 5}, accepted[] = {8, 2};
  pair.both([&](auto& c) {
    c.open(0, life.first, 2, kvmeld::sequence_id{7});
    c.open(1, life.second);
  });
  for (std::uint32_t slot : slots) pair.observe(slot, 16);
  for (std::uint32_t budget : {life.budget, life.smaller}) {
    pair.both([&](auto& c) { c.compress({slots, 2}, kvmeld::budget::entries(budget).over(over)); });
    for (std::uint32_t slot : slots) pair.check(slot, units);
    pair.both([&](auto& c) {
      c.append({slots, 2}, {counts, 2});
      c.commit({slots, 2}, {accepted, 2});
    });
    for (std::uint32_t slot : slots) pair.observe(slot, 2);
    for (std::uint32_t slot : slots) pair.check(slot, units);
  }
  pair.both([&](auto& c) {
    c.plan({slots, 2}, kvmeld::budget::entries(life.smallest).over(over));
    c.apply();
  });
  pair.check(0, units);
  pair.both([](auto& c) {
    c.fork(0, 2);
    c.append({2}, {3});
    c.commit({2}, {3});
    c.truncate(2, c.tokens(2) - 2);
  });
  pair.check(2, units);
  pair.check_attention(0);
}

}  // namespace device_test
