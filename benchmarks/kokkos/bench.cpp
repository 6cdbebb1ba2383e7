// The host backend beside Kokkos' default host space on the same rows and as many threads: compressions to a
// fifth, and attention of one token. Every time stands beside that of a memcpy of K and V in the same run.
// kvmeld_kokkos_bench [entries...]
#include "../tensors.hpp"

#include <all_printed.h>
#include <count_argument.hpp>

#include <kvmeld/kokkos.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <vector>

namespace {

using namespace kvmeld_bench;
using space = Kokkos::DefaultHostExecutionSpace;

struct measured {
  double seconds;
  std::uint32_t left;
};

template <class Executor, class T, class Policy>
measured compress(Executor const& executor, tensors<T>& x, Policy const& policy) {
  x.restore();
  kvmeld::merged_cache original{executor, policy, x.rows(), kvmeld::cache_options{x.extent()}};
  original.open(0, x.of().n);
  fill_scores(original.ledger());
  auto cache = original.clone(x.rows());
  double const seconds = median_seconds(
      0.5,
      [&] {
        x.restore();
        cache = original.clone(x.rows());
      },
      [&] { cache.compress({0}, kvmeld::budget::ratio(kept_share)); });
  return {seconds, cache.longest(0)};
}

template <class Executor, class T> measured attend(Executor const& executor, tensors<T>& x) {
  kvmeld::merged_cache cache{executor, kvmeld::preset::streaming_llm::with_sinks(), x.rows(),
                             kvmeld::cache_options{x.extent()}};
  cache.open(0, x.of().n);
  std::uint32_t const heads = x.extent().query_heads();
  std::vector<float> q(std::size_t{heads} * head_dim), out(q.size()), lse(heads);
  std::uint32_t state = 3;
  for (float& c : q) c = noise(state);
  double const seconds = median_seconds(
      0.5, [] {},
      [&] {
        kvmeld::attention::attend(cache.executor(), {0, 0, 1},
                                  kvmeld::rows_by_token<float const>(q.data(), 1, heads, head_dim),
                                  cache.ref(), kvmeld::rows_by_token(out.data(), 1, heads, head_dim),
                                  kvmeld::rows_by_token(lse.data(), 1, heads, 1));
      });
  return {seconds, cache.longest(0)};
}

template <class T> double copy_seconds(tensors<T>& x, std::uint32_t threads) {
  x.restore();
  std::size_t const bytes = x.extent().slots() * head_dim * sizeof(T), piece = std::size_t{1} << 20;
  std::vector<unsigned char> to(2 * bytes);
  return median_seconds(
      0.5, [] {},
      [&] {
        parallel_for(threads, static_cast<std::int64_t>((bytes + piece - 1) / piece), [&](std::int64_t i) {
          std::size_t const begin = static_cast<std::size_t>(i) * piece, n = std::min(piece, bytes - begin);
          std::memcpy(to.data() + begin, reinterpret_cast<unsigned char*>(x.keys()) + begin, n);
          std::memcpy(to.data() + bytes + begin, reinterpret_cast<unsigned char*>(x.values()) + begin, n);
        });
      });
}

bool all_agree = true;

// run(executor) on both backends, tuned and not.
template <class T, class Run> void row(char const* name, tensors<T>& x, double copy, Run run) {
  auto const threads = static_cast<std::uint32_t>(space().concurrency());
  std::printf("%-22s %-5s %7u", name, x.of().dtype.c_str(), x.of().n);
  for (auto t : {kvmeld::tuning::on, kvmeld::tuning::off}) {
    measured const host = run(kvmeld::host_executor(threads, t));
    measured const kokkos = run(kvmeld::kokkos_executor<space>({}, 1, t));
    all_agree = all_agree && host.left == kokkos.left;
    std::printf("  %8.2f %8.2f %7.2f %7.1f", 1e3 * host.seconds, 1e3 * kokkos.seconds,
                kokkos.seconds / host.seconds, kokkos.seconds / copy);
    std::fflush(stdout);
  }
  std::printf("\n");
}

template <class T> void table(char const* dtype, std::uint32_t n) {
  namespace preset = kvmeld::preset;
  auto const threads = static_cast<std::uint32_t>(space().concurrency());
  tensors<T> x(n, threads, dtype);
  double const copy = copy_seconds(x, threads);
  auto const with = [&](char const* name, auto const& policy) {
    row(name, x, copy, [&](auto const& executor) { return compress(executor, x, policy); });
  };
  with("streaming_llm", preset::streaming_llm::with_sinks());
  with("snapkv", preset::snapkv::with_window());
  with("kvmerger", preset::kvmerger::for_budget());
  with("chelsea", preset::chelsea::llama3());
  row("attention, one token", x, copy, [&](auto const& executor) { return attend(executor, x); });
}

}  // namespace

int main(int count, char** arguments) {
  Kokkos::ScopeGuard const kokkos(count, arguments);
  std::vector<std::uint32_t> lengths;
  for (int i = 1; i < count; ++i) {
    lengths.push_back(count_argument(count, arguments, i, 0, 512, 1u << 20));
  }
  if (lengths.empty()) lengths = {4096, 32768};
  std::printf("Kokkos %d, %s, %d threads; eight heads of %u channels, kept: a fifth\n\n", KOKKOS_VERSION,
              space::name(), space().concurrency(), head_dim);
  std::printf("%-36s  %-33s  %s\n", "", "tuned: host  Kokkos  ratio  x memcpy",
              "generic: host  Kokkos  ratio  x memcpy");
  for (std::uint32_t n : lengths) {
    table<float>("f32", n);
    table<kvmeld::bfloat16>("bf16", n);
  }
  if (!all_agree) std::printf("the backends disagree on how many entries are left\n");
  return all_agree && all_printed() ? 0 : 1;
}
