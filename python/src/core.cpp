// The extension module kvmeld._core: the calls of kvmeld.h on tensors of Python. cache.py documents them.
#include <built.hpp>  // of the library

#include <kvmeld/kvmeld.h>

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <tuple>
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

/// Takes the GIL back. A thread that asks for it once the interpreter has begun to end never gets it.
/// Python 3.14 leaves the thread waiting; versions before end it, which unwinds its stack. A frame of C++
/// that must not throw would then abort the process, and destructors would touch objects of Python without
/// the GIL. So the thread waits here for the end of the process, as in 3.14.
void take_gil(PyThreadState* thread) {
  try {
    PyEval_RestoreThread(thread);
  } catch (...) {
    for (;;) std::this_thread::sleep_for(std::chrono::hours(1));
  }
}

/// Runs a call of the library without the GIL. A status becomes an exception with the library's text.
template <class Call> void run(Call call) {
  std::string problem;
  PyThreadState* const thread = PyEval_SaveThread();
  kvmeld_status const status = call();  // throws nothing
  char const* const text = status != KVMELD_OK ? kvmeld_problem() : "";
  take_gil(thread);
  if (status == KVMELD_OK) return;
  problem = text;
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

/// How keys lie rotated: the pairing, the base, and frequencies, which are empty or one for each pair of
/// channels that rotate.
using rotation = std::tuple<int, double, std::vector<float>>;
/// The same for the library, which reads the frequencies of `r`.
kvmeld_rope rope_of(rotation const& r) {
  auto const& [pairing, base, frequencies] = r;
  kvmeld_rope rope{};
  rope.pairing = pairing;
  rope.base = base;
  if (!frequencies.empty()) {
    rope.rotary_dim = static_cast<std::uint32_t>(2 * frequencies.size());
    rope.frequencies = frequencies.data();
  }
  return rope;
}

/// Sink logits: float32 [layers, query heads].
using sinks_array = nb::ndarray<float const, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
/// softcap, window, window_sinks.
using attention = std::tuple<float, std::uint32_t, std::int32_t>;

/// What was learned of a model: float32 [layers, kv_heads, 2 * key_dim + 2].
using learned_array = nb::ndarray<float const, nb::ndim<3>, nb::c_contig, nb::device::cpu>;
/// The same for the library, which reads the array.
kvmeld_learned learned_of(learned_array const& x) {
  kvmeld_learned learned{};
  learned.layers = static_cast<std::uint32_t>(x.shape(0));
  learned.kv_heads = static_cast<std::uint32_t>(x.shape(1));
  if (x.shape(2) < 4 || x.shape(2) % 2 != 0)
    refuse("learned", "of shape " + shape_text_of(x), "[layers, kv_heads, 2 * key_dim + 2]");
  learned.key_dim = static_cast<std::uint32_t>(x.shape(2) / 2 - 1);
  learned.weights = x.data();
  return learned;
}

/// What cache.py tells of a tensor of PyTorch in host memory: the tensor, its address, extents, strides in
/// elements, the code of its type as in DLPack, and its bits.
template <class Array> Array described_tensor(nb::tuple const& t) {
  auto const extents = nb::cast<std::vector<std::size_t>>(t[2]);
  auto const strides = nb::cast<std::vector<std::int64_t>>(t[3]);
  nb::dlpack::dtype const type{nb::cast<std::uint8_t>(t[4]), nb::cast<std::uint8_t>(t[5]), 1};
  return Array(reinterpret_cast<void*>(nb::cast<std::uintptr_t>(t[1])), extents.size(), extents.data(), t[0],
               strides.data(), type);
}

/// A tensor of an argument, in place: never a copy.
template <class Array> Array as_tensor(nb::handle object, std::string const& name) {
  if (nb::isinstance<nb::tuple>(object)) return described_tensor<Array>(nb::borrow<nb::tuple>(object));
  Array x;
  bool const exported = PyCapsule_CheckExact(object.ptr());
  if (!nb::try_cast<Array>(object, x, false) || !x.is_valid())
    refuse(name,
           "a " + (exported ? "tensor of a kind that it cannot take"
                            : nb::cast<std::string>(object.type().attr("__name__"))),
           std::is_same_v<Array, tensor> ? "a writable tensor: of NumPy, or with DLPack"
                                         : "a tensor: of NumPy, or with DLPack");
  return x;
}

/// The tensors that a cache holds, as they were when it was made: where their elements lie, and their shape.
class held_tensors {
public:
  /// An object with a buffer, such as an array of NumPy. A negative layer: it holds all layers. Returns false
  /// if it has none.
  bool add_buffer(std::string const& name, int layer, nb::object object) {
    item x{name, layer, std::move(object), nullptr, {}, {}, 0, {}};
    Py_buffer view{};
    if (PyObject_GetBuffer(x.object.ptr(), &view, PyBUF_STRIDES) != 0) {
      PyErr_Clear();
      return false;
    }
    x.data = view.buf;
    x.element = view.itemsize;
    x.extents.assign(view.shape, view.shape + view.ndim);
    x.strides.assign(view.strides, view.strides + view.ndim);
    PyBuffer_Release(&view);
    items_.push_back(std::move(x));
    return true;
  }
  /// A tensor that calls without arguments tell about. They are asked now, and have to tell the same later.
  void add_calls(std::string const& name, int layer, nb::list calls) {
    item x{name, layer, {}, nullptr, {}, {}, 0, {}};
    for (nb::handle call : calls) x.calls.emplace_back(nb::borrow(call), call());
    items_.push_back(std::move(x));
  }
  /// The name of a tensor that is not as it was, among those of a layer, or with a negative layer of all;
  /// None.
  std::optional<std::string> changed(int layer) const {
    for (item const& x : items_) {
      if ((layer < 0 || x.layer < 0 || x.layer == layer) && !is_same(x)) return x.name;
    }
    return {};
  }
  void clear() { items_.clear(); }

private:
  struct item {
    std::string name;
    int layer;
    nb::object object;
    void const* data;
    std::vector<Py_ssize_t> extents, strides;  ///< strides in bytes
    Py_ssize_t element;
    std::vector<std::pair<nb::object, nb::object>> calls;
  };

  static bool is_same(item const& x) {
    for (auto const& [call, told] : x.calls) {
      nb::object const now = nb::steal(PyObject_CallObject(call.ptr(), nullptr));
      int const same = now.is_valid() ? PyObject_RichCompareBool(now.ptr(), told.ptr(), Py_EQ) : -1;
      if (same < 0) PyErr_Clear();  // it does not even tell any more
      if (same != 1) return false;
    }
    if (!x.object.is_valid()) return true;
    Py_buffer view{};
    if (PyObject_GetBuffer(x.object.ptr(), &view, PyBUF_STRIDES) != 0) {
      PyErr_Clear();
      return false;
    }
    auto const n = static_cast<std::size_t>(view.ndim);
    bool const same = view.buf == x.data && view.itemsize == x.element && n == x.extents.size() &&
                      std::equal(x.extents.begin(), x.extents.end(), view.shape) &&
                      std::equal(x.strides.begin(), x.strides.end(), view.strides);
    PyBuffer_Release(&view);
    return same;
  }

  std::vector<item> items_;
};

/// Where the elements of a tensor lie that has no buffer: address, extents and strides.
nb::tuple extent_of(nb::handle object) {
  rows_in const x = as_tensor<rows_in>(object, "the tensor");
  nb::list numbers;
  for (std::size_t i = 0; i < x.ndim(); ++i) {
    numbers.append(x.shape(i));
    numbers.append(x.stride(i));
  }
  return nb::make_tuple(reinterpret_cast<std::uintptr_t>(x.data()), nb::tuple(numbers));
}

struct cache;

/// One call of this module on a cache. It may make several calls of the library, with the GIL released within
/// each of them: a size that it reads holds until its end, because another thread's call is refused
/// meanwhile.
class section {
public:
  section(cache const& of, char const* call);
  ~section() { busy_.store(false, std::memory_order_release); }
  section(section const&) = delete;

private:
  std::atomic<bool>& busy_;
};

struct cache {
  kvmeld_cache handle{0};
  mutable std::atomic<bool> busy{false};  ///< a section is under way
  kvmeld_options sizes{};
  std::vector<tensor> keys, values;  // they keep the memory alive
  std::optional<rows_in> pages;

  cache(nb::sequence k, nb::sequence v, std::string const& policy, std::uint32_t group, int scope, int over,
        int bias, bool ignore_degree, bool padded, bool zero_emptied, std::uint32_t threads,
        std::uint32_t first_layer, std::uint32_t first_kv_head, nb::object page_table, std::uintptr_t stream,
        std::optional<rotation> const& turned, std::optional<learned_array> const& learned,
        attention const& told, std::optional<sinks_array> const& sinks) {
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
    if (policy.find('\0') != std::string::npos) refuse("policy", "a text with NUL", "without");
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
    kvmeld_rope const rope = turned ? rope_of(*turned) : kvmeld_rope{};
    if (turned) sizes.rope = &rope;
    kvmeld_learned const weights = learned ? learned_of(*learned) : kvmeld_learned{};
    if (learned) sizes.learned = &weights;
    if (sinks && (sinks->shape(0) != sizes.layers || sinks->shape(1) != sizes.kv_heads * group))
      refuse("sinks", "of shape " + shape_text_of(*sinks),
             "of shape " + shape_text({sizes.layers, sizes.kv_heads * group}) + " (layers, query heads)");
    kvmeld_attention const computed{std::get<0>(told), std::get<1>(told), std::get<2>(told),
                                    sinks ? sinks->data() : nullptr};
    sizes.attention = &computed;
    run([&] {
      return kvmeld_create(&sizes, k_tensors.data(), v_tensors.data(),
                           static_cast<std::uint32_t>(keys.size()), &handle);
    });
    sizes.policy = nullptr;
    sizes.rope = nullptr;
    sizes.learned = nullptr;
    sizes.attention = nullptr;
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
    section const only(*this, "destroy");
    run([&] { return kvmeld_destroy(handle); });
    handle.id = 0;
    keys.clear();
    values.clear();
    pages.reset();
  }
  std::string policy() const {
    section const only(*this, "policy");
    return ask<char const*>(kvmeld_policy);
  }

  void fork(std::uint32_t from, std::uint32_t into) {
    section const only(*this, "fork");
    check_pages(from);
    if (has_readable_pages() && from < sizes.sequences)
      check_pages(into, ask<std::uint32_t>(kvmeld_longest, from));
    run([&] { return kvmeld_fork(handle, from, into); });
  }
  void append(numbers const& sequences, numbers const& counts) {
    section const only(*this, "append");
    each(kvmeld_append, sequences, counts, "counts");
  }
  void commit(numbers const& sequences, numbers const& counts) {
    section const only(*this, "commit");
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
  void renumber(std::uint32_t sequence, rotation const& turned) {
    section const only(*this, "renumber");
    check_pages(sequence);
    kvmeld_rope const rope = rope_of(turned);
    run([&] { return kvmeld_renumber(handle, sequence, &rope); });
  }
  void shift(std::uint32_t sequence, std::int32_t offset, rotation const& turned, std::int32_t first) {
    section const only(*this, "shift");
    check_pages(sequence);
    kvmeld_rope const rope = rope_of(turned);
    run([&] { return kvmeld_shift(handle, sequence, offset, &rope, first); });
  }
  void drop_positions(std::uint32_t sequence, std::int32_t first, std::int32_t last) {
    section const only(*this, "drop_positions");
    check_pages(sequence);
    run([&] { return kvmeld_drop_positions(handle, sequence, first, last); });
  }
  void observe(std::uint32_t layer, std::uint32_t sequence, nb::object queries, nb::object lse, float scale) {
    section const only(*this, "observe");
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
    section const only(*this, "observe_rows");
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
    section const only(*this, "set_scores");
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
    section const only(*this, "compress");
    for (std::uint32_t sequence : sequences) check_pages(sequence);
    kvmeld_budget const budget{entries, ratio, static_cast<kvmeld_scope>(over), floor, keep};
    run([&] {
      return kvmeld_compress(handle, sequences.data(), static_cast<std::uint32_t>(sequences.size()), budget);
    });
  }

  void attend(std::uint32_t layer, std::uint32_t sequence, nb::object queries, nb::object out, nb::object lse,
              float scale) {
    section const only(*this, "attend");
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
    section const only(*this, "lengths");
    if (out.shape(0) != sizes.layers || out.shape(1) != sizes.kv_heads)
      refuse("out", "of shape " + shape_text_of(out),
             "of shape " + shape_text({sizes.layers, sizes.kv_heads}));
    run([&] { return kvmeld_lengths(handle, sequence, out.data()); });
  }
  nb::bytes degrees(std::uint32_t layer, std::uint32_t sequence, std::uint32_t head) const {
    section const only(*this, "degrees");
    return of_track<float>(kvmeld_degrees, layer, sequence, head);
  }
  nb::bytes positions(std::uint32_t layer, std::uint32_t sequence, std::uint32_t head) const {
    section const only(*this, "positions");
    return of_track<std::int32_t>(kvmeld_positions, layer, sequence, head);
  }
  /// What a call tells of each entry of a track: numbers, as bytes.
  template <class Number, class Call>
  nb::bytes of_track(Call call, std::uint32_t layer, std::uint32_t sequence, std::uint32_t head) const {
    std::vector<std::uint32_t> lengths(std::size_t{sizes.layers} * sizes.kv_heads);
    run([&] { return kvmeld_lengths(handle, sequence, lengths.data()); });
    bool const known = layer < sizes.layers && head < sizes.kv_heads;  // else the call refuses
    std::uint32_t const length = known ? lengths[std::size_t{layer} * sizes.kv_heads + head] : 0;
    std::vector<Number> out(length);
    run([&] { return call(handle, layer, sequence, head, out.data(), length); });
    return nb::bytes(reinterpret_cast<char const*>(out.data()), out.size() * sizeof(Number));
  }
  void log_degrees(std::uint32_t layer, std::uint32_t sequence, nb::object out) const {
    section const only(*this, "log_degrees");
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
    section const only(*this, "needs");
    kvmeld_observation when{};
    std::uint32_t rows = 0;
    std::int32_t queries = 0;
    run([&] { return kvmeld_needs(handle, &when, &rows, &queries); });
    return nb::make_tuple(static_cast<int>(when), rows, queries != 0);
  }

  nb::bytes save(std::uint32_t sequence) const {
    section const only(*this, "save");
    std::vector<char> bytes(ask<std::size_t>(kvmeld_saved_bytes, sequence));
    run([&] { return kvmeld_save(handle, sequence, bytes.data(), bytes.size()); });
    return nb::bytes(bytes.data(), bytes.size());
  }
  void resume(std::uint32_t sequence, nb::bytes saved) {
    section const only(*this, "resume");
    run([&] { return kvmeld_resume(handle, sequence, saved.data(), saved.size()); });
  }
};

/// Options for a model whose sizes are layers, KV heads, queries per KV head, key_dim and value_dim.
kvmeld_options model_options(std::string const& policy, std::vector<std::uint32_t> const& sizes, int element,
                             int scope, int over) {
  kvmeld_options o;
  run([&] { return kvmeld_options_init(&o, sizeof o); });
  o.policy = policy.c_str();
  o.layers = sizes.at(0);
  o.kv_heads = sizes.at(1);
  o.queries_per_kv_head = sizes.at(2);
  o.key_dim = sizes.at(3);
  o.value_dim = sizes.at(4);
  o.element = element;
  o.scope = scope;
  o.budgets_over = over;
  return o;
}

/// Refuses options, and a budget for a sequence of `tokens` tokens, as Cache and compress would; returns the
/// fewest entries that a track can be left. No entries and a ratio of 0: no budget.
std::uint32_t check(std::string const& policy, std::vector<std::uint32_t> const& sizes, int element,
                    int scope, int over, std::optional<rotation> const& turned,
                    std::optional<learned_array> const& learned, std::uint32_t entries, double ratio,
                    int among, double floor, std::uint32_t tokens) {
  kvmeld_options o = model_options(policy, sizes, element, scope, over);
  o.sequences = o.capacity = 1;
  o.threads = 1;
  kvmeld_rope const rope = turned ? rope_of(*turned) : kvmeld_rope{};
  if (turned) o.rope = &rope;
  kvmeld_learned const weights = learned ? learned_of(*learned) : kvmeld_learned{};
  if (learned) o.learned = &weights;
  kvmeld_budget const budget{entries, ratio, among, floor, 0};
  bool const given = entries != 0 || ratio != 0.0;
  std::uint32_t least = 0;
  run([&] { return kvmeld_check(&o, given ? &budget : nullptr, tokens, &least); });
  return least;
}

/// The bytes of ledger and workspace of a cache. What the policy has to be told takes none of them, so
/// anything stands in for it, and for the page table where the pools have pages.
std::size_t bytes_of(std::string const& policy, std::vector<std::uint32_t> const& sizes,
                     std::uint32_t sequences, std::uint32_t capacity, int element, int scope, int over,
                     bool padded, std::uint32_t threads, std::uint32_t page_size, std::uint32_t pool_pages) {
  kvmeld_options o = model_options(policy, sizes, element, scope, over);
  std::int32_t const no_page = 0;
  if (page_size != 0) {
    o.page_size = page_size;
    o.page_table = &no_page;
    o.page_table_stride = capacity;
  }
  o.pool_pages = pool_pages;
  o.sequences = sequences;
  o.capacity = capacity;
  o.padded = padded;
  o.threads = threads;
  std::int32_t turns = 0, learns = 0;
  run([&] { return kvmeld_asks(o.policy, &turns, &learns); });
  kvmeld_rope const rope{KVMELD_ROPE_HALF_SPLIT, 0, 0.0, 0.0, nullptr};
  if (turns != 0) o.rope = &rope;
  std::vector<float> zeros;
  kvmeld_learned weights{o.layers, o.kv_heads, o.key_dim, nullptr};
  if (learns != 0) {
    zeros.resize(std::size_t{o.layers} * o.kv_heads * (2 * std::size_t{o.key_dim} + 2));
    weights.weights = zeros.data();
    o.learned = &weights;
  }
  std::size_t out = 0;
  run([&] { return kvmeld_bytes(&o, &out); });
  return out;
}

section::section(cache const& of, char const* call) : busy_(of.busy) {
  if (busy_.exchange(true, std::memory_order_acquire)) {
    std::string const text = std::string("kvmeld_") + call +
                             ": cache is in use; it must be free: one call at a time works on a cache";
    throw nb::value_error(text.c_str());
  }
}

}  // namespace

NB_MODULE(_core, m) {
  if (kvmeld_abi() != KVMELD_C_ABI) throw nb::import_error("kvmeld: the library has another C interface");
  nb::set_leak_warnings(false);  // daemon threads keep their caches when the interpreter ends
  m.attr("__version__") = kvmeld_version();
  m.attr("cuda") = with_cuda;
  m.def("policies", [] { return std::string(kvmeld_policies()); });
  m.def("asks", [](std::string const& policy) {
    std::int32_t rope = 0, learned = 0;
    run([&] { return kvmeld_asks(policy.c_str(), &rope, &learned); });
    return nb::make_tuple(rope != 0, learned != 0);
  });
  m.def("check", &check, nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg().none(),
        nb::arg().none(), nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg());
  m.def("bytes", &bytes_of);
  m.def("extent", &extent_of);

  nb::class_<held_tensors>(m, "Held")
      .def(nb::init<>())
      .def("add_buffer", &held_tensors::add_buffer)
      .def("add_calls", &held_tensors::add_calls)
      .def("changed", &held_tensors::changed)
      .def("clear", &held_tensors::clear);

  nb::class_<cache>(m, "Cache")
      .def(nb::init<nb::sequence, nb::sequence, std::string const&, std::uint32_t, int, int, int, bool, bool,
                    bool, std::uint32_t, std::uint32_t, std::uint32_t, nb::object, std::uintptr_t,
                    std::optional<rotation> const&, std::optional<learned_array> const&, attention const&,
                    std::optional<sinks_array> const&>(),
           nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg(),
           nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg().none(), nb::arg(), nb::arg().none(),
           nb::arg().none(), nb::arg(), nb::arg().none())
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
             section const only(c, "open");
             run([&] { return kvmeld_open(c.handle, sequence, tokens, frozen); });
           })
      .def("close",
           [](cache& c, std::uint32_t sequence) {
             section const only(c, "close");
             run([&] { return kvmeld_close(c.handle, sequence); });
           })
      .def("append", &cache::append)
      .def("commit", &cache::commit)
      .def("fork", &cache::fork)
      .def("truncate",
           [](cache& c, std::uint32_t sequence, std::uint32_t tokens) {
             section const only(c, "truncate");
             run([&] { return kvmeld_truncate(c.handle, sequence, tokens); });
           })
      .def("drop_positions", &cache::drop_positions)
      .def("shift", &cache::shift)
      .def("renumber", &cache::renumber)
      .def("observe", &cache::observe, nb::arg(), nb::arg(), nb::arg(), nb::arg().none(), nb::arg())
      .def("observe_rows", &cache::observe_rows)
      .def("set_scores", &cache::set_scores)
      .def("compress", &cache::compress)
      .def("attend", &cache::attend, nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg().none(), nb::arg())
      .def("tokens",
           [](cache const& c, std::uint32_t s) {
             section const only(c, "tokens");
             return c.ask<std::uint32_t>(kvmeld_tokens, s);
           })
      .def("longest",
           [](cache const& c, std::uint32_t s) {
             section const only(c, "longest");
             return c.ask<std::uint32_t>(kvmeld_longest, s);
           })
      .def("warnings",
           [](cache const& c, std::uint32_t s) {
             section const only(c, "warnings");
             return c.ask<std::uint32_t>(kvmeld_warnings, s);
           })
      .def("lengths", &cache::lengths)
      .def("degrees", &cache::degrees)
      .def("positions", &cache::positions)
      .def("log_degrees", &cache::log_degrees)
      .def("save", &cache::save)
      .def("resume", &cache::resume);
}
