// The functions of kvmeld.h that work on a cache.
#include "arguments.hpp"
#include "engine_cache.hpp"
#include "failure.hpp"
#include "registry.hpp"

#include <kvmeld/attention/log_degree_bias.hpp>
#include <kvmeld/compose/any_cache.hpp>
#include <kvmeld/core/bits.hpp>
#include <kvmeld/core/element.hpp>
#include <kvmeld/core/ledger.hpp>
#include <kvmeld/core/span.hpp>
#include <kvmeld/core/types.hpp>
#include <kvmeld/kvmeld.h>
#include <kvmeld/queries/log_sums.hpp>
#include <kvmeld/queries/queries.hpp>
#include <kvmeld/queries/rope.hpp>
#include <kvmeld/score/observation.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace kvmeld_library {

namespace {

/// A track of the cache; refuses numbers of none.
kvmeld::track read_track(char const* call, held_cache const& held, std::uint32_t layer,
                         std::uint32_t sequence, std::uint32_t head) {
  kvmeld::shape const& s = held.sizes.extent;
  if (layer >= s.layers) refuse(call, "layer", layer, "0 to ", s.layers - 1);
  if (sequence >= s.sequences) refuse(call, "sequence", sequence, "0 to ", s.sequences - 1);
  if (head >= s.kv_heads) refuse(call, "kv_head", head, "0 to ", s.kv_heads - 1);
  return kvmeld::make_track(s, layer, sequence, head);
}

/// Sees to it that lengths of a sequence are known, and not only bounds: a device's cache waits for them.
kvmeld::any_cache& know_lengths(held_cache& held, std::uint32_t sequence) {
  kvmeld::any_cache& c = held.cache->cache();
  if (sequence < held.sizes.extent.sequences && !c.lengths_known(sequence)) c.sync_lengths(sequence);
  return c;
}

/// Copies what the ledger has of each entry of a track.
template <class T>
void copy_entries(char const* call, char const* argument, held_cache& held, kvmeld::track where,
                  T* kvmeld::ledger_ref::*array, T* out, std::uint32_t capacity) {
  kvmeld::any_cache const& c = know_lengths(held, where.sequence);
  std::uint32_t const length = c.length(where.layer, where.sequence, where.kv_head);
  if (length == 0) return;
  require(out, call, argument, "an array for as many numbers as the track has entries");
  if (capacity < length)
    refuse(call, "capacity", capacity, "at least ", length, ", the entries of the track");
  kvmeld::ledger_ref ledger = c.ledger();
  std::vector<std::int32_t> numbers;  // of the sequence's pages; the table may lie on a device
  if (ledger.paged()) {
    kvmeld::page_table<>& table = ledger.pages.table;
    numbers.resize(kvmeld::ceil_div(length, ledger.pages.page_size));
    held.cache->read(numbers.data(), table.entries + table.row(where), numbers.size() * sizeof numbers[0]);
    table = kvmeld::table_rows<std::int32_t>(numbers.data(), 0);
  }
  for (std::uint32_t s = 0, run; s < length; s += run) {
    run = std::min(length - s, ledger.adjoining(s));
    held.cache->read(out + s, ledger.*array + ledger.at(where, s), run * sizeof *out);
  }
}

/// The attention of a call in one layer.
kvmeld::attention_params attention_in(held_cache const& held, std::uint32_t layer, float scale) {
  kvmeld::attention_params out = held.attention;
  out.scale = scale;
  kvmeld::shape const& s = held.sizes.extent;
  if (out.sink != nullptr && layer < s.layers) out.sink += std::size_t{layer} * s.query_heads();
  return out;
}

/// The rope of a call that turns keys, with its frequencies where the keys are.
struct rotation {
  kvmeld::rope_params params;
  float_memory frequencies;

  rotation(char const* call, held_cache& held, kvmeld_rope const* rope) : params(read_rope(call, rope)) {
    std::uint32_t const key_dim = held.sizes.extent.key_dim, pairs = params.pairs(key_dim);
    if (held.device < 0 || params.frequencies == nullptr || pairs == 0) return;
    if (std::string const problem = kvmeld::detail::rope_problem(call, params, key_dim, true);
        !problem.empty())
      throw failure(KVMELD_INVALID_ARGUMENT, problem);
    frequencies = held.cache->floats(call, "frequencies", pairs, params.frequencies);
    params.frequencies = frequencies.get();
  }
};

/// Whether the score that is held reads log-sum-exps. It does not if it keeps queries alone, or has a softmax
/// inside chunks.
bool reads_log_sums(kvmeld::any_cache const& cache) {
  kvmeld::observation_need const need = cache.needs_observation();
  kvmeld::ledger_ref const& ledger = cache.ledger();
  bool const chunks = need.queries && ledger.table_floats == 0;
  return need && !chunks && ledger.channels.count != 0;
}

}  // namespace

}  // namespace kvmeld_library

