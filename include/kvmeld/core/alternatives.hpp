// SPDX-License-Identifier: Apache-2.0
// A value that is one of several types, chosen at run time. Parts of policies use it, on host and device.
#pragma once

#include <kvmeld/core/config.hpp>

#include <cstdint>
#include <type_traits>
#include <utility>

namespace kvmeld {
inline namespace KVMELD_ABI {

namespace detail {
template <class T> struct alternative { T value{}; };
}  // namespace detail

/// Holds a value of each type and the index of the one in use. The types should be small. It is trivially
/// copyable if they are.
template <class... Ts> class alternatives : detail::alternative<Ts>... {
  template <class T, class...> struct first { using type = T; };
  // The type is named instead of deduced, because nvcc wants to see the body of a recursion whose result is
  // `auto`.
  template <class F>
  using result = decltype(std::declval<F&>()(std::declval<typename first<Ts...>::type const&>()));

public:
  static constexpr std::uint32_t count = sizeof...(Ts);

  /// The first alternative, default-constructed.
  alternatives() = default;
  template <class T, class = std::enable_if_t<(std::is_same_v<T, Ts> || ...)>>
  KVMELD_HD alternatives(T const& value) : index_(index_of<T>()) {
    static_cast<detail::alternative<T>&>(*this).value = value;
  }

  KVMELD_HD std::uint32_t index() const { return index_; }
  /// Calls f with the value in use. All results have one type. On the host f may call functions of the host.
#if defined(__CUDACC__)
#pragma nv_exec_check_disable
#endif
  template <class F> KVMELD_HD result<F> visit(F f) const { return visit_from<F, Ts...>(f, 0); }
  /// Calls f with the value in use, which f may change. On the host.
  template <class F> void change(F f) {
    (void)((std::uint32_t{index_of<Ts>()} == index_ &&
            (f(static_cast<detail::alternative<Ts>&>(*this).value), true)) ||
           ...);
  }
  /// Calls f with a default-constructed value of each type, to list the alternatives.
  template <class F> static void each(F f) { (f(Ts{}), ...); }

private:
  template <class T> KVMELD_HD static constexpr std::uint32_t index_of() {
    std::uint32_t i = 0;
    std::uint32_t found = 0;
    ((found = std::is_same_v<T, Ts> ? i : found, ++i), ...);
    return found;
  }
#if defined(__CUDACC__)
#pragma nv_exec_check_disable
#endif
  template <class F, class First, class... Rest> KVMELD_HD result<F> visit_from(F& f, std::uint32_t i) const {
    if constexpr (sizeof...(Rest) == 0) {
      return f(static_cast<detail::alternative<First> const&>(*this).value);
    } else {
      if (i == index_) return f(static_cast<detail::alternative<First> const&>(*this).value);
      return visit_from<F, Rest...>(f, i + 1);
    }
  }

  std::uint32_t index_ = 0;
};

}  // namespace KVMELD_ABI
}  // namespace kvmeld
