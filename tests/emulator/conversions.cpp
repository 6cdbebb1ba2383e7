// cvt: between all types that a register can hold.
#include "decode.hpp"

#include <cmath>
#include <limits>
#include <type_traits>

namespace emulator {
namespace {

struct half {};
struct brain {};

template <class T> struct stored { using type = T; };
template <> struct stored<half> { using type = std::uint16_t; };
template <> struct stored<brain> { using type = std::uint16_t; };

template <class T> auto read(thread& w, std::uint16_t slot) {
  if constexpr (std::is_same_v<T, half>)
    return from_half(get<std::uint16_t>(w, slot));
  else if constexpr (std::is_same_v<T, brain>)
    return from_bfloat16(get<std::uint16_t>(w, slot));
  else
    return get<T>(w, slot);
}

// number: the rounding, 4 more where it is one to integers, 8 more where it saturates
template <class To, class From> void convert(thread& w, instruction const& i) {
  auto const r = static_cast<rounding>(i.number & 3);
  bool const integral = (i.number & 4) != 0, saturate = (i.number & 8) != 0;
  auto x = read<From>(w, i.slot[1]);
  using X = decltype(x);
  if constexpr (std::is_floating_point_v<X>) {
    if (integral || std::is_integral_v<To>) {
      x = r == rounding::nearest ? std::nearbyint(x)
          : r == rounding::zero  ? std::trunc(x)
          : r == rounding::down  ? std::floor(x)
                                 : std::ceil(x);
    }
  }
  if constexpr (std::is_same_v<To, half>) {
    put<std::uint16_t>(w, i.slot[0], to_half(static_cast<float>(x)));
  } else if constexpr (std::is_same_v<To, brain>) {
    put<std::uint16_t>(w, i.slot[0], to_bfloat16(static_cast<float>(x)));
  } else if constexpr (std::is_integral_v<To>) {
    To y;
    if constexpr (std::is_floating_point_v<X>) {
      using limits = std::numeric_limits<To>;
      y = std::isnan(x)                                               ? To(0)
          : x <= static_cast<X>(limits::min())                        ? limits::min()
          : static_cast<double>(x) >= std::ldexp(1.0, limits::digits) ? limits::max()
                                                                      : static_cast<To>(x);
    } else {
      y = static_cast<To>(x);
      if (saturate) {
        using limits = std::numeric_limits<To>;
        __int128 const v = x;
        y = v < limits::min() ? limits::min() : v > limits::max() ? limits::max() : y;
      }
    }
    // Registers wider than the type hold it extended.
    if constexpr (std::is_signed_v<To>)
      put<std::int64_t>(w, i.slot[0], y);
    else
      put<std::uint64_t>(w, i.slot[0], y);
  } else {
    volatile X v = x;
    To y = rounded(integral ? rounding::nearest : r, [&] {
      volatile To const z = static_cast<To>(static_cast<X>(v));
      return static_cast<To>(z);
    });
    if (saturate) y = std::isnan(y) ? To(0) : y < To(0) ? To(0) : y > To(1) ? To(1) : y;
    put<To>(w, i.slot[0], y);
  }
}

template <class F> handler of_any(type t, F f) {
  switch (t) {
  case type::u8: return f(tag<std::uint8_t>{});
  case type::s8: return f(tag<std::int8_t>{});
  case type::f16: return f(tag<half>{});
  case type::bf16: return f(tag<brain>{});
  default: return of_number(t, f);
  }
}

template <bool Brain> void pack(thread& w, instruction const& i) {
  auto const bits = [&](int k) {
    float const x = get<float>(w, i.slot[k]);
    return std::uint32_t{Brain ? to_bfloat16(x) : to_half(x)};
  };
  put<std::uint32_t>(w, i.slot[0], bits(1) << 16 | bits(2));
}

}  // namespace

bool decode_conversion(words& w, operands& o, draft& d) {
  if (w.name() != "cvt") return false;
  int const mode = w.take_of({"rn", "rz", "rm", "rp", "rni", "rzi", "rmi", "rpi"});
  d.made.number = (mode < 0 ? 0 : mode) | (w.take("sat") ? 8 : 0);
  o.define(0);
  o.use(1);
  int const packed = w.take_of({"f16x2", "bf16x2"});
  if (packed >= 0) {
    o.use(2);
    if (w.take_type() == type::f32 && mode == 0) d.made.run = packed == 1 ? pack<true> : pack<false>;
    return true;
  }
  type const to = w.take_type(), from = w.take_type();
  if ((to == type::f16 || to == type::bf16) && mode != 0) return true;
  // Without a rounding only what is exact is allowed, or integers, which are cut off.
  d.made.run = of_any(to, [&](auto t) -> handler {
    using To = typename decltype(t)::value_type;
    return of_any(from, [](auto f) -> handler { return convert<To, typename decltype(f)::value_type>; });
  });
  return true;
}

}  // namespace emulator
