// Floating point: what is rounded exactly is exact here, what a device approximates is off by a unit in the
// last place.
#include "decode.hpp"

#include <cmath>
#include <type_traits>

namespace emulator {
namespace {

struct add {
  template <class T> static T of(T a, T b) { return a + b; }
};
struct subtract {
  template <class T> static T of(T a, T b) { return a - b; }
};
struct multiply {
  template <class T> static T of(T a, T b) { return a * b; }
};
struct divide {
  template <class T> static T of(T a, T b) { return a / b; }
};
struct least {
  template <class T> static T of(T a, T b) {
    if (a == b) return std::signbit(a) ? a : b;
    return std::fmin(a, b);
  }
};
struct most {
  template <class T> static T of(T a, T b) {
    if (a == b) return std::signbit(a) ? b : a;
    return std::fmax(a, b);
  }
};
struct sign_of {
  template <class T> static T of(T a, T b) { return std::copysign(b, a); }
};  // of a, on b

template <class Op> handler binary(type t) {
  return of_float(t, [](auto k) -> handler {
    using T = typename decltype(k)::value_type;
    return [](thread& w, instruction const& i) {
      put<T>(w, i.slot[0], Op::of(get<T>(w, i.slot[1]), get<T>(w, i.slot[2])));
    };
  });
}
// With a rounding of its own: number is the mode.
template <class Op> handler rounded_binary(type t) {
  return of_float(t, [](auto k) -> handler {
    using T = typename decltype(k)::value_type;
    return [](thread& w, instruction const& i) {
      volatile T a = get<T>(w, i.slot[1]), b = get<T>(w, i.slot[2]);
      put<T>(w, i.slot[0], rounded(static_cast<rounding>(i.number), [&] {
               volatile T const x = Op::of(static_cast<T>(a), static_cast<T>(b));
               return static_cast<T>(x);
             }));
    };
  });
}
handler fused(type t) {
  return of_float(t, [](auto k) -> handler {
    using T = typename decltype(k)::value_type;
    return [](thread& w, instruction const& i) {
      volatile T a = get<T>(w, i.slot[1]), b = get<T>(w, i.slot[2]), c = get<T>(w, i.slot[3]);
      put<T>(w, i.slot[0], rounded(static_cast<rounding>(i.number), [&] {
               volatile T const x = std::fma(static_cast<T>(a), static_cast<T>(b), static_cast<T>(c));
               return static_cast<T>(x);
             }));
    };
  });
}

// The last place of an approximation depends on its argument's bits, on which nobody may rely.
float about(double x, float argument) {
  float const f = static_cast<float>(x);
  if (!std::isfinite(f) || f == 0 || x == std::round(x)) return f;  // powers of two and such come out exact
  auto const bits = bits_as<std::uint32_t>(argument);
  std::uint32_t const r = (bits * 2654435761u) >> 30;
  return r == 0 ? std::nextafter(f, 0.0f) : r == 1 ? std::nextafter(f, 2 * f) : f;
}

template <class F> handler unary(type t, F) {
  return of_float(t, [](auto k) -> handler {
    using T = typename decltype(k)::value_type;
    return [](thread& w, instruction const& i) { put<T>(w, i.slot[0], F::of(get<T>(w, i.slot[1]))); };
  });
}
struct negative {
  template <class T> static T of(T x) { return -x; }
};
struct absolute {
  template <class T> static T of(T x) { return std::abs(x); }
};
struct root {
  template <class T> static T of(T x) { return std::sqrt(x); }
};
struct reciprocal {
  template <class T> static T of(T x) { return T(1) / x; }
};

// ex2, lg2, rcp, rsqrt, sqrt, approximated; Flush: denormal numbers are zeros.
template <class F, bool Flush> handler approximate() {
  return [](thread& w, instruction const& i) {
    float const given = get<float>(w, i.slot[1]), x = Flush ? flushed(given) : given;
    float const y = about(F::of(static_cast<double>(x)), x);
    put<float>(w, i.slot[0], Flush ? flushed(y) : y);
  };
}
struct power {
  static double of(double x) { return std::exp2(x); }
};
struct logarithm {
  static double of(double x) { return std::log2(x); }
};
struct one_over {
  static double of(double x) { return 1 / x; }
};
struct one_over_root {
  static double of(double x) { return 1 / std::sqrt(x); }
};
struct square_root {
  static double of(double x) { return std::sqrt(x); }
};
template <class F> handler approximate(bool flush) {
  return flush ? approximate<F, true>() : approximate<F, false>();
}

}  // namespace

bool decode_float(words& w, operands& o, draft& d) {
  std::string const& name = w.name();
  auto const is = [&](char const* n) { return name == n; };
  bool const known = is("add") || is("sub") || is("mul") || is("div") || is("min") || is("max") ||
                     is("fma") || is("mad") || is("neg") || is("abs") || is("copysign") || is("sqrt") ||
                     is("rcp") || is("rsqrt") || is("ex2") || is("lg2");
  if (!known) return false;
  handler& run = d.made.run;
  auto const inputs = [&](int n) {
    o.define(0);
    for (int k = 1; k <= n; ++k) o.use(k);
    return true;
  };
  type const t = w.take_type();
  bool const approx = w.take("approx");
  if (approx) {
    bool const flush = w.take("ftz");
    if (is("rcp") && t == type::f64) {  // a first guess, 20 bits of it
      run = [](thread& x, instruction const& i) {
        auto const y = bits_as<std::uint64_t>(1 / get<double>(x, i.slot[1]));
        put<double>(x, i.slot[0], bits_as<double>(y & 0xffffffff00000000u));
      };
      return inputs(1);
    }
    if (t != type::f32) return true;
    run = is("ex2")     ? approximate<power>(flush)
          : is("lg2")   ? approximate<logarithm>(flush)
          : is("rcp")   ? approximate<one_over>(flush)
          : is("rsqrt") ? approximate<one_over_root>(flush)
          : is("sqrt")  ? approximate<square_root>(flush)
                        : nullptr;
    return inputs(1);
  }
  rounding const r = w.take_rounding();
  d.made.number = static_cast<std::int64_t>(r);
  if (is("fma") || is("mad")) {
    run = fused(t);
    return inputs(3);
  }
  if (is("neg") || is("abs") || is("sqrt") || is("rcp")) {
    if (r != rounding::nearest) return true;
    run = is("neg")    ? unary(t, negative{})
          : is("abs")  ? unary(t, absolute{})
          : is("sqrt") ? unary(t, root{})
                       : unary(t, reciprocal{});
    return inputs(1);
  }
  if (r != rounding::nearest) {
    run = is("add")   ? rounded_binary<add>(t)
          : is("sub") ? rounded_binary<subtract>(t)
          : is("mul") ? rounded_binary<multiply>(t)
          : is("div") ? rounded_binary<divide>(t)
                      : nullptr;
  } else {
    run = is("add")        ? binary<add>(t)
          : is("sub")      ? binary<subtract>(t)
          : is("mul")      ? binary<multiply>(t)
          : is("div")      ? binary<divide>(t)
          : is("min")      ? binary<least>(t)
          : is("max")      ? binary<most>(t)
          : is("copysign") ? binary<sign_of>(t)
                           : nullptr;
  }
  return inputs(2);
}

}  // namespace emulator
