// SPDX-License-Identifier: Apache-2.0
// Configuration that every header sees: version, host/device annotation, and the inline namespace that keeps
// translation units with different configurations apart.
#pragma once

// The one place where the version is written: CMake and pkg-config read it here.
/// The version, by semantic versioning: docs/stability.md.
#define KVMELD_VERSION_MAJOR 0
/// See KVMELD_VERSION_MAJOR.
#define KVMELD_VERSION_MINOR 1
/// See KVMELD_VERSION_MAJOR.
#define KVMELD_VERSION_PATCH 0

// C++ has no word for "callable from host and device", so this is a macro.
/// Written in front of a function, this macro makes it callable from host and device, if the compiler knows
/// both.
#if defined(__CUDACC__) || defined(__HIPCC__)
#define KVMELD_HD __host__ __device__
#else
#define KVMELD_HD
#endif
/// Written in front of a KVMELD_HD template that calls functions of its template arguments. Such a function
/// may be for the host alone or for the device alone; this macro keeps nvcc from warning of it.
#if defined(__CUDACC__) && defined(__NVCC__)
#define KVMELD_CALLS_ARGUMENTS _Pragma("nv_exec_check_disable")
#else
#define KVMELD_CALLS_ARGUMENTS
#endif

// Vector kernels are written with the vector extensions of g++ and clang++. Other compilers and other
// processors keep the generic forms.
#if !defined(__CUDACC__) &&                                                                                  \
    ((defined(__clang__) && __clang_major__ >= 12) || (defined(__GNUC__) && __GNUC__ >= 12))
#if defined(__x86_64__)
/// Defined where the host's vector kernels are compiled, for x86-64.
#define KVMELD_TUNED_X86 1
#elif defined(__aarch64__) && defined(__ARM_NEON)
/// Defined where the host's vector kernels are compiled, for AArch64.
#define KVMELD_TUNED_NEON 1
#endif
#endif

/// 1: refusals throw kvmeld::invalid_argument; 0: they are returned as a kvmeld::status.
#if defined(__cpp_exceptions) || defined(__EXCEPTIONS) || defined(_CPPUNWIND)
#define KVMELD_EXCEPTIONS 1
#else
#define KVMELD_EXCEPTIONS 0
#endif

// Inline functions compiled with and without -ffast-math or exceptions differ. Under one name the linker
// would keep an arbitrary one of them. Under different inline namespaces each object keeps its own. The name
// is part of every type that a compiler prints: the version, then a letter for each of the two that differs
// from the default.
#if defined(__FAST_MATH__)
#define KVMELD_ABI_MATH f
#else
#define KVMELD_ABI_MATH
#endif
#if KVMELD_EXCEPTIONS
#define KVMELD_ABI_ERRORS
#else
#define KVMELD_ABI_ERRORS r
#endif
#define KVMELD_ABI_JOIN(major, minor, a, b) v##major##_##minor##a##b
#define KVMELD_ABI_EXPAND(major, minor, a, b) KVMELD_ABI_JOIN(major, minor, a, b)
#define KVMELD_ABI                                                                                           \
  KVMELD_ABI_EXPAND(KVMELD_VERSION_MAJOR, KVMELD_VERSION_MINOR, KVMELD_ABI_MATH, KVMELD_ABI_ERRORS)

namespace kvmeld {
inline namespace KVMELD_ABI {}
}  // namespace kvmeld
