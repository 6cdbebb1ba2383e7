// ld, st, atom, red, cvta, mapa, and asynchronous copies.
#include "decode.hpp"

#include <type_traits>

namespace emulator {
namespace {

enum space : std::uint16_t { generic, global, shared, local, parameter, cluster_shared };

std::byte* address(thread& t, instruction const& i, std::uint16_t slot, space s) {
  if (s == shared)
    return t.where->shared() + static_cast<std::uint32_t>(t.r[slot] + static_cast<std::uint64_t>(i.number));
  if (s == cluster_shared)
    return t.where->of().in_window(
        *t.where, static_cast<std::uint32_t>(t.r[slot] + static_cast<std::uint64_t>(i.number)));
  return reinterpret_cast<std::byte*>(t.r[slot] + static_cast<std::uint64_t>(i.number));
}
space space_of(instruction const& i) { return static_cast<space>(i.detail >> 1 & 7); }

// Vectors in slots 0 to 7, the address in slot 8.
template <class T, int N> void load(thread& t, instruction const& i) {
  std::byte* const p = address(t, i, i.slot[8], space_of(i));
  t.where->access(t, i, memory::access::load, p, N * sizeof(T), nullptr);
  T x[N];
  std::memcpy(x, p, sizeof x);
  for (int k = 0; k < N; ++k) {
    if (i.slot[k] == instruction::none) continue;
    if constexpr (std::is_signed_v<T> && std::is_integral_v<T>)
      put<std::int64_t>(t, i.slot[k], x[k]);
    else
      put<T>(t, i.slot[k], x[k]);
  }
}
template <class T, int N> void store(thread& t, instruction const& i) {
  std::byte* const p = address(t, i, i.slot[8], space_of(i));
  T x[N];
  for (int k = 0; k < N; ++k) x[k] = get<T>(t, i.slot[k]);
  t.where->access(t, i, memory::access::store, p, N * sizeof(T), x);
  std::memcpy(p, x, sizeof x);
}

template <class F> handler of_stored(type t, F f) {
  switch (t) {
  case type::u8: return f(tag<std::uint8_t>{});
  case type::s8: return f(tag<std::int8_t>{});
  case type::f16:
  case type::bf16: return f(tag<std::uint16_t>{});
  default: return of_number(t, f);
  }
}
template <bool Load> handler move(type t, std::size_t n) {
  return of_stored(t, [n](auto k) -> handler {
    using T = typename decltype(k)::value_type;
    if constexpr (sizeof(T) <= 8) {
      if (n == 1) return Load ? load<T, 1> : store<T, 1>;
      if (n == 2) return Load ? load<T, 2> : store<T, 2>;
      if constexpr (sizeof(T) <= 4) {
        if (n == 4) return Load ? load<T, 4> : store<T, 4>;
      }
    }
    return nullptr;
  });
}

enum operation {
  plus,
  minimum,
  maximum,
  exchange,
  compare_swap,
  conjunction,
  disjunction,
  exclusive,
  increment
};

// d = [8], [8] = op([8], slot 1); cas compares with slot 1 and stores slot 2
template <int Op, class T> void atomic(thread& t, instruction const& i) {
  std::byte* const p = address(t, i, i.slot[8], space_of(i));
  t.where->access(t, i, memory::access::atomic, p, sizeof(T), nullptr);
  T old, x = get<T>(t, i.slot[1]);
  std::memcpy(&old, p, sizeof old);
  T y = x;
  if constexpr (Op == plus) y = static_cast<T>(old + x);
  if constexpr (Op == minimum) y = x < old ? x : old;
  if constexpr (Op == maximum) y = old < x ? x : old;
  if constexpr (Op == compare_swap) y = old == x ? get<T>(t, i.slot[2]) : old;
  if constexpr (std::is_integral_v<T>) {
    if constexpr (Op == conjunction) y = static_cast<T>(old & x);
    if constexpr (Op == disjunction) y = static_cast<T>(old | x);
    if constexpr (Op == exclusive) y = static_cast<T>(old ^ x);
    if constexpr (Op == increment) y = old >= x ? T(0) : static_cast<T>(old + 1);
  }
  std::memcpy(p, &y, sizeof y);
  if (i.slot[0] != instruction::none) put<T>(t, i.slot[0], old);
}
template <int... Op> handler atomic(int op, type t, std::integer_sequence<int, Op...>) {
  handler h = nullptr;
  (void)((op == Op ? (h = of_number(
                          t, [](auto k) -> handler { return atomic<Op, typename decltype(k)::value_type>; }),
                      true)
                   : false) ||
         ...);
  return h;
}

space take_space(words& w) {
  int const k = w.take_of(
      {"global", "shared", "shared::cta", "shared::cluster", "local", "param", "param::func", "const"});
  static constexpr space of[] = {global, shared, shared, cluster_shared, local, parameter, parameter, global};
  return k < 0 ? generic : of[k];
}
// Caching and ordering hints that change nothing where everything is in order.
void skip_hints(words& w) {
  for (char const* hint : {"nc",
                           "ca",
                           "cg",
                           "cs",
                           "cv",
                           "lu",
                           "wb",
                           "wt",
                           "volatile",
                           "relaxed",
                           "weak",
                           "acquire",
                           "release",
                           "acq_rel",
                           "cta",
                           "cluster",
                           "gpu",
                           "sys",
                           "L1::no_allocate",
                           "L1::evict_last",
                           "L1::evict_first",
                           "L2::128B",
                           "L2::64B",
                           "L2::256B"})
    w.take(hint);
}
void set_space(draft& d, space s) { d.made.detail = static_cast<std::uint16_t>(d.made.detail | s << 1); }

template <bool To> void between_windows(thread& t, instruction const& i) {
  auto const base = reinterpret_cast<std::uint64_t>(t.where->shared());
  std::uint64_t const x = t.r[i.slot[1]];
  t.r[i.slot[0]] = To ? x - base : x + base;
}
block& owner(thread& t, instruction const& i, std::byte const* p) {
  block* const b = t.where->of().owner(p);
  if (b == nullptr) t.where->stop(t, i, "an address that is no shared memory of the cluster");
  return *b;
}
template <bool To> void between_cluster_windows(thread& t, instruction const& i) {
  std::uint64_t const x = t.r[i.slot[1]];
  if (To) {
    auto const* const p = reinterpret_cast<std::byte const*>(x);
    block const& b = owner(t, i, p);
    t.r[i.slot[0]] = t.where->of().window(b, static_cast<std::uint32_t>(p - b.shared()));
  } else {
    t.r[i.slot[0]] =
        reinterpret_cast<std::uint64_t>(t.where->of().in_window(*t.where, static_cast<std::uint32_t>(x)));
  }
}
// The same place in another block's shared memory, and the rank of a place's block.
template <bool Window> void map_address(thread& t, instruction const& i) {
  cluster& c = t.where->of();
  auto const rank = get<std::uint32_t>(t, i.slot[2]);
  if (rank >= c.size()) t.where->stop(t, i, "a rank that the cluster does not have");
  std::uint64_t const x = t.r[i.slot[1]];
  auto const* const p =
      Window ? c.in_window(*t.where, static_cast<std::uint32_t>(x)) : reinterpret_cast<std::byte const*>(x);
  auto const offset = static_cast<std::uint32_t>(p - owner(t, i, p).shared());
  t.r[i.slot[0]] =
      Window ? c.window(c.at(rank), offset) : reinterpret_cast<std::uint64_t>(c.at(rank).shared() + offset);
}
template <bool Window> void rank_of_address(thread& t, instruction const& i) {
  std::uint64_t const x = t.r[i.slot[1]];
  put(t, i.slot[0],
      owner(t, i,
            Window ? t.where->of().in_window(*t.where, static_cast<std::uint32_t>(x))
                   : reinterpret_cast<std::byte const*>(x))
          .rank());
}
void same_address(thread& t, instruction const& i) { t.r[i.slot[0]] = t.r[i.slot[1]]; }

void begin_copy(thread& t, instruction const& i) {
  std::byte* const to =
      t.where->shared() + static_cast<std::uint32_t>(t.r[i.slot[0]] + static_cast<std::uint64_t>(i.number));
  auto* const from = reinterpret_cast<std::byte*>(t.r[i.slot[8]]);
  t.where->begin_copy(t, i, to, from, 16);
}

}  // namespace

bool decode_memory(words& w, operands& o, draft& d) {
  std::string const& name = w.name();
  if (name == "ld" || name == "ldu" || name == "st") {
    bool const loads = name != "st";
    skip_hints(w);
    set_space(d, take_space(w));
    int const vector = w.take_of({"v2", "v4"});
    type const t = w.take_type();
    std::size_t n;
    if (loads) {
      n = o.define_all(0);
      d.made.number = o.address(8).offset;
    } else {
      d.made.number = o.address(8).offset;
      n = o.use_all(0);
    }
    std::size_t const wanted = vector < 0 ? 1 : vector == 0 ? 2 : 4;
    if (n == wanted) d.made.run = loads ? move<true>(t, n) : move<false>(t, n);
    return true;
  }
  if (name == "atom" || name == "red") {
    skip_hints(w);
    set_space(d, take_space(w));
    int const op = w.take_of({"add", "min", "max", "exch", "cas", "and", "or", "xor", "inc"});
    type const t = w.take_type();
    if (name == "atom") o.define(0);
    d.made.number = o.address(8).offset;
    o.use(1);
    if (op == compare_swap) o.use(2);
    d.made.run = atomic(op, t, std::make_integer_sequence<int, 9>{});
    return true;
  }
  if (name == "cvta") {
    bool const to = w.take("to");
    space const s = take_space(w);
    w.take_type();
    o.define(0);
    o.use(1);
    d.made.run = s == cluster_shared ? (to ? between_cluster_windows<true> : between_cluster_windows<false>)
                 : s != shared       ? same_address
                 : to                ? between_windows<true>
                                     : between_windows<false>;
    return true;
  }
  if (name == "mapa" || name == "getctarank") {
    bool const maps = name == "mapa", window = take_space(w) == cluster_shared;
    w.take_type();
    o.define(0);
    o.use(1);
    if (maps) o.use(2);
    d.made.run = maps     ? (window ? map_address<true> : map_address<false>)
                 : window ? rank_of_address<true>
                          : rank_of_address<false>;
    return true;
  }
  if (name != "cp" || !w.take("async")) return false;
  if (w.take("wait_all")) {
    d.made.run = [](thread& t, instruction const&) { t.where->finish_copies(t, t.copy_group + 1); };
  } else if (w.take("commit_group")) {
    d.made.run = [](thread& t, instruction const&) { ++t.copy_group; };
  } else if (w.take("wait_group")) {
    o.use(0);
    d.made.run = [](thread& t, instruction const& i) {
      auto const n = static_cast<std::size_t>(t.r[i.slot[0]]);
      t.where->finish_copies(t, t.copy_group - std::min(n, t.copy_group));
    };
  } else if (w.take("cg") && w.take("shared") && w.take("global")) {
    d.made.number = o.address(0).offset;
    if (o.address(8).offset != 0) return true;
    o.use(2);  // 16, the only size with .cg
    d.made.run = begin_copy;
  }
  return true;
}

}  // namespace emulator