using namespace kvmeld_library;

extern "C" {

// --- sequences

kvmeld_status kvmeld_open(kvmeld_cache cache, uint32_t sequence, uint32_t tokens, uint32_t frozen) {
  return on_cache("kvmeld_open", cache,
                  [&](held_cache& held) { held.cache->cache().open(sequence, tokens, frozen); });
}

kvmeld_status kvmeld_close(kvmeld_cache cache, uint32_t sequence) {
  return on_cache("kvmeld_close", cache, [&](held_cache& held) { held.cache->cache().close(sequence); });
}

kvmeld_status kvmeld_append(kvmeld_cache cache, uint32_t const* sequences, uint32_t const* counts,
                            uint32_t n) {
  char const* const call = "kvmeld_append";
  return on_cache(call, cache, [&](held_cache& held) {
    kvmeld::index_list const to = read_list(call, "sequences", sequences, n);
    kvmeld::index_list const tokens = read_list(call, "counts", counts, n);
    for (std::uint32_t i = 0; i < n; ++i) {  // a bound of the lengths must not refuse what fits
      kvmeld::shape const& s = held.sizes.extent;
      bool const fits =
          to[i] >= s.sequences ||
          held.cache->cache().length_bound(to[i]) + std::uint64_t{tokens[i]} <= std::uint64_t{s.capacity};
      if (!fits) know_lengths(held, to[i]);
    }
    held.cache->cache().append(to, tokens);
  });
}

kvmeld_status kvmeld_commit(kvmeld_cache cache, uint32_t const* sequences, uint32_t const* accepted,
                            uint32_t n) {
  char const* const call = "kvmeld_commit";
  return on_cache(call, cache, [&](held_cache& held) {
    held.cache->cache().commit(read_list(call, "sequences", sequences, n),
                               read_list(call, "accepted", accepted, n));
  });
}

kvmeld_status kvmeld_fork(kvmeld_cache cache, uint32_t from, uint32_t into) {
  return on_cache("kvmeld_fork", cache, [&](held_cache& held) { held.cache->cache().fork(from, into); });
}

kvmeld_status kvmeld_copy_page(kvmeld_cache cache, uint32_t from, uint32_t into) {
  return on_cache("kvmeld_copy_page", cache,
                  [&](held_cache& held) { held.cache->cache().copy_page(from, into); });
}

kvmeld_status kvmeld_truncate(kvmeld_cache cache, uint32_t sequence, uint32_t tokens) {
  return on_cache("kvmeld_truncate", cache,
                  [&](held_cache& held) { held.cache->cache().truncate(sequence, tokens); });
}

kvmeld_status kvmeld_drop_positions(kvmeld_cache cache, uint32_t sequence, int32_t first, int32_t last) {
  return on_cache("kvmeld_drop_positions", cache,
                  [&](held_cache& held) { held.cache->cache().drop_positions(sequence, first, last); });
}

kvmeld_status kvmeld_shift(kvmeld_cache cache, uint32_t sequence, int32_t offset, kvmeld_rope const* rope,
                           int32_t first) {
  char const* const call = "kvmeld_shift";
  return on_cache(call, cache, [&](held_cache& held) {
    rotation const turns(call, held, rope);
    held.cache->cache().shift(sequence, offset, turns.params, first);
  });
}

kvmeld_status kvmeld_renumber(kvmeld_cache cache, uint32_t sequence, kvmeld_rope const* rope) {
  char const* const call = "kvmeld_renumber";
  return on_cache(call, cache, [&](held_cache& held) {
    rotation const turns(call, held, rope);
    held.cache->cache().renumber(sequence, turns.params);
  });
}

// --- compression

kvmeld_status kvmeld_needs(kvmeld_cache cache, kvmeld_observation* when, uint32_t* rows, int32_t* queries) {
  return on_cache("kvmeld_needs", cache, [&](held_cache& held) {
    kvmeld::observation_need const need = held.cache->cache().needs_observation();
    if (when != nullptr) *when = static_cast<kvmeld_observation>(need.when);
    if (rows != nullptr) *rows = need.rows;
    if (queries != nullptr) *queries = need.queries ? 1 : 0;
  });
}

kvmeld_status kvmeld_observe(kvmeld_cache cache, uint32_t layer, uint32_t sequence, uint32_t n,
                             kvmeld_element element, void const* queries, int64_t head_stride,
                             int64_t row_stride, float const* lse, int64_t lse_stride, float scale) {
  char const* const call = "kvmeld_observe";
  return on_cache(call, cache, [&](held_cache& held) {
    kvmeld::any_cache& c = know_lengths(held, sequence);
    kvmeld::any_rows const rows = read_rows(call, element, queries, head_stride, row_stride);
    kvmeld::query_batch const batch(layer, sequence, n);
    kvmeld::attention_params const params = attention_in(held, layer, scale);
    kvmeld::log_sums<float const> given(kvmeld::head_rows<float const>{lse, 0, lse_stride, 1});
    float_memory outputs, computed;
    float const unread = 0.0f;
    if (lse == nullptr && !c.needs_observation()) {
      given.rows.data = &unread;  // the call does nothing, once its other arguments are right
    } else if (lse == nullptr && queries != nullptr && n != 0 && reads_log_sums(c)) {
      read_track(call, held, layer, sequence, 0);
      if (n > c.tokens(sequence)) refuse(call, "n", n, "at most ", c.tokens(sequence), ", the tokens seen");
      kvmeld::shape const& s = held.sizes.extent;
      std::size_t const heads = s.query_heads();
      outputs = held.cache->floats(call, "outputs", heads * n * s.value_dim);
      computed = held.cache->floats(call, "log-sum-exps", heads * n);
      kvmeld::head_rows<float> const sums = kvmeld::rows_by_head(computed.get(), n, s.query_heads(), 1);
      c.attend(batch, rows, kvmeld::rows_by_head(outputs.get(), n, s.query_heads(), s.value_dim), sums,
               params);
      given = kvmeld::log_sums<float const>(kvmeld::log_sums<float>(sums));
    }
    c.observe(batch, rows, given, params);
  });
}

kvmeld_status kvmeld_observe_rows(kvmeld_cache cache, uint32_t layer, uint32_t sequence, uint32_t n,
                                  float const* rows, int64_t head_stride, int64_t row_stride) {
  return on_cache("kvmeld_observe_rows", cache, [&](held_cache& held) {
    held.cache->cache().observe_rows({layer, sequence, n},
                                     kvmeld::head_rows<float const>{rows, 0, head_stride, row_stride});
  });
}

kvmeld_status kvmeld_set_scores(kvmeld_cache cache, uint32_t layer, uint32_t sequence, float const* scores,
                                int64_t head_stride) {
  return on_cache("kvmeld_set_scores", cache, [&](held_cache& held) {
    held.cache->cache().set_scores(layer, {sequence},
                                   kvmeld::head_rows<float const>{scores, 0, head_stride, 0});
  });
}

kvmeld_status kvmeld_compress(kvmeld_cache cache, uint32_t const* sequences, uint32_t n,
                              kvmeld_budget budget) {
  char const* const call = "kvmeld_compress";
  return on_cache(call, cache, [&](held_cache& held) {
    held.cache->cache().compress(read_list(call, "sequences", sequences, n), read_budget(call, budget),
                                 budget.keep != 0 ? kvmeld::shortfall::keep
                                                  : kvmeld::shortfall::evict_lowest);
  });
}

// --- what a cache holds

kvmeld_status kvmeld_tokens(kvmeld_cache cache, uint32_t sequence, uint32_t* tokens) {
  return on_cache("kvmeld_tokens", cache, [&](held_cache& held) {
    require(tokens, "kvmeld_tokens", "tokens", "where to write the number");
    *tokens = held.cache->cache().tokens(sequence);
  });
}

kvmeld_status kvmeld_longest(kvmeld_cache cache, uint32_t sequence, uint32_t* entries) {
  return on_cache("kvmeld_longest", cache, [&](held_cache& held) {
    require(entries, "kvmeld_longest", "entries", "where to write the number");
    *entries = know_lengths(held, sequence).longest(sequence);
  });
}

kvmeld_status kvmeld_lengths(kvmeld_cache cache, uint32_t sequence, uint32_t* lengths) {
  char const* const call = "kvmeld_lengths";
  return on_cache(call, cache, [&](held_cache& held) {
    require(lengths, call, "lengths", "an array of layers * kv_heads numbers");
    (void)read_track(call, held, 0, sequence, 0);
    kvmeld::shape const& s = held.sizes.extent;
    kvmeld::any_cache const& c = know_lengths(held, sequence);
    for (std::uint32_t layer = 0; layer < s.layers; ++layer) {
      for (std::uint32_t head = 0; head < s.kv_heads; ++head) *lengths++ = c.length(layer, sequence, head);
    }
  });
}

kvmeld_status kvmeld_degrees(kvmeld_cache cache, uint32_t layer, uint32_t sequence, uint32_t kv_head,
                             float* degrees, uint32_t capacity) {
  char const* const call = "kvmeld_degrees";
  return on_cache(call, cache, [&](held_cache& held) {
    copy_entries(call, "degrees", held, read_track(call, held, layer, sequence, kv_head),
                 &kvmeld::ledger_ref::degree, degrees, capacity);
  });
}

kvmeld_status kvmeld_positions(kvmeld_cache cache, uint32_t layer, uint32_t sequence, uint32_t kv_head,
                               int32_t* positions, uint32_t capacity) {
  char const* const call = "kvmeld_positions";
  return on_cache(call, cache, [&](held_cache& held) {
    copy_entries(call, "positions", held, read_track(call, held, layer, sequence, kv_head),
                 &kvmeld::ledger_ref::position, positions, capacity);
  });
}

kvmeld_status kvmeld_log_degrees(kvmeld_cache cache, uint32_t layer, uint32_t sequence, float* bias,
                                 int64_t head_stride, uint32_t columns) {
  char const* const call = "kvmeld_log_degrees";
  return on_cache(call, cache, [&](held_cache& held) {
    (void)read_track(call, held, layer, sequence, 0);
    if (columns != 0) require(bias, call, "bias", "rows of `columns` numbers for each query head");
    kvmeld::shape const& s = held.sizes.extent;
    kvmeld::any_cache& c = know_lengths(held, sequence);
    for (std::uint32_t head = 0; head < s.kv_heads; ++head) {
      if (std::uint32_t const length = c.length(layer, sequence, head); length > columns)
        refuse(call, "columns", columns, "at least ", length, ", the entries of KV head ", head);
    }
    if (columns == 0) return;
    c.write_log_degree(layer, {sequence}, kvmeld::head_rows<float>{bias, 0, head_stride, 0},
                       s.queries_per_kv_head, kvmeld::attention::behind_end::masked, columns);
  });
}

kvmeld_status kvmeld_warnings(kvmeld_cache cache, uint32_t sequence, uint32_t* warnings) {
  return on_cache("kvmeld_warnings", cache, [&](held_cache& held) {
    require(warnings, "kvmeld_warnings", "warnings", "where to write the bits");
    kvmeld::any_cache& c = held.cache->cache();
    if (held.device >= 0 && sequence < held.sizes.extent.sequences) c.sync_lengths(sequence);
    *warnings = c.warnings(sequence);
  });
}

// --- attention

kvmeld_status kvmeld_attend(kvmeld_cache cache, uint32_t layer, uint32_t sequence, uint32_t n,
                            kvmeld_element element, void const* queries, int64_t head_stride,
                            int64_t row_stride, kvmeld_element out_element, void* out,
                            int64_t out_head_stride, int64_t out_row_stride, float* lse, int64_t lse_stride,
                            float scale) {
  char const* const call = "kvmeld_attend";
  return on_cache(call, cache, [&](held_cache& held) {
    kvmeld::any_rows const rows = read_rows(call, element, queries, head_stride, row_stride);
    if (out_element != element && out_element != KVMELD_FLOAT32)
      refuse(call, "out_element",
             out_element > 0 && out_element <= KVMELD_BFLOAT16 ? name_of(out_element) : "no element type",
             name_of(element), ", the element type of the queries, or 0 (float32)");
    auto const output = with_element(call, "out_element", out_element, [&](auto tag) -> kvmeld::any_output {
      using type = typename decltype(tag)::type;
      return kvmeld::head_rows<type>{static_cast<type*>(out), 0, out_head_stride, out_row_stride};
    });
    if (sequence < held.sizes.extent.sequences && !held.cache->cache().is_open(sequence))
      refuse(call, "sequence", sequence, "open (call kvmeld_open first)");
    held.cache->cache().attend({layer, sequence, n}, rows, output,
                               kvmeld::head_rows<float>{lse, 0, lse_stride, 1},
                               attention_in(held, layer, scale));
  });
}

// --- saving

kvmeld_status kvmeld_saved_bytes(kvmeld_cache cache, uint32_t sequence, size_t* bytes) {
  return on_cache("kvmeld_saved_bytes", cache, [&](held_cache& held) {
    require(bytes, "kvmeld_saved_bytes", "bytes", "where to write the number");
    *bytes = held.cache->cache().saved_bytes(sequence);
  });
}

kvmeld_status kvmeld_save(kvmeld_cache cache, uint32_t sequence, void* out, size_t bytes) {
  return on_cache("kvmeld_save", cache, [&](held_cache& held) {
    require(out, "kvmeld_save", "out", "memory for as many bytes as kvmeld_saved_bytes says");
    held.cache->cache().save(sequence, kvmeld::span<std::byte>(static_cast<std::byte*>(out), bytes));
  });
}

kvmeld_status kvmeld_resume(kvmeld_cache cache, uint32_t sequence, void const* from, size_t bytes) {
  return on_cache("kvmeld_resume", cache, [&](held_cache& held) {
    require(from, "kvmeld_resume", "from", "the bytes that kvmeld_save wrote");
    held.cache->cache().resume(sequence,
                               kvmeld::span<std::byte const>(static_cast<std::byte const*>(from), bytes));
  });
}

}  // extern "C"
