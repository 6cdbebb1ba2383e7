// Integers and bits.
#include "decode.hpp"

#include <type_traits>

namespace emulator {
namespace {

struct add {
  template <class T> static T of(T a, T b) { return static_cast<T>(a + b); }
};
struct subtract {
  template <class T> static T of(T a, T b) { return static_cast<T>(a - b); }
};
struct multiply {
  template <class T> static T of(T a, T b) { return static_cast<T>(a * b); }
};
struct divide {
  template <class T> static T of(T a, T b) {
    if (b == 0) return static_cast<T>(-1);
    if (std::is_signed_v<T> && b == static_cast<T>(-1)) return static_cast<T>(-a);
    return static_cast<T>(a / b);
  }
};
struct remainder {
  template <class T> static T of(T a, T b) {
    if (b == 0) return a;
    if (std::is_signed_v<T> && b == static_cast<T>(-1)) return 0;
    return static_cast<T>(a % b);
  }
};
struct least {
  template <class T> static T of(T a, T b) { return b < a ? b : a; }
};
struct most {
  template <class T> static T of(T a, T b) { return a < b ? b : a; }
};
struct both {
  template <class T> static T of(T a, T b) { return static_cast<T>(a & b); }
};
struct either {
  template <class T> static T of(T a, T b) { return static_cast<T>(a | b); }
};
struct differ {
  template <class T> static T of(T a, T b) { return static_cast<T>(a ^ b); }
};

template <class Op> handler binary(type t) {
  return of_integer(t, [](auto k) -> handler {
    using T = typename decltype(k)::value_type;
    return [](thread& w, instruction const& i) {
      put<T>(w, i.slot[0], Op::of(get<T>(w, i.slot[1]), get<T>(w, i.slot[2])));
    };
  });
}
template <class Op> handler of_predicates() {
  return [](thread& w, instruction const& i) {
    put<bool>(w, i.slot[0], Op::of(get<bool>(w, i.slot[1]), get<bool>(w, i.slot[2])));
  };
}
template <class Op> handler bitwise(type t) { return t == type::pred ? of_predicates<Op>() : binary<Op>(t); }

template <class T> struct wider;
template <> struct wider<std::uint16_t> { using type = std::uint32_t; };
template <> struct wider<std::int16_t> { using type = std::int32_t; };
template <> struct wider<std::uint32_t> { using type = std::uint64_t; };
template <> struct wider<std::int32_t> { using type = std::int64_t; };
template <> struct wider<std::uint64_t> { using type = unsigned __int128; };
template <> struct wider<std::int64_t> { using type = __int128; };

// mul and mad: low half, high half, whole product; slot 3 is added where Add says so
template <int Half, bool Add> handler product(type t) {
  return of_integer(t, [](auto k) -> handler {
    using T = typename decltype(k)::value_type;
    using W = typename wider<T>::type;
    return [](thread& w, instruction const& i) {
      W const x = static_cast<W>(get<T>(w, i.slot[1])) * static_cast<W>(get<T>(w, i.slot[2]));
      if constexpr (Half == 2) {
        if constexpr (sizeof(W) <= 8)
          put<W>(w, i.slot[0], static_cast<W>(x + (Add ? get<W>(w, i.slot[3]) : W(0))));
      } else {
        T const part = static_cast<T>(Half == 1 ? x >> (8 * sizeof(T)) : x);
        put<T>(w, i.slot[0], static_cast<T>(part + (Add ? get<T>(w, i.slot[3]) : T(0))));
      }
    };
  });
}

template <bool Left> handler shift(type t) {
  return of_integer(t, [](auto k) -> handler {
    using T = typename decltype(k)::value_type;
    return [](thread& w, instruction const& i) {
      constexpr std::uint32_t bits = 8 * sizeof(T);
      T const x = get<T>(w, i.slot[1]);
      auto const n = get<std::uint32_t>(w, i.slot[2]);
      if constexpr (Left) {
        put<T>(w, i.slot[0], n >= bits ? T(0) : static_cast<T>(x << n));
      } else {
        put<T>(w, i.slot[0], static_cast<T>(n >= bits ? (x < 0 ? -1 : 0) : x >> n));
      }
    };
  });
}

handler funnel(bool left, bool wrap) {
  static constexpr handler table[2][2] = {
      {[](thread& w, instruction const& i) {
         auto const n = std::min(get<std::uint32_t>(w, i.slot[3]), 32u);
         std::uint64_t const x =
             std::uint64_t{get<std::uint32_t>(w, i.slot[2])} << 32 | get<std::uint32_t>(w, i.slot[1]);
         put(w, i.slot[0], static_cast<std::uint32_t>(x >> n));
       },
       [](thread& w, instruction const& i) {
         auto const n = get<std::uint32_t>(w, i.slot[3]) & 31;
         std::uint64_t const x =
             std::uint64_t{get<std::uint32_t>(w, i.slot[2])} << 32 | get<std::uint32_t>(w, i.slot[1]);
         put(w, i.slot[0], static_cast<std::uint32_t>(x >> n));
       }},
      {[](thread& w, instruction const& i) {
         auto const n = std::min(get<std::uint32_t>(w, i.slot[3]), 32u);
         std::uint64_t const x =
             std::uint64_t{get<std::uint32_t>(w, i.slot[2])} << 32 | get<std::uint32_t>(w, i.slot[1]);
         put(w, i.slot[0], static_cast<std::uint32_t>(x << n >> 32));
       },
       [](thread& w, instruction const& i) {
         auto const n = get<std::uint32_t>(w, i.slot[3]) & 31;
         std::uint64_t const x =
             std::uint64_t{get<std::uint32_t>(w, i.slot[2])} << 32 | get<std::uint32_t>(w, i.slot[1]);
         put(w, i.slot[0], static_cast<std::uint32_t>(x << n >> 32));
       }}};
  return table[left][wrap];
}

// Bytes of a pair of words, chosen by four nibbles.
void permute(thread& w, instruction const& i) {
  std::uint64_t const bytes =
      std::uint64_t{get<std::uint32_t>(w, i.slot[2])} << 32 | get<std::uint32_t>(w, i.slot[1]);
  auto const choice = get<std::uint32_t>(w, i.slot[3]);
  std::uint32_t out = 0;
  for (unsigned k = 0; k < 4; ++k) {
    std::uint32_t const nibble = choice >> 4 * k & 15;
    auto byte = static_cast<std::uint32_t>(bytes >> 8 * (nibble & 7) & 255);
    if (nibble & 8) byte = byte & 128 ? 255u : 0u;
    out |= byte << 8 * k;
  }
  put(w, i.slot[0], out);
}

template <class T> void insert_bits(thread& w, instruction const& i) {
  auto const at = get<std::uint32_t>(w, i.slot[3]) & 255, n = get<std::uint32_t>(w, i.slot[4]) & 255;
  constexpr std::uint32_t bits = 8 * sizeof(T);
  T out = get<T>(w, i.slot[2]);
  T const from = get<T>(w, i.slot[1]);
  for (std::uint32_t k = 0; k < n && at + k < bits; ++k)
    out = static_cast<T>((out & ~(T(1) << (at + k))) | (from >> k & 1) << (at + k));
  put<T>(w, i.slot[0], out);
}
template <class T> void extract_bits(thread& w, instruction const& i) {
  using U = std::make_unsigned_t<T>;
  constexpr std::uint32_t bits = 8 * sizeof(T);
  auto const at = get<std::uint32_t>(w, i.slot[2]) & 255, n = get<std::uint32_t>(w, i.slot[3]) & 255;
  U const x = get<U>(w, i.slot[1]);
  std::uint32_t const sign_at = std::min(at + n - 1, bits - 1);
  bool const sign = std::is_signed_v<T> && n != 0 && (x >> sign_at & 1);
  U out = 0;
  for (std::uint32_t k = 0; k < bits; ++k) {
    bool const bit = k < n && at + k < bits ? x >> (at + k) & 1 : sign;
    out = static_cast<U>(out | U(bit) << k);
  }
  put<U>(w, i.slot[0], out);
}

// Any function of three words, by its table.
void look_up(thread& w, instruction const& i) {
  auto const a = get<std::uint32_t>(w, i.slot[1]), b = get<std::uint32_t>(w, i.slot[2]),
             c = get<std::uint32_t>(w, i.slot[3]), table = get<std::uint32_t>(w, i.slot[4]);
  std::uint32_t out = 0;
  for (unsigned k = 0; k < 32; ++k)
    out |= (table >> ((a >> k & 1) * 4 + (b >> k & 1) * 2 + (c >> k & 1)) & 1) << k;
  put(w, i.slot[0], out);
}

template <class F> handler unary(type t, F) {
  return of_integer(t, [](auto k) -> handler {
    using T = typename decltype(k)::value_type;
    return [](thread& w, instruction const& i) { F::template run<T>(w, i); };
  });
}
struct negative {
  template <class T> static void run(thread& w, instruction const& i) {
    put<T>(w, i.slot[0], static_cast<T>(-get<T>(w, i.slot[1])));
  }
};
struct absolute {
  template <class T> static void run(thread& w, instruction const& i) {
    T const x = get<T>(w, i.slot[1]);
    put<T>(w, i.slot[0], static_cast<T>(x < 0 ? -x : x));
  }
};
struct inverse {
  template <class T> static void run(thread& w, instruction const& i) {
    put<T>(w, i.slot[0], static_cast<T>(~get<T>(w, i.slot[1])));
  }
};
struct population {
  template <class T> static void run(thread& w, instruction const& i) {
    put<std::uint32_t>(
        w, i.slot[0],
        static_cast<std::uint32_t>(__builtin_popcountll(get<std::make_unsigned_t<T>>(w, i.slot[1]))));
  }
};
struct leading {
  template <class T> static void run(thread& w, instruction const& i) {
    std::uint64_t const x = get<std::make_unsigned_t<T>>(w, i.slot[1]);
    put<std::uint32_t>(w, i.slot[0],
                       x == 0 ? 8 * sizeof(T)
                              : static_cast<std::uint32_t>(__builtin_clzll(x)) - (64 - 8 * sizeof(T)));
  }
};
struct reversed {
  template <class T> static void run(thread& w, instruction const& i) {
    auto const x = get<std::make_unsigned_t<T>>(w, i.slot[1]);
    std::make_unsigned_t<T> y = 0;
    for (unsigned k = 0; k < 8 * sizeof(T); ++k)
      y = static_cast<std::make_unsigned_t<T>>(y | (x >> k & 1) << (8 * sizeof(T) - 1 - k));
    put(w, i.slot[0], y);
  }
};

}  // namespace

bool decode_integer(words& w, operands& o, draft& d) {
  std::string const& name = w.name();
  auto const is = [&](char const* n) { return name == n; };
  handler& run = d.made.run;
  auto const inputs = [&](int n) {
    o.define(0);
    for (int k = 1; k <= n; ++k) o.use(k);
    return true;
  };
  if (is("and") || is("or") || is("xor")) {
    type const t = w.take_type();
    run = is("and") ? bitwise<both>(t) : is("or") ? bitwise<either>(t) : bitwise<differ>(t);
    return inputs(2);
  }
  if (is("not")) {
    type const t = w.take_type();
    if (t == type::pred)
      run = [](thread& x, instruction const& i) { put<bool>(x, i.slot[0], !get<bool>(x, i.slot[1])); };
    else
      run = unary(t, inverse{});
    return inputs(1);
  }
  if (is("shl") || is("shr")) {
    type const t = w.take_type();
    run = is("shl") ? shift<true>(t) : shift<false>(t);
    return inputs(2);
  }
  if (is("shf")) {
    bool const left = w.take_of({"r", "l"}) == 1, wrap = w.take_of({"clamp", "wrap"}) == 1;
    w.take_type();
    run = funnel(left, wrap);
    return inputs(3);
  }
  if (is("prmt") || is("lop3")) {
    w.take_type();
    run = is("prmt") ? permute : look_up;
    return inputs(is("prmt") ? 3 : 4);
  }
  if (is("bfi")) {
    run = w.take_type() == type::u64 ? insert_bits<std::uint64_t> : insert_bits<std::uint32_t>;
    return inputs(4);
  }
  if (is("bfe")) {
    type const t = w.take_type();
    run = t == type::u64   ? extract_bits<std::uint64_t>
          : t == type::s64 ? extract_bits<std::int64_t>
          : t == type::s32 ? extract_bits<std::int32_t>
                           : extract_bits<std::uint32_t>;
    return inputs(3);
  }
  if (is("popc") || is("clz") || is("brev")) {
    type const t = w.take_type();
    run = is("popc") ? unary(t, population{}) : is("clz") ? unary(t, leading{}) : unary(t, reversed{});
    return inputs(1);
  }
  bool const arithmetic = is("add") || is("sub") || is("mul") || is("mad") || is("div") || is("rem") ||
                          is("min") || is("max") || is("neg") || is("abs");
  if (!arithmetic) return false;
  words rest = w;
  type const t = rest.take_type();
  if (t == type::f32 || t == type::f64) return false;
  w = rest;
  if (is("mul") || is("mad")) {
    int const half = w.take_of({"lo", "hi", "wide"});
    bool const more = is("mad");
    run = half == 0   ? (more ? product<0, true>(t) : product<0, false>(t))
          : half == 1 ? (more ? product<1, true>(t) : product<1, false>(t))
          : half == 2 ? (more ? product<2, true>(t) : product<2, false>(t))
                      : nullptr;
    return inputs(more ? 3 : 2);
  }
  if (is("neg") || is("abs")) {
    run = is("neg") ? unary(t, negative{}) : unary(t, absolute{});
    return inputs(1);
  }
  run = is("add")   ? binary<add>(t)
        : is("sub") ? binary<subtract>(t)
        : is("div") ? binary<divide>(t)
        : is("rem") ? binary<remainder>(t)
        : is("min") ? binary<least>(t)
                    : binary<most>(t);
  return inputs(2);
}

}  // namespace emulator
