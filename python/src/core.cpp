// The extension module kvmeld._core: the calls of kvmeld.h on tensors of Python. cache.py documents them.
#include <built.hpp>  // of the library

#include <kvmeld/kvmeld.h>

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace nb = nanobind;

namespace {

using tensor = nb::ndarray<>;
using rows_in = nb::ndarray<nb::ro>;
using numbers = std::vector<std::uint32_t>;

[[noreturn]] void refuse(std::string const& argument, std::string const& value,
                         std::string const& condition) {
  throw nb::value_error((argument + " is " + value + "; it must be " + condition).c_str());
}

/// Runs a call of the library without the GIL. A status becomes an exception with the library's text.
template <class Call> void run(Call call) {
  kvmeld_status status = KVMELD_OK;
  std::string problem;
  {
    nb::gil_scoped_release others;
    status = call();
    if (status != KVMELD_OK) problem = kvmeld_problem();
  }
  if (status == KVMELD_OK) return;
  if (status == KVMELD_NO_MEMORY) {
    PyErr_SetString(PyExc_MemoryError, problem.c_str());
    throw nb::python_error();
  }
  if (status == KVMELD_INTERNAL || status == KVMELD_DEVICE_ERROR) throw std::runtime_error(problem);
  throw nb::value_error(problem.c_str());
}

template <class Array> kvmeld_element element_of(Array const& x, std::string const& name) {
  if (x.dtype() == nb::dtype<float>()) return KVMELD_FLOAT32;
  nb::dlpack::dtype const t = x.dtype();
  if (t.lanes == 1 && t.bits == 16) {
    if (t.code == static_cast<std::uint8_t>(nb::dlpack::dtype_code::Float)) return KVMELD_FLOAT16;
    if (t.code == static_cast<std::uint8_t>(nb::dlpack::dtype_code::Bfloat)) return KVMELD_BFLOAT16;
  }
  refuse(name, "a tensor of another type", "of float32, float16 or bfloat16");
}

constexpr bool with_cuda = kvmeld_library::with_cuda;
constexpr std::int32_t host = -1;

/// The number of the device that an array lies on, or host.
template <class Array> std::int32_t place_of(Array const& x, std::string const& name) {
  int const type = x.device_type();
  if (type == nb::device::cpu::value || type == nb::device::cuda_host::value) return host;
  if (with_cuda && (type == nb::device::cuda::value || type == nb::device::cuda_managed::value))
    return x.device_id();
  refuse(name, "in the memory of a device",
         with_cuda ? "in host memory or on a CUDA device"
                   : "in host memory: this build of kvmeld has no CUDA");
}
std::string text_of_place(std::int32_t place) {
  return place == host ? "in host memory" : "on CUDA device " + std::to_string(place);
}
template <class Array> void require_place(Array const& x, std::string const& name, std::int32_t place) {
  std::int32_t const there = place_of(x, name);
  if (there != place) refuse(name, text_of_place(there), text_of_place(place) + ", as the keys of the cache");
}

std::string shape_text(std::vector<std::size_t> const& extents) {
  std::string text = "[";
  for (std::size_t i = 0; i < extents.size(); ++i) text += (i == 0 ? "" : ", ") + std::to_string(extents[i]);
  return text + "]";
}
template <class Array> std::string shape_text_of(Array const& x) {
  std::vector<std::size_t> extents;
  for (std::size_t i = 0; i < x.ndim(); ++i) extents.push_back(x.shape(i));
  return shape_text(extents);
}

/// An array that a caller hands in for reading or writing: its extents, where it lies, its last stride.
template <class Array>
void require_rows(Array const& x, std::string const& name, std::vector<std::size_t> const& extents,
                  std::int32_t place) {
  require_place(x, name, place);
  bool fits = x.ndim() == extents.size();
  for (std::size_t i = 0; fits && i < extents.size(); ++i) fits = x.shape(i) == extents[i];
  if (!fits) refuse(name, "of shape " + shape_text_of(x), "of shape " + shape_text(extents));
  if (x.size() > 1 && x.shape(x.ndim() - 1) > 1 && x.stride(x.ndim() - 1) != 1)
    refuse(name, "with a stride of " + std::to_string(x.stride(x.ndim() - 1)) + " elements in its last axis",
           "with a stride of 1 there");
}

/// A tensor of an argument, in place: never a copy.
template <class Array> Array as_tensor(nb::handle object, std::string const& name) {
  Array x;
  if (!nb::try_cast<Array>(object, x, false) || !x.is_valid())
    refuse(name, "a " + nb::cast<std::string>(object.type().attr("__name__")),
           std::is_same_v<Array, tensor> ? "a writable tensor: of NumPy, or with DLPack"
                                         : "a tensor: of NumPy, or with DLPack");
  return x;
}

struct cache {
  kvmeld_cache handle{0};
  kvmeld_options sizes{};
  std::vector<tensor> keys, values;  // they keep the memory alive
  std::optional<rows_in> pages;

