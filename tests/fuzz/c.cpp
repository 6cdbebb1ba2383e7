// The C interface: random calls on random handles, stale and foreign ones among them, with arguments that may
// be wrong. Each call gives the status that its handle and its arguments deserve, a text exactly where it is
// refused, and never touches memory that it was not given.
#include "choices.hpp"
#include "support/refusal_rule.hpp"

#include <kvmeld/kvmeld.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <memory>
#include <string>
#include <vector>

namespace {

using fuzz::choices;

constexpr std::uint32_t layers = 2, sequences = 3, kv_heads = 2, group = 2, query_heads = 4, key_dim = 4,
                        value_dim = 3, capacity = 24, page = 8;

/// Memory of exactly as many elements: AddressSanitizer sees what is read or written beside it.
template <class T> struct exact {
  std::unique_ptr<T[]> data;
  explicit exact(std::size_t n) : data(new T[n]()) {}
  T* get() const { return data.get(); }
};

/// An allocator that has no memory after some calls.
struct scarce {
  std::uint32_t left = std::numeric_limits<std::uint32_t>::max();
  std::size_t held = 0;
  static void* allocate(void* self, std::size_t bytes, std::size_t alignment) {
    auto& s = *static_cast<scarce*>(self);
    if (s.left == 0) return nullptr;
    --s.left;
    s.held += bytes;
    return std::aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment);
  }
  static void release(void* self, void* memory, std::size_t bytes) {
    static_cast<scarce*>(self)->held -= bytes;
    std::free(memory);
  }
};

/// A cache that may be alive, with the memory that it works on.
struct life {
  kvmeld_cache handle{0};
  bool alive = false;
  std::uint32_t tensors = 1;
  kvmeld_element element = KVMELD_FLOAT32;
  bool pages = false;
  scarce memory;
  exact<std::int32_t> table{sequences * (capacity / page)};
  std::vector<exact<std::uint32_t>> rows;  ///< aligned for every element
  std::vector<kvmeld_tensor> keys, values;
};

std::size_t bytes_of(kvmeld_element element) { return element == KVMELD_FLOAT32 ? 4 : 2; }

/// Tensors of a form, filled with small numbers.
void lay_out(life& x, choices& c) {
  x.keys.clear();
  x.values.clear();
  for (bool const is_key : {true, false}) {
    std::int64_t const d = is_key ? key_dim : value_dim;
    std::int64_t const head = d * (x.pages ? page : capacity), outer = head * kv_heads;
    std::int64_t const count = x.pages ? sequences * (capacity / page) : sequences, layer = outer * count;
    for (std::uint32_t i = 0; i < x.tensors; ++i) {
      std::size_t const elements = static_cast<std::size_t>(layer) * (x.tensors == 1 ? layers : 1);
      x.rows.emplace_back((elements * bytes_of(x.element) + 3) / 4);
      std::uint32_t* const words = x.rows.back().get();
      for (std::size_t w = 0; w < (elements * bytes_of(x.element) + 3) / 4 - 1; ++w)
        words[w] = x.element == KVMELD_FLOAT32
                       ? 0x3e000000u + static_cast<std::uint32_t>(w * 2654435761u % 0x1000000u)
                       : 0x3c003800u + static_cast<std::uint32_t>(w * 40503u % 0x3ff);
      kvmeld_tensor const t{words, layer, outer, head, d, 1};
      (is_key ? x.keys : x.values).push_back(t);
    }
  }
  if (c.chance(0.1)) x.keys[0].data = nullptr;
  if (c.chance(0.1)) x.values[x.tensors - 1].token_stride = 0;
}

char const* const policies[] = {
    "h2o",
    "chelsea sinks=1 recents=25%",
    "leverage_dropkv",
    "streaming_llm sinks=2",
    "kvzap threshold=0.5",
    "snapkv window=3 recents=3",
    "compactor",
    "expected_attention recents=2",
    "triattention rope=half_split rope_base=77",
    "compactor rope=interleaved frequencies=1,0.5 rotary_dim=4",
    "expected_attention rope=none",
    "triattention frequencies=1,nan",
    "attention_matching",
    "d2o",
    "cam",
    "kvmerger",
    "score=key_norm merge=drop",
    "score=key_difference identify=chunked_bipartite merge=degree_weighted chunk=8",
    "ems_collapsed",
    "score=h2o",
    "snapkv window",
    "snapkv window=0",
    "chunk=3",
    "",
    "chelsea chunk=99999999999",
    "score=none score=none"};

