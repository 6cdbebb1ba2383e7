#pragma once

// g++ and clang++ say in different words which sanitizer is on.
#if defined(__has_feature)
#define KVMELD_TEST_HAS_FEATURE(name) __has_feature(name)
#else
#define KVMELD_TEST_HAS_FEATURE(name) 0
#endif

#if defined(__SANITIZE_THREAD__) || KVMELD_TEST_HAS_FEATURE(thread_sanitizer)
extern "C" void __tsan_acquire(void* address);
extern "C" void __tsan_release(void* address);
#endif

namespace support {

/// Everything takes ten times as long then: tests of random cases take fewer.
#if defined(__SANITIZE_ADDRESS__) || KVMELD_TEST_HAS_FEATURE(address_sanitizer)
constexpr bool under_address_sanitizer = true;
#else
constexpr bool under_address_sanitizer = false;
#endif

/// Lanes are threads that meet at barriers all the time, each of them a hundred times as slow then.
#if defined(__SANITIZE_THREAD__) || KVMELD_TEST_HAS_FEATURE(thread_sanitizer)
constexpr bool under_thread_sanitizer = true;
#else
constexpr bool under_thread_sanitizer = false;
#endif

/// What is written before `release` of an address is seen after an `acquire` of it: tells ThreadSanitizer of
/// an order that it cannot see, because a library was built without it.
inline void release([[maybe_unused]] void* address) {
#if defined(__SANITIZE_THREAD__) || KVMELD_TEST_HAS_FEATURE(thread_sanitizer)
  __tsan_release(address);
#endif
}
inline void acquire([[maybe_unused]] void* address) {
#if defined(__SANITIZE_THREAD__) || KVMELD_TEST_HAS_FEATURE(thread_sanitizer)
  __tsan_acquire(address);
#endif
}

}  // namespace support

#undef KVMELD_TEST_HAS_FEATURE