  cache(nb::sequence k, nb::sequence v, std::string const& policy, std::uint32_t group, int scope, int over,
        int bias, bool ignore_degree, bool padded, bool zero_emptied, std::uint32_t threads,
        std::uint32_t first_layer, std::uint32_t first_kv_head, nb::object page_table,
        std::uintptr_t stream) {
    auto const k_tensors = tensors("keys", k, keys), v_tensors = tensors("values", v, values);
    if (keys.size() != values.size())
      refuse("values", std::to_string(values.size()) + " tensors",
             "as many as keys, " + std::to_string(keys.size()));
    bool const whole = keys[0].ndim() == 5;
    std::size_t const at = whole ? 1 : 0;
    auto const fits = [&](tensor const& x, std::string const& name, tensor const& like, bool same_dim) {
      bool same = x.ndim() == like.ndim();
      for (std::size_t i = 0; same && i < x.ndim() - (same_dim ? 0 : 1); ++i)
        same = x.shape(i) == like.shape(i);
      if (!same)
        refuse(name, "of shape " + shape_text_of(x),
               "of shape " + shape_text_of(like) + (same_dim ? "" : " but for the last extent"));
      if (x.dtype() != like.dtype()) refuse(name, "of another element type", "of the type of the first keys");
    };
    for (std::size_t i = 0; i < keys.size(); ++i) {
      fits(keys[i], "keys[" + std::to_string(i) + "]", keys[0], true);
      fits(values[i], "values[" + std::to_string(i) + "]", keys[0], false);
      fits(values[i], "values[" + std::to_string(i) + "]", values[0], true);
    }
    kvmeld_options_init(&sizes, sizeof sizes);
    sizes.device = place_of(keys[0], "keys");
    sizes.stream = reinterpret_cast<void*>(stream);
    for (std::size_t i = 0; i < keys.size(); ++i) {
      require_place(keys[i], "keys[" + std::to_string(i) + "]", sizes.device);
      require_place(values[i], "values[" + std::to_string(i) + "]", sizes.device);
    }
    sizes.policy = policy.c_str();
    sizes.layers = static_cast<std::uint32_t>(whole ? keys[0].shape(0) : keys.size());
    sizes.sequences = static_cast<std::uint32_t>(keys[0].shape(at));
    sizes.kv_heads = static_cast<std::uint32_t>(keys[0].shape(at + 1));
    sizes.queries_per_kv_head = group;
    sizes.capacity = static_cast<std::uint32_t>(keys[0].shape(at + 2));
    sizes.key_dim = static_cast<std::uint32_t>(keys[0].shape(at + 3));
    sizes.value_dim = static_cast<std::uint32_t>(values[0].shape(at + 3));
    sizes.element = element_of(keys[0], "keys");
    sizes.scope = static_cast<kvmeld_scope>(scope);
    sizes.budgets_over = static_cast<kvmeld_scope>(over);
    sizes.bias = static_cast<kvmeld_bias>(bias);
    sizes.ignore_degree = ignore_degree;
    sizes.padded = padded;
    sizes.zero_emptied = zero_emptied;
    sizes.threads = threads;
    sizes.first_layer = first_layer;
    sizes.first_kv_head = first_kv_head;
    if (!page_table.is_none()) use_pages(page_table, keys[0].shape(at + 2));
    run([&] {
      return kvmeld_create(&sizes, k_tensors.data(), v_tensors.data(),
                           static_cast<std::uint32_t>(keys.size()), &handle);
    });
    sizes.policy = nullptr;
  }
  cache(cache const&) = delete;
  cache& operator=(cache const&) = delete;
  ~cache() {
    if (handle.id != 0) kvmeld_destroy(handle);
  }