class session {
public:
  explicit session(choices& c) : c_(c), lives_(4) {}
  ~session() {
    for (auto& x : lives_) end(x);
  }

  void step() {
    life& x = lives_[c_.below(4)];
    if (!x.alive && c_.chance(0.7)) return create(x);
    handle_ = x.handle;
    deserves_handle_ = x.alive;
    if (c_.chance(0.08)) {
      handle_.id = c_.chance(0.5) ? 0 : c_.next();
      deserves_handle_ = false;
    } else if (!stale_.empty() && c_.chance(0.08)) {
      handle_ = c_.pick(stale_);
      deserves_handle_ = false;
    }
    call(x);
  }

private:
  /// A status of a function that takes a handle.
  kvmeld_status check(kvmeld_status s) { return check(s, deserves_handle_); }
  kvmeld_status check(kvmeld_status s, bool handle_is_right) {
    std::string const text = kvmeld_problem();
    fuzz::require((s == KVMELD_INVALID_HANDLE) == !handle_is_right,
                  "the status is not what the handle deserves");
    fuzz::require(s >= KVMELD_OK && s <= KVMELD_UNSUPPORTED && s != KVMELD_BUSY,
                  "a status that no call deserves");
    fuzz::require(text.empty() == (s == KVMELD_OK), "a text without a refusal, or a refusal without one");
    if (s == KVMELD_OK) return s;
    if (std::string const broken = support::broken_rule(text); !broken.empty())
      fuzz::fail(broken + ": " + text);
    return s;
  }
  std::uint32_t layer() { return c_.chance(0.05) ? c_.below(70000) : c_.below(layers); }
  std::uint32_t sequence() { return c_.chance(0.05) ? c_.below(70000) : c_.below(sequences); }
  std::uint32_t head() { return c_.chance(0.05) ? c_.below(70000) : c_.below(kv_heads); }
  kvmeld_element element(life const& x) {
    return c_.chance(0.05)  ? static_cast<kvmeld_element>(c_.below(9)) - 3
           : c_.chance(0.5) ? x.element
                            : static_cast<kvmeld_element>(c_.below(3));
  }

  void end(life& x) {
    if (!x.alive) return;
    check(kvmeld_destroy(x.handle), true);
    x.alive = false;
    fuzz::require(x.memory.held == 0, "a cache has kept memory of the allocator");
  }

