// What scores cost beside the attention that they are made from: of a chunk of a prompt, and of a decode
// step.
#pragma once

#include "session.hpp"
#include "tensors.hpp"

#include <kvmeld/attention/attend.hpp>
#include <kvmeld/cache/attend_and_observe.hpp>
#include <kvmeld/cache/merged_cache.hpp>
#include <kvmeld/preset/eviction.hpp>
#include <kvmeld/queries/log_sums.hpp>
#include <kvmeld/queries/queries.hpp>
#include <kvmeld/queries/query_sample.hpp>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace kvmeld_bench {

constexpr std::uint32_t chunk_queries = 320;     ///< 10% are as many as the last 32
constexpr std::uint32_t longest_chunked = 4096;  ///< attention of a chunk takes minutes behind long texts

/// Calls of `queries` queries over all heads, timed as rows that say how they compare with attention.
template <class T> class observing_run {
public:
  using cache_type = kvmeld::merged_cache<kvmeld::host_executor, kvmeld::preset::h2o::type,
                                          kvmeld::strided<T>, kvmeld::strided<T>>;

  observing_run(session& s, tensors<T>& x, std::string const& name, std::uint32_t queries)
      : s_(s),
        x_(x),
        name_("observe_" + name + "/"),
        queries_(queries),
        heads_(heads_of(x.of().n) * group),
        query_(std::size_t{queries} * heads_ * head_dim),
        out_(query_.size()),
        lse_(std::size_t{queries} * heads_),
        cache_(kvmeld::host_executor(s.threads()), kvmeld::preset::h2o::defaults(), x.rows(), {x.extent()}) {
    std::uint32_t state = 7;
    for (float& q : query_) q = noise(state);
    cache_.open(0, x.of().n);
    attend();
  }

  template <class Body> void row(char const* what, Body body) {
    s_.measure(
        name_ + what, x_.of(), [] {}, body, [] { return 0.0; },
        [&] {
          references r;
          for (auto const& a : s_.rows()) {
            bool const same = a.of.n == x_.of().n && a.of.dtype == x_.of().dtype;
            if (a.name == name_ + "attention" && same) r.attention = a.seconds;
          }
          return r;
        });
  }

  void attend() {
    kvmeld::attention::attend(cache_.executor(), {0, 0, queries_}, rows(), cache_.ref(), outputs(), sums());
  }
  void observe(kvmeld::query_sample sample) { cache_.observe({0, 0, queries_}, rows(), sums(), {}, sample); }
  void attend_and_observe() {
    room_.resize(kvmeld::attention::observed_floats(x_.extent(), 1, queries_));
    kvmeld::attention::attend_and_observe(cache_, {0, 0, queries_}, rows(), outputs(), room_, sums());
  }

private:
  auto rows() const { return kvmeld::rows_by_token<float const>(query_.data(), queries_, heads_, head_dim); }
  auto outputs() { return kvmeld::rows_by_token(out_.data(), queries_, heads_, head_dim); }
  kvmeld::log_sums<float> sums() { return kvmeld::rows_by_head(lse_.data(), queries_, heads_, 1); }

  session& s_;
  tensors<T>& x_;
  std::string name_;
  std::uint32_t queries_, heads_;
  std::vector<float> query_, out_, lse_, room_;
  cache_type cache_;
};

template <class T> void run_observing(session& s, tensors<T>& x) {
  if (x.of().n <= longest_chunked && s.wants_any({"observe_chunk/attention", "observe_chunk/all",
                                                  "observe_chunk/last_32", "observe_chunk/every_10th"},
                                                 "", x.of())) {
    x.restore();
    observing_run<T> chunk(s, x, "chunk", chunk_queries);
    chunk.row("attention", [&] { chunk.attend(); });
    chunk.row("all", [&] { chunk.observe({}); });
    chunk.row("last_32", [&] { chunk.observe(kvmeld::last_queries(32)); });
    chunk.row("every_10th", [&] { chunk.observe(kvmeld::every_nth(10)); });
  }
  if (!s.wants_any({"observe_step/attention", "observe_step/apart", "observe_step/fused"}, "", x.of()))
    return;
  x.restore();
  observing_run<T> step(s, x, "step", 1);
  step.row("attention", [&] { step.attend(); });
  step.row("apart", [&] {
    step.attend();
    step.observe({});
  });
  step.row("fused", [&] { step.attend_and_observe(); });
}

}  // namespace kvmeld_bench