  std::vector<kvmeld_tensor> tensors(std::string const& name, nb::sequence from,
                                     std::vector<tensor>& held) const {
    std::vector<kvmeld_tensor> described;
    for (nb::handle object : from) {
      std::string const item = name + "[" + std::to_string(held.size()) + "]";
      tensor x = as_tensor<tensor>(object, item);
      bool const whole = x.ndim() == 5 && nb::len(from) == 1;
      if (!whole && x.ndim() != 4)
        refuse(name, "with a tensor of " + std::to_string(x.ndim()) + " dimensions",
               "one of [layers, sequences, kv_heads, capacity, head_dim], or a list of [sequences, kv_heads, "
               "capacity, head_dim], one per layer");
      std::size_t const at = whole ? 1 : 0;
      described.push_back({x.data(), whole ? x.stride(0) : 0, x.stride(at), x.stride(at + 1),
                           x.stride(at + 2), x.stride(at + 3)});
      held.push_back(std::move(x));
    }
    if (held.empty()) refuse(name, "an empty list", "a tensor, or a list of one per layer");
    return described;
  }

  /// The table [sequences, pages of a sequence] of numbers of pages; the tensors are the pool then.
  void use_pages(nb::handle page_table, std::size_t page_size) {
    pages = as_tensor<rows_in>(page_table, "page_table");
    if (pages->dtype() != nb::dtype<std::int32_t>())
      refuse("page_table", "of another element type", "of int32");
    if (pages->ndim() != 2)
      refuse("page_table", "of shape " + shape_text_of(*pages), "of shape [sequences, pages of a sequence]");
    require_rows(*pages, "page_table", {pages->shape(0), pages->shape(1)}, sizes.device);
    constexpr std::size_t most = 0x7fffffff;
    if (page_size == 0 || pages->shape(0) > most || pages->shape(1) > most / page_size)
      refuse("page_table",
             "of shape " + shape_text_of(*pages) + " for pages of " + std::to_string(page_size) + " tokens",
             "one of at most " + std::to_string(most) + " tokens, in pages of at least one");
    sizes.page_size = static_cast<std::uint32_t>(page_size);
    sizes.page_table = static_cast<std::int32_t const*>(pages->data());
    sizes.page_table_stride = pages->stride(0);
    sizes.sequences = static_cast<std::uint32_t>(pages->shape(0));
    sizes.capacity = static_cast<std::uint32_t>(pages->shape(1) * page_size);
  }

  /// Refuses numbers of pages that the pool does not have, among those that hold the first `slots` slots. A
  /// table on a device is not read.
  void check_pages(std::uint32_t sequence, std::uint32_t slots) const {
    if (!has_readable_pages() || sequence >= sizes.sequences) return;
    std::size_t const pool = keys[0].shape(keys[0].ndim() - 4);
    std::int32_t const* const row = sizes.page_table + static_cast<std::int64_t>(sequence) * pages->stride(0);
    for (std::uint32_t i = 0; std::uint64_t{i} * sizes.page_size < slots; ++i) {
      if (row[i] >= 0 && static_cast<std::size_t>(row[i]) < pool) continue;
      refuse("page_table[" + std::to_string(sequence) + ", " + std::to_string(i) + "]",
             std::to_string(row[i]), "0 to " + std::to_string(pool - 1) + ", a page of the pool");
    }
  }
  void check_pages(std::uint32_t sequence) const {
    if (has_readable_pages() && sequence < sizes.sequences)
      check_pages(sequence, ask<std::uint32_t>(kvmeld_longest, sequence));
  }