  void create(life& x) {
    end(x);
    if (x.handle.id != 0) stale_.push_back(x.handle);
    x = life{};
    x.tensors = c_.chance(0.5) ? 1 : layers;
    x.element = static_cast<kvmeld_element>(c_.below(3));
    x.pages = c_.chance(0.4);
    lay_out(x, c_);
    for (std::uint32_t i = 0; i < sequences * (capacity / page); ++i)
      x.table.get()[i] = static_cast<std::int32_t>(i * 5 % (sequences * (capacity / page)));
    kvmeld_options o;
    check(kvmeld_options_init(&o, sizeof o), true);
    o.policy = c_.pick(policies);
    o.layers = layers;
    o.sequences = sequences;
    o.kv_heads = kv_heads;
    o.queries_per_kv_head = group;
    o.key_dim = key_dim;
    o.value_dim = value_dim;
    o.capacity = capacity;
    o.element = x.element;
    o.threads = 1;
    o.budgets_over = static_cast<kvmeld_scope>(c_.below(3));
    if (x.pages) {
      o.page_size = page;
      o.page_table = x.table.get();
      o.page_table_stride = capacity / page;
    }
    if (c_.chance(0.3)) o.allocator = {&scarce::allocate, &scarce::release, &x.memory};
    if (c_.chance(0.1)) x.memory.left = c_.below(6);
    switch (c_.below(24)) {  // something else than usual, and often wrong
    case 0: o.bytes = c_.chance(0.5) ? c_.below(300) : 8 * c_.below(24); break;
    case 1: o.scope = static_cast<kvmeld_scope>(c_.below(5)) - 1; break;
    case 2: o.bias = static_cast<kvmeld_bias>(c_.below(5)) - 1; break;
    case 3: o.layers = c_.below(70000); break;
    case 4: o.capacity = c_.below(70000); break;
    case 5: o.padded = 1; break;
    case 6: o.zero_emptied = 1; break;
    case 7: o.ignore_degree = 1; break;
    case 8: o.device = static_cast<std::int32_t>(c_.below(5)) - 2; break;
    case 9: o.element = static_cast<kvmeld_element>(c_.below(9)) - 3; break;
    case 10: o.page_table_stride = static_cast<std::int64_t>(c_.below(9)) - 4; break;
    case 11: o.page_table = nullptr; break;
    case 12: o.queries_per_kv_head = c_.below(70000); break;
    case 13: o.policy = nullptr; break;
    case 14:
    case 15: o.pool_pages = sequences * (capacity / page); break;
    default: break;
    }
    // Memory is for these extents and this element; what asks for more is only asked for its bytes.
    bool const fits = o.layers == layers && o.capacity == capacity && o.queries_per_kv_head == group &&
                      o.element == x.element && o.page_table_stride != -3 && o.page_table_stride != -4 &&
                      (o.page_table_stride < 4 || !x.pages);
    float const table[] = {1.0f, 0.5f, c_.chance(0.1) ? std::numeric_limits<float>::infinity() : 0.25f,
                           0.125f};
    kvmeld_rope const rope{static_cast<kvmeld_pairing>(c_.below(c_.chance(0.1) ? 9 : 3)),
                           c_.chance(0.7) ? 0 : c_.below(20), c_.chance(0.1) ? -1.0 : 0.0, 0.0,
                           c_.chance(0.5) && key_dim <= 8 ? table : nullptr};
    if (c_.chance(0.7)) o.rope = &rope;
    std::size_t bytes = 0;
    kvmeld_status const asked = check(kvmeld_bytes(&o, &bytes), true);
    std::int32_t rotation = 0, weights = 0;
    check(kvmeld_asks(o.policy, c_.chance(0.9) ? &rotation : nullptr, c_.chance(0.9) ? &weights : nullptr),
          true);
    kvmeld_budget const budget{c_.below(40), c_.chance(0.5) ? 0.0 : 0.5,
                               static_cast<kvmeld_scope>(c_.below(4)), 0.1, 0};
    std::uint32_t least = 0;
    kvmeld_status const sound = check(kvmeld_check(&o, nullptr, c_.below(100), &least), true);
    fuzz::require((sound == KVMELD_OK) == (asked == KVMELD_OK), "kvmeld_check and kvmeld_bytes differ");
    check(kvmeld_check(&o, &budget, c_.below(100), c_.chance(0.5) ? &least : nullptr), true);
    if (!fits) return;
    kvmeld_status const made =
        check(kvmeld_create(c_.chance(0.02) ? nullptr : &o, c_.chance(0.02) ? nullptr : x.keys.data(),
                            x.values.data(), c_.chance(0.02) ? 3 : x.tensors, &x.handle),
              true);
    x.alive = made == KVMELD_OK;
    if (x.alive && o.allocator.allocate != nullptr && o.bytes == sizeof o) {
      fuzz::require(asked == KVMELD_OK && x.memory.held == bytes, "kvmeld_bytes said something else");
    }
  }

