// Allocation that fails when a test says so. It replaces operator new: include it in one file of a program.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <new>

namespace faults {

// The allocation that fails, counted down from 1; 0 and below: none. Every later one succeeds.
inline std::atomic<std::int64_t> countdown{0};

// While it lives, the n-th allocation of the program fails.
class failing_allocation {
public:
  explicit failing_allocation(std::int64_t n) { countdown = n; }
  failing_allocation(failing_allocation const&) = delete;
  failing_allocation& operator=(failing_allocation const&) = delete;
  ~failing_allocation() { countdown = 0; }
  // Whether fewer allocations than n were made.
  bool waits() const { return countdown > 0; }
};

inline void* take(std::size_t bytes, std::size_t alignment) {
  if (countdown > 0 && --countdown == 0) return nullptr;
  std::size_t const whole = (bytes + alignment - 1) / alignment * alignment;
  return std::aligned_alloc(alignment, whole == 0 ? alignment : whole);
}
inline void* take_or_throw(std::size_t bytes, std::size_t alignment) {
  void* const p = take(bytes, alignment);
  if (p == nullptr) throw std::bad_alloc();
  return p;
}
// Never inlined: g++ would see that what one operator frees another allocated, and warn.
[[gnu::noinline]] inline void give_back(void* p) { std::free(p); }
inline constexpr std::size_t usual = alignof(std::max_align_t);

}  // namespace faults

void* operator new(std::size_t n) { return faults::take_or_throw(n, faults::usual); }
void* operator new[](std::size_t n) { return faults::take_or_throw(n, faults::usual); }
void* operator new(std::size_t n, std::align_val_t a) {
  return faults::take_or_throw(n, static_cast<std::size_t>(a));
}
void* operator new[](std::size_t n, std::align_val_t a) {
  return faults::take_or_throw(n, static_cast<std::size_t>(a));
}
void* operator new(std::size_t n, std::nothrow_t const&) noexcept { return faults::take(n, faults::usual); }
void* operator new[](std::size_t n, std::nothrow_t const&) noexcept { return faults::take(n, faults::usual); }
void* operator new(std::size_t n, std::align_val_t a, std::nothrow_t const&) noexcept {
  return faults::take(n, static_cast<std::size_t>(a));
}
void* operator new[](std::size_t n, std::align_val_t a, std::nothrow_t const&) noexcept {
  return faults::take(n, static_cast<std::size_t>(a));
}
void operator delete(void* p) noexcept { faults::give_back(p); }
void operator delete[](void* p) noexcept { faults::give_back(p); }
void operator delete(void* p, std::size_t) noexcept { faults::give_back(p); }
void operator delete[](void* p, std::size_t) noexcept { faults::give_back(p); }
void operator delete(void* p, std::align_val_t) noexcept { faults::give_back(p); }
void operator delete[](void* p, std::align_val_t) noexcept { faults::give_back(p); }
void operator delete(void* p, std::size_t, std::align_val_t) noexcept { faults::give_back(p); }
void operator delete[](void* p, std::size_t, std::align_val_t) noexcept { faults::give_back(p); }