  bool has_readable_pages() const { return pages && sizes.device == host; }

  std::uint32_t query_heads() const { return sizes.kv_heads * sizes.queries_per_kv_head; }
  /// The library's answer to a call with one number as its result.
  template <class Number, class Call, class... Arguments>
  Number ask(Call call, Arguments... arguments) const {
    Number result{};
    run([&] { return call(handle, arguments..., &result); });
    return result;
  }

  void destroy() {
    run([&] { return kvmeld_destroy(handle); });
    handle.id = 0;
    keys.clear();
    values.clear();
    pages.reset();
  }
  std::string policy() const { return ask<char const*>(kvmeld_policy); }

  void fork(std::uint32_t from, std::uint32_t into) {
    check_pages(from);
    if (has_readable_pages() && from < sizes.sequences)
      check_pages(into, ask<std::uint32_t>(kvmeld_longest, from));
    run([&] { return kvmeld_fork(handle, from, into); });
  }
  void append(numbers const& sequences, numbers const& counts) {
    each(kvmeld_append, sequences, counts, "counts");
  }
  void commit(numbers const& sequences, numbers const& counts) {
    each(kvmeld_commit, sequences, counts, "accepted");
  }
  template <class Call>
  void each(Call call, numbers const& sequences, numbers const& counts, char const* name) {
    if (sequences.size() != counts.size())
      refuse(name, std::to_string(counts.size()) + " numbers",
             "one for each of " + std::to_string(sequences.size()) + " sequences");
    run([&] {
      return call(handle, sequences.data(), counts.data(), static_cast<std::uint32_t>(sequences.size()));
    });
  }

  std::pair<std::size_t, std::size_t> heads_and_rows(rows_in const& x, char const* name) const {
    if (x.ndim() != 3) refuse(name, "of shape " + shape_text_of(x), "of three dimensions");
    return {query_heads(), x.shape(1)};
  }
  /// `frequencies`: empty, or one number for each pair of channels that rotate.
  void renumber(std::uint32_t sequence, int pairing, double base, std::vector<float> const& frequencies) {
    check_pages(sequence);
    kvmeld_rope rope{};
    rope.pairing = pairing;
    rope.base = base;
    if (!frequencies.empty()) {
      rope.rotary_dim = static_cast<std::uint32_t>(2 * frequencies.size());
      rope.frequencies = frequencies.data();
    }
    run([&] { return kvmeld_renumber(handle, sequence, &rope); });
  }
  void observe(std::uint32_t layer, std::uint32_t sequence, nb::object queries, nb::object lse, float scale) {
    check_pages(sequence);
    rows_in const q = as_tensor<rows_in>(queries, "queries");
    auto const [heads, n] = heads_and_rows(q, "queries");
    require_rows(q, "queries", {heads, n, sizes.key_dim}, sizes.device);
    kvmeld_element const element = element_of(q, "queries");
    auto const sums = log_sums<rows_in>(lse, heads, n);
    run([&, n = n] {
      return kvmeld_observe(
          handle, layer, sequence, static_cast<std::uint32_t>(n), element, q.data(), q.stride(0), q.stride(1),
          sums ? static_cast<float const*>(sums->data()) : nullptr, sums ? sums->stride(0) : 0, scale);
    });
  }
  void observe_rows(std::uint32_t layer, std::uint32_t sequence, nb::object rows) {
    rows_in const p = as_tensor<rows_in>(rows, "rows");
    auto const [heads, n] = heads_and_rows(p, "rows");
    std::size_t const longest = ask<std::uint32_t>(kvmeld_longest, sequence);
    if (p.shape(2) < longest)
      refuse("rows", "of shape " + shape_text_of(p),
             "of at least " + std::to_string(longest) + " columns, one for each entry of the longest track");
    require_floats(p, "rows", {heads, n, p.shape(2)});
    run([&, n = n] {
      return kvmeld_observe_rows(handle, layer, sequence, static_cast<std::uint32_t>(n),
                                 static_cast<float const*>(p.data()), p.stride(0), p.stride(1));
    });
  }
  void set_scores(std::uint32_t layer, std::uint32_t sequence, nb::object scores) {
    rows_in const s = as_tensor<rows_in>(scores, "scores");
    std::size_t const longest = ask<std::uint32_t>(kvmeld_longest, sequence);
    if (s.ndim() != 2 || s.shape(1) < longest)
      refuse("scores", "of shape " + shape_text_of(s),
             "of shape " + shape_text({sizes.kv_heads, longest}) + ", or with more columns");
    require_floats(s, "scores", {sizes.kv_heads, s.shape(1)});
    run([&] {
      return kvmeld_set_scores(handle, layer, sequence, static_cast<float const*>(s.data()), s.stride(0));
    });
  }
  template <class Array>
  void require_floats(Array const& x, std::string const& name,
                      std::vector<std::size_t> const& extents) const {
    require_rows(x, name, extents, sizes.device);
    if (x.dtype() != nb::dtype<float>()) refuse(name, "of another element type", "of float32");
  }
  /// The argument `lse` of a call: None, or float32 [heads, n] in place.
  template <class Array>
  std::optional<Array> log_sums(nb::handle lse, std::size_t heads, std::size_t n) const {
    if (lse.is_none()) return {};
    Array x = as_tensor<Array>(lse, "lse");
    require_floats(x, "lse", {heads, n});
    return x;
  }