  void call(life& x) {
    std::uint32_t const l = layer(), q = sequence(), h = head();
    std::uint32_t const list[2] = {q, sequence()};
    std::uint32_t const counts[2] = {c_.below(8), c_.below(8)};
    std::uint32_t const n = c_.chance(0.8) ? 1 : c_.below(3);
    std::uint32_t const* const sequences_of_call = c_.chance(0.02) ? nullptr : list;
    switch (c_.below(29)) {
    case 27: {
      kvmeld_rope const rope{static_cast<std::int32_t>(c_.below(4)), c_.below(6), 0.0, 0.0, nullptr};
      std::int32_t const offset = static_cast<std::int32_t>(c_.below(40)) - 20;
      check(kvmeld_shift(handle_, q, offset, c_.chance(0.5) ? nullptr : &rope,
                         static_cast<std::int32_t>(c_.below(30)) - 1));
      return;
    }
    case 28: {
      std::int32_t const first = static_cast<std::int32_t>(c_.below(30)) - 1;
      check(kvmeld_drop_positions(handle_, q, first, first + static_cast<std::int32_t>(c_.below(12)) - 1));
      return;
    }
    case 26: {
      kvmeld_rope const rope{static_cast<std::int32_t>(c_.below(4)), c_.below(6), 0.0, 0.0, nullptr};
      check(kvmeld_renumber(handle_, q, c_.chance(0.3) ? nullptr : &rope));
      return;
    }
    case 0:
    case 1: return create(x);
    case 2:
      if (c_.chance(0.8)) return;
      if (check(kvmeld_destroy(handle_)) == KVMELD_OK) {
        x.alive = false;
        stale_.push_back(x.handle);
        fuzz::require(x.memory.held == 0, "a cache has kept memory of the allocator");
      }
      return;
    case 3:
    case 4:
      check(kvmeld_open(handle_, q, c_.below(c_.chance(0.9) ? capacity + 1 : 70000), c_.below(3)));
      return;
    case 5: check(kvmeld_close(handle_, q)); return;
    case 6:
    case 7: check(kvmeld_append(handle_, sequences_of_call, counts, n)); return;
    case 8:
    case 9: check(kvmeld_commit(handle_, sequences_of_call, counts, n)); return;
    case 10: check(kvmeld_fork(handle_, q, sequence())); return;
    case 11: check(kvmeld_truncate(handle_, q, c_.below(40))); return;
    case 12: {
      kvmeld_observation when;
      std::uint32_t rows;
      std::int32_t queries;
      check(kvmeld_needs(handle_, &when, &rows, &queries));
      return;
    }
    case 13:
    case 14: return observe(x, l, q);
    case 15: {
      std::uint32_t const m = c_.below(6);
      exact<float> const rows(std::size_t{query_heads} * m * capacity);
      for (std::size_t i = 0; i < std::size_t{query_heads} * m * capacity; ++i)
        rows.get()[i] = static_cast<float>(i % 13) / 13.0f;
      check(kvmeld_observe_rows(handle_, l, q, m, c_.chance(0.05) ? nullptr : rows.get(), m * capacity,
                                capacity));
      return;
    }
    case 16: {
      exact<float> const scores(kv_heads * capacity);
      for (std::size_t i = 0; i < kv_heads * capacity; ++i)
        scores.get()[i] = static_cast<float>(i * 7 % 11) / 11.0f;
      check(kvmeld_set_scores(handle_, l, q, c_.chance(0.05) ? nullptr : scores.get(), capacity));
      return;
    }
    case 17:
    case 18: {
      kvmeld_budget b{c_.below(30), 0.0, KVMELD_HEAD, c_.uniform(), static_cast<std::int32_t>(c_.below(2))};
      if (c_.chance(0.3)) b.entries = 0, b.ratio = c_.uniform() * 1.2 - 0.1;
      if (c_.chance(0.2)) b.over = static_cast<kvmeld_scope>(c_.below(5)) - 1;
      check(kvmeld_compress(handle_, sequences_of_call, n, b));
      return;
    }
    case 19: {
      std::uint32_t tokens = 0, longest = 0, warnings = 0;
      check(kvmeld_tokens(handle_, q, &tokens));
      check(kvmeld_longest(handle_, q, c_.chance(0.05) ? nullptr : &longest));
      check(kvmeld_warnings(handle_, q, &warnings));
      exact<std::uint32_t> const lengths(layers * kv_heads);
      if (check(kvmeld_lengths(handle_, q, lengths.get())) == KVMELD_OK) {
        std::uint32_t const most = *std::max_element(lengths.get(), lengths.get() + layers * kv_heads);
        fuzz::require(longest == most || longest == 0, "the longest track is not the longest");
        fuzz::require(most <= capacity, "a track is longer than the capacity");
      }
      return;
    }
    case 20: {
      std::uint32_t const room = c_.below(capacity + 1);
      exact<float> const degrees(room);
      exact<std::int32_t> const positions(room);
      check(kvmeld_degrees(handle_, l, q, h, c_.chance(0.05) ? nullptr : degrees.get(), room));
      check(kvmeld_positions(handle_, l, q, h, positions.get(), room));
      return;
    }
    case 21: {
      std::uint32_t const columns = c_.below(2 * capacity);
      exact<float> const bias(std::size_t{query_heads} * columns);
      check(kvmeld_log_degrees(handle_, l, q, bias.get(), columns, columns));
      return;
    }
    case 22: return attend(x, l, q);
    case 23: return save(q);
    case 24: {
      if (handle_.id != x.handle.id || !x.alive) return;
      life moved;
      moved.tensors = c_.chance(0.5) ? 1 : layers;
      moved.element = x.element;
      moved.pages = x.pages;
      lay_out(moved, c_);
      if (check(kvmeld_rebind(handle_, moved.keys.data(), moved.values.data(), moved.tensors)) != KVMELD_OK)
        return;
      x.rows = std::move(moved.rows);  // the old ones are gone
      x.keys = moved.keys;
      x.values = moved.values;
      x.tensors = moved.tensors;
      return;
    }
    default: {
      char const* name = nullptr;
      if (check(kvmeld_policy(handle_, &name)) == KVMELD_OK)
        fuzz::require(*name != '\0', "a policy has no name");
    }
    }
  }

