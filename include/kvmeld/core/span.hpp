// SPDX-License-Identifier: Apache-2.0
// A pointer and a count, as std::span in C++20.
#pragma once

#include <kvmeld/core/config.hpp>

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <type_traits>
#include <utility>

namespace kvmeld {
inline namespace KVMELD_ABI {

/// A pointer and a count. It does not own the elements.
template <class T> class span {
public:
  /// The element type without const, as in std::span.
  using value_type = std::remove_cv_t<T>;

  constexpr span() = default;
  /// `size` elements from `data` on.
  KVMELD_HD constexpr span(T* data, std::size_t size) : data_(data), size_(size) {}
  /// Any contiguous container with data() and size().
  template <class Container,
            class = std::enable_if_t<std::is_convertible_v<decltype(std::declval<Container&>().data()), T*>>>
  constexpr span(Container&& c) : data_(c.data()), size_(c.size()) {}
  /// A braced list, for arguments. It lives only until the end of the full expression.
  template <class U = T, class = std::enable_if_t<std::is_const_v<U>>>
  constexpr span(std::initializer_list<value_type> list) {
    data_ = list.begin();
    size_ = list.size();
  }

  /// Pointer to the first element.
  KVMELD_HD constexpr T* data() const { return data_; }
  /// Number of elements.
  KVMELD_HD constexpr std::size_t size() const { return size_; }
  /// Whether the span has no element.
  KVMELD_HD constexpr bool empty() const { return size_ == 0; }
  /// Element i, unchecked.
  KVMELD_HD constexpr T& operator[](std::size_t i) const { return data_[i]; }
  /// Pointer to the first element.
  KVMELD_HD constexpr T* begin() const { return data_; }
  /// Pointer behind the last element.
  KVMELD_HD constexpr T* end() const { return data_ + size_; }

private:
  T* data_ = nullptr;
  std::size_t size_ = 0;
};

/// A list of sequences or counts.
using index_list = span<std::uint32_t const>;

/// A list of sequences or counts that lies where phases can read it (memory of the device, for a CUDA
/// executor). Launches read it when they run, and so does every replay of a graph. So it stays at its address
/// until they have run. Numbers change in order with the launches, as on their stream.
struct device_list {
  std::uint32_t const* data;  ///< the first number
  /// The list begins at `first`. A template, so that {0} is not taken for a null pointer.
  template <class Number> explicit device_list(Number* first) : data(first) {}
};

}  // namespace KVMELD_ABI
}  // namespace kvmeld