  void compress(numbers const& sequences, std::uint32_t entries, double ratio, int over, double floor,
                bool keep) {
    for (std::uint32_t sequence : sequences) check_pages(sequence);
    kvmeld_budget const budget{entries, ratio, static_cast<kvmeld_scope>(over), floor, keep};
    run([&] {
      return kvmeld_compress(handle, sequences.data(), static_cast<std::uint32_t>(sequences.size()), budget);
    });
  }

  void attend(std::uint32_t layer, std::uint32_t sequence, nb::object queries, nb::object out, nb::object lse,
              float scale) {
    check_pages(sequence);
    rows_in const q = as_tensor<rows_in>(queries, "queries");
    auto const [heads, n] = heads_and_rows(q, "queries");
    require_rows(q, "queries", {heads, n, sizes.key_dim}, sizes.device);
    tensor const o = as_tensor<tensor>(out, "out");
    require_rows(o, "out", {heads, n, sizes.value_dim}, sizes.device);
    auto const sums = log_sums<tensor>(lse, heads, n);
    kvmeld_element const from = element_of(q, "queries"), to = element_of(o, "out");
    run([&, n = n] {
      return kvmeld_attend(handle, layer, sequence, static_cast<std::uint32_t>(n), from, q.data(),
                           q.stride(0), q.stride(1), to, o.data(), o.stride(0), o.stride(1),
                           sums ? static_cast<float*>(sums->data()) : nullptr, sums ? sums->stride(0) : 0,
                           scale);
    });
  }

  void lengths(std::uint32_t sequence, nb::ndarray<std::uint32_t, nb::ndim<2>, nb::c_contig> out) const {
    run([&] { return kvmeld_lengths(handle, sequence, out.data()); });
  }
  void degrees(std::uint32_t layer, std::uint32_t sequence, std::uint32_t head,
               nb::ndarray<float, nb::ndim<1>, nb::c_contig> out) const {
    run([&] {
      return kvmeld_degrees(handle, layer, sequence, head, out.data(),
                            static_cast<std::uint32_t>(out.shape(0)));
    });
  }
  void positions(std::uint32_t layer, std::uint32_t sequence, std::uint32_t head,
                 nb::ndarray<std::int32_t, nb::ndim<1>, nb::c_contig> out) const {
    run([&] {
      return kvmeld_positions(handle, layer, sequence, head, out.data(),
                              static_cast<std::uint32_t>(out.shape(0)));
    });
  }
  void log_degrees(std::uint32_t layer, std::uint32_t sequence, nb::object out) const {
    tensor const o = as_tensor<tensor>(out, "out");
    if (o.ndim() != 2 || o.shape(0) != query_heads())
      refuse("out", "of shape " + shape_text_of(o), "of " + std::to_string(query_heads()) + " rows");
    require_floats(o, "out", {o.shape(0), o.shape(1)});
    run([&] {
      return kvmeld_log_degrees(handle, layer, sequence, static_cast<float*>(o.data()), o.stride(0),
                                static_cast<std::uint32_t>(o.shape(1)));
    });
  }