  void observe(life const& x, std::uint32_t l, std::uint32_t q) {
    kvmeld_element const e = element(x);
    std::uint32_t const n = c_.chance(0.05) ? c_.below(70000) : c_.below(20);
    exact<std::uint32_t> const queries(std::size_t{query_heads} * n * key_dim);
    exact<float> const lse(std::size_t{query_heads} * n);
    check(kvmeld_observe(handle_, l, q, n, e, c_.chance(0.05) ? nullptr : queries.get(),
                         std::int64_t{n} * key_dim, key_dim, c_.chance(0.6) ? nullptr : lse.get(), n,
                         c_.chance(0.9) ? 0.0f : 0.3f));
  }
  void attend(life const& x, std::uint32_t l, std::uint32_t q) {
    kvmeld_element const e = element(x), to = c_.chance(0.6) ? KVMELD_FLOAT32 : element(x);
    std::uint32_t const n = c_.chance(0.05) ? c_.below(70000) : c_.below(20);
    exact<std::uint32_t> const queries(std::size_t{query_heads} * n * key_dim);
    exact<std::uint32_t> const out(std::size_t{query_heads} * n * value_dim);
    exact<float> const lse(std::size_t{query_heads} * n);
    check(kvmeld_attend(handle_, l, q, n, e, queries.get(), std::int64_t{n} * key_dim, key_dim, to,
                        c_.chance(0.05) ? nullptr : out.get(), std::int64_t{n} * value_dim, value_dim,
                        c_.chance(0.5) ? nullptr : lse.get(), n, 0.0f));
  }
  void save(std::uint32_t q) {
    std::size_t bytes = 0;
    if (check(kvmeld_saved_bytes(handle_, q, &bytes)) != KVMELD_OK) return;
    std::size_t const room = c_.chance(0.1) ? bytes - 1 : bytes;
    exact<unsigned char> const saved(room);
    if (check(kvmeld_save(handle_, q, saved.get(), room)) != KVMELD_OK) return;
    if (c_.chance(0.5))
      saved.get()[c_.below(static_cast<std::uint32_t>(room))] ^= static_cast<unsigned char>(c_.below(256));
    check(kvmeld_resume(handle_, sequence(), saved.get(), c_.chance(0.1) ? c_.below(64) % (room + 1) : room));
  }

  choices& c_;
  std::vector<life> lives_;
  std::vector<kvmeld_cache> stale_;
  kvmeld_cache handle_{0};
  bool deserves_handle_ = false;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(std::uint8_t const* data, std::size_t size) {
  choices c(data, size);
  session s(c);
  while (!c.empty()) s.step();
  return 0;
}