  nb::tuple needs() const {
    kvmeld_observation when{};
    std::uint32_t rows = 0;
    std::int32_t queries = 0;
    run([&] { return kvmeld_needs(handle, &when, &rows, &queries); });
    return nb::make_tuple(static_cast<int>(when), rows, queries != 0);
  }

  nb::bytes save(std::uint32_t sequence) const {
    std::vector<char> bytes(ask<std::size_t>(kvmeld_saved_bytes, sequence));
    run([&] { return kvmeld_save(handle, sequence, bytes.data(), bytes.size()); });
    return nb::bytes(bytes.data(), bytes.size());
  }
  void resume(std::uint32_t sequence, nb::bytes saved) {
    run([&] { return kvmeld_resume(handle, sequence, saved.data(), saved.size()); });
  }
};

}  // namespace

NB_MODULE(_core, m) {
  if (kvmeld_abi() != KVMELD_C_ABI) throw nb::import_error("kvmeld: the library has another C interface");
  m.attr("__version__") = kvmeld_version();
  m.attr("cuda") = with_cuda;
  m.def("policies", [] { return std::string(kvmeld_policies()); });

  nb::class_<cache>(m, "Cache")
      .def(nb::init<nb::sequence, nb::sequence, std::string const&, std::uint32_t, int, int, int, bool, bool,
                    bool, std::uint32_t, std::uint32_t, std::uint32_t, nb::object, std::uintptr_t>(),
           nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg(),
           nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg().none(), nb::arg())
      .def("destroy", &cache::destroy)
      .def("policy", &cache::policy)
      .def("sizes",
           [](cache const& c) {
             return nb::make_tuple(c.sizes.layers, c.sizes.sequences, c.sizes.kv_heads, c.sizes.capacity,
                                   c.sizes.key_dim, c.sizes.value_dim, static_cast<int>(c.sizes.element),
                                   c.sizes.device);
           })
      .def("needs", &cache::needs)
      .def("open",
           [](cache& c, std::uint32_t sequence, std::uint32_t tokens, std::uint32_t frozen) {
             run([&] { return kvmeld_open(c.handle, sequence, tokens, frozen); });
           })
      .def("close",
           [](cache& c, std::uint32_t sequence) { run([&] { return kvmeld_close(c.handle, sequence); }); })
      .def("append", &cache::append)
      .def("commit", &cache::commit)
      .def("fork", &cache::fork)
      .def("truncate",
           [](cache& c, std::uint32_t sequence, std::uint32_t tokens) {
             run([&] { return kvmeld_truncate(c.handle, sequence, tokens); });
           })
      .def("renumber", &cache::renumber)
      .def("observe", &cache::observe, nb::arg(), nb::arg(), nb::arg(), nb::arg().none(), nb::arg())
      .def("observe_rows", &cache::observe_rows)
      .def("set_scores", &cache::set_scores)
      .def("compress", &cache::compress)
      .def("attend", &cache::attend, nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg().none(), nb::arg())
      .def("tokens", [](cache const& c, std::uint32_t s) { return c.ask<std::uint32_t>(kvmeld_tokens, s); })
      .def("longest", [](cache const& c, std::uint32_t s) { return c.ask<std::uint32_t>(kvmeld_longest, s); })
      .def("warnings",
           [](cache const& c, std::uint32_t s) { return c.ask<std::uint32_t>(kvmeld_warnings, s); })
      .def("lengths", &cache::lengths)
      .def("degrees", &cache::degrees)
      .def("positions", &cache::positions)
      .def("log_degrees", &cache::log_degrees)
      .def("save", &cache::save)
      .def("resume", &cache::resume);
}
