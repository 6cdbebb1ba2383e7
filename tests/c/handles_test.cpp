// Handles, threads, allocators, and programs that are older than the library.
#include "engine.hpp"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <limits>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include <doctest/doctest.h>

namespace {

using c_test::engine;
using c_test::entries;
using c_test::options;
using c_test::refused;

/// Every function that takes a handle, with arguments that are right for a cache.
struct function {
  char const* name;
  std::function<kvmeld_status(kvmeld_cache)> call;
};
std::vector<function> functions() {
  static engine tensors;
  static std::uint32_t sequence = 0, number = 0, lengths[4];
  static float floats[256];
  static std::int32_t positions[64];
  static std::size_t bytes;
  static char const* name;
  return {
      {"kvmeld_rebind", [](kvmeld_cache c) { return kvmeld_rebind(c, &tensors.keys, &tensors.values, 1); }},
      {"kvmeld_policy", [](kvmeld_cache c) { return kvmeld_policy(c, &name); }},
      {"kvmeld_open", [](kvmeld_cache c) { return kvmeld_open(c, 1, 0, 0); }},
      {"kvmeld_close", [](kvmeld_cache c) { return kvmeld_close(c, 0); }},
      {"kvmeld_append", [](kvmeld_cache c) { return kvmeld_append(c, &sequence, &number, 1); }},
      {"kvmeld_commit", [](kvmeld_cache c) { return kvmeld_commit(c, &sequence, &number, 1); }},
      {"kvmeld_fork", [](kvmeld_cache c) { return kvmeld_fork(c, 0, 1); }},
      {"kvmeld_copy_page", [](kvmeld_cache c) { return kvmeld_copy_page(c, 0, 1); }},
      {"kvmeld_truncate", [](kvmeld_cache c) { return kvmeld_truncate(c, 0, 1); }},
      {"kvmeld_drop_positions", [](kvmeld_cache c) { return kvmeld_drop_positions(c, 0, 0, 1); }},
      {"kvmeld_shift", [](kvmeld_cache c) { return kvmeld_shift(c, 0, 1, nullptr, 0); }},
      {"kvmeld_renumber", [](kvmeld_cache c) { return kvmeld_renumber(c, 0, nullptr); }},
      {"kvmeld_needs", [](kvmeld_cache c) { return kvmeld_needs(c, nullptr, nullptr, nullptr); }},
      {"kvmeld_observe",
       [](kvmeld_cache c) {
         return kvmeld_observe(c, 0, 0, 1, KVMELD_FLOAT32, floats, 8, 8, nullptr, 0, 0.0f);
       }},
      {"kvmeld_observe_rows", [](kvmeld_cache c) { return kvmeld_observe_rows(c, 0, 0, 1, floats, 64, 64); }},
      {"kvmeld_set_scores", [](kvmeld_cache c) { return kvmeld_set_scores(c, 0, 0, floats, 64); }},
      {"kvmeld_compress", [](kvmeld_cache c) { return kvmeld_compress(c, &sequence, 1, entries(4)); }},
      {"kvmeld_tokens", [](kvmeld_cache c) { return kvmeld_tokens(c, 0, &number); }},
      {"kvmeld_longest", [](kvmeld_cache c) { return kvmeld_longest(c, 0, &number); }},
      {"kvmeld_lengths", [](kvmeld_cache c) { return kvmeld_lengths(c, 0, lengths); }},
      {"kvmeld_degrees", [](kvmeld_cache c) { return kvmeld_degrees(c, 0, 0, 0, floats, 64); }},
      {"kvmeld_positions", [](kvmeld_cache c) { return kvmeld_positions(c, 0, 0, 0, positions, 64); }},
      {"kvmeld_log_degrees", [](kvmeld_cache c) { return kvmeld_log_degrees(c, 0, 0, floats, 64, 64); }},
      {"kvmeld_warnings", [](kvmeld_cache c) { return kvmeld_warnings(c, 0, &number); }},
      {"kvmeld_attend",
       [](kvmeld_cache c) {
         return kvmeld_attend(c, 0, 0, 1, KVMELD_FLOAT32, floats, 8, 8, KVMELD_FLOAT32, floats + 128, 8, 8,
                              nullptr, 0, 0.0f);
       }},
      {"kvmeld_saved_bytes", [](kvmeld_cache c) { return kvmeld_saved_bytes(c, 0, &bytes); }},
      {"kvmeld_save", [](kvmeld_cache c) { return kvmeld_save(c, 0, floats, sizeof floats); }},
      {"kvmeld_resume", [](kvmeld_cache c) { return kvmeld_resume(c, 0, floats, sizeof floats); }},
      {"kvmeld_destroy", [](kvmeld_cache c) { return kvmeld_destroy(c); }},
  };
}

/// An allocator that counts, that can refuse, and that can hold a call back.
struct counting {
  std::size_t held = 0, most = 0, calls = 0, refuse_from = std::numeric_limits<std::size_t>::max();
  std::size_t largest_alignment = 0, shift = 0;
  std::function<void()> while_allocating;

  kvmeld_allocator functions() {
    return {[](void* context, std::size_t bytes, std::size_t alignment) -> void* {
              auto& self = *static_cast<counting*>(context);
              if (self.while_allocating) self.while_allocating();
              if (++self.calls > self.refuse_from) return nullptr;
              self.largest_alignment = std::max(self.largest_alignment, alignment);
              self.held += bytes;
              self.most = std::max(self.most, self.held);
              std::size_t const room = (bytes + 2 * alignment - 1) / alignment * alignment;
              return static_cast<char*>(std::aligned_alloc(alignment, room)) + self.shift;
            },
            [](void* context, void* memory, std::size_t bytes) {
              auto& self = *static_cast<counting*>(context);
              self.held -= bytes;
              std::free(static_cast<char*>(memory) - self.shift);
            },
            this};
  }
};

}  // namespace

TEST_CASE("stale, foreign and zero handles are refused by every function") {
  kvmeld_cache stale{0};
  {
    engine e("h2o");
    stale = e.cache;
  }
  engine alive("h2o");
  for (std::uint64_t const id : {std::uint64_t{0}, stale.id, alive.cache.id + 1, std::uint64_t{12345}}) {
    for (function const& f : functions()) {
      CAPTURE(f.name);
      refused(f.call({id}), KVMELD_INVALID_HANDLE,
              std::string(f.name) + ": cache is " + std::to_string(id) +
                  "; it must be one that kvmeld_create made and kvmeld_destroy has not destroyed");
    }
  }
  CHECK(functions().size() == 29);  // all that take a handle
}

TEST_CASE("handles are not given out again") {
  std::set<std::uint64_t> seen;
  for (int i = 0; i < 200; ++i) {
    engine e("streaming_llm");
    CHECK(e.cache.id != 0);
    CHECK(seen.insert(e.cache.id).second);
  }
}

TEST_CASE("a cache that is in use is busy, for every function and for kvmeld_destroy") {
  counting memory;
  kvmeld_options o = options("h2o");
  o.allocator = memory.functions();
  engine e(o);
  REQUIRE(kvmeld_open(e.cache, 0, 40, 0) == KVMELD_OK);
  std::mutex lock;
  std::condition_variable changed;
  bool inside = false, go_on = false;
  bool first = true;
  memory.while_allocating = [&] {
    std::unique_lock<std::mutex> held(lock);
    if (!first) return;
    first = false;
    inside = true;
    changed.notify_all();
    changed.wait(held, [&] { return go_on; });
  };
  kvmeld_status status = KVMELD_INTERNAL;
  std::vector<float> const rows(4 * 64, 0.01f);
  // Its scratch grows in the first launch that needs some: the call waits in the allocator.
  std::thread other([&] {
    std::vector<float> q(4 * 8), out(4 * 8);
    status = kvmeld_attend(e.cache, 0, 0, 1, KVMELD_FLOAT32, q.data(), 8, 8, KVMELD_FLOAT32, out.data(), 8, 8,
                           nullptr, 0, 0.0f);
  });
  {
    std::unique_lock<std::mutex> held(lock);
    changed.wait(held, [&] { return inside; });
  }
  for (function const& f : functions()) {
    CAPTURE(f.name);
    refused(f.call(e.cache), KVMELD_BUSY,
            std::string(f.name) + ": cache is in use; it must be free: one call at a time works on a cache");
  }
  {
    engine free_one("h2o");  // other caches are not in the way
    CHECK(kvmeld_open(free_one.cache, 0, 40, 0) == KVMELD_OK);
  }
  {
    std::lock_guard<std::mutex> const held(lock);
    go_on = true;
  }
  changed.notify_all();
  other.join();
  CHECK(status == KVMELD_OK);
  std::uint32_t n = 0;
  CHECK(kvmeld_tokens(e.cache, 0, &n) == KVMELD_OK);
  CHECK(n == 40);
}

TEST_CASE("each thread has a text of its own") {
  CHECK(kvmeld_destroy({1}) == KVMELD_INVALID_HANDLE);
  std::string const before = kvmeld_problem();
  std::string there = "not empty";
  std::thread([&] { there = kvmeld_problem(); }).join();
  CHECK(there.empty());
  CHECK(kvmeld_problem() == before);
}

TEST_CASE(
    "caches in several threads, destroyed and used at random: what comes back is a result or a refusal") {
  std::vector<std::uint64_t> shared(8);
  std::mutex lock;
  std::atomic<int> unexpected{0};
  auto const work = [&](unsigned seed) {
    engine tensors;
    unsigned x = seed;
    for (int i = 0; i < 400; ++i) {
      x = x * 1664525u + 1013904223u;
      std::size_t const slot = x >> 16 & 7;
      kvmeld_cache c{0};
      {
        std::lock_guard<std::mutex> const held(lock);
        c.id = shared[slot];
      }
      kvmeld_status s = KVMELD_OK;
      std::uint32_t n = 0;
      if ((x >> 24) % 4 == 0) {
        kvmeld_options const o = options("streaming_llm");
        kvmeld_cache made{0};
        s = kvmeld_create(&o, &tensors.keys, &tensors.values, 1, &made);
        std::lock_guard<std::mutex> const held(lock);
        shared[slot] = made.id;
        c.id = c.id == 0 ? made.id : c.id;
      } else if ((x >> 24) % 4 == 1) {
        s = kvmeld_destroy(c);
      } else if ((x >> 24) % 4 == 2) {
        s = kvmeld_open(c, 0, 8, 0);
      } else {
        s = kvmeld_longest(c, 0, &n);
      }
      if (s > KVMELD_BUSY) ++unexpected;
    }
  };
  std::thread a(work, 1u), b(work, 2u), c(work, 3u);
  a.join();
  b.join();
  c.join();
  CHECK(unexpected == 0);
  for (std::uint64_t const id : shared) (void)kvmeld_destroy({id});
}

TEST_CASE("kvmeld_bytes tells what a cache takes from an allocator, and all of it comes back") {
  for (char const* const policy :
       {"h2o", "chelsea", "expected_attention rope=half_split frequencies=1,0.5,0.25,0.125",
        "streaming_llm"}) {
    for (std::uint32_t const form : {0u, 1u, 2u}) {
      std::uint32_t const page = form == 0 ? 0 : 16;
      CAPTURE(policy);
      CAPTURE(form);
      counting memory;
      kvmeld_options o = options(policy);
      std::vector<std::int32_t> table{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11};
      o.page_size = page;
      o.page_table = table.data();
      o.page_table_stride = 4;
      o.pool_pages = form == 2 ? 7 : 0;
      std::size_t bytes = 0;
      REQUIRE(kvmeld_bytes(&o, &bytes) == KVMELD_OK);
      o.allocator = memory.functions();
      std::size_t same = 0;
      REQUIRE(kvmeld_bytes(&o, &same) == KVMELD_OK);
      CHECK(same == bytes);
      CHECK(memory.calls == 0);  // asking takes nothing
      {
        engine e;
        if (page != 0) {
          e.keys = {e.k.data(), 12 * 2 * 16 * 8, 2 * 16 * 8, 16 * 8, 8, 1};
          e.values = {e.v.data(), 12 * 2 * 16 * 8, 2 * 16 * 8, 16 * 8, 8, 1};
        }
        REQUIRE(kvmeld_create(&o, &e.keys, &e.values, 1, &e.cache) == KVMELD_OK);
        CHECK(memory.held == bytes);
        CHECK(memory.calls == 1);
      }
      CHECK(memory.held == 0);
      CHECK(memory.largest_alignment >= 64);
    }
  }
}

TEST_CASE("an allocator without memory: the call is refused, and goes well when there is some") {
  counting memory;
  memory.refuse_from = 0;
  kvmeld_options o = options("chelsea");
  o.allocator = memory.functions();
  engine e;
  std::size_t bytes = 0;
  REQUIRE(kvmeld_bytes(&o, &bytes) == KVMELD_OK);
  CHECK(kvmeld_create(&o, &e.keys, &e.values, 1, &e.cache) == KVMELD_NO_MEMORY);
  CHECK(std::string(kvmeld_problem()).rfind("merged_cache: memory in bytes is " + std::to_string(bytes), 0) ==
        0);
  memory.refuse_from = std::numeric_limits<std::size_t>::max();
  REQUIRE(kvmeld_create(&o, &e.keys, &e.values, 1, &e.cache) == KVMELD_OK);
  REQUIRE(kvmeld_open(e.cache, 0, 60, 0) == KVMELD_OK);
  memory.refuse_from = memory.calls;  // no more scratch
  std::vector<float> const before = e.k;
  std::uint32_t const zero = 0;
  CHECK(kvmeld_compress(e.cache, &zero, 1, entries(20)) == KVMELD_NO_MEMORY);
  CHECK(std::string(kvmeld_problem()).find("bytes is ") != std::string::npos);
  std::uint32_t n = 0;
  CHECK(kvmeld_longest(e.cache, 0, &n) == KVMELD_OK);
  CHECK(n == 60);
  CHECK(e.k == before);
  memory.refuse_from = std::numeric_limits<std::size_t>::max();
  CHECK(kvmeld_compress(e.cache, &zero, 1, entries(20)) == KVMELD_OK);
  CHECK(kvmeld_longest(e.cache, 0, &n) == KVMELD_OK);
  CHECK(n == 20);
}

TEST_CASE("an allocator whose memory is not aligned is a defect of the program, and its memory goes back") {
  counting memory;
  memory.shift = 8;
  kvmeld_options o = options();
  o.allocator = memory.functions();
  engine e;
  refused(kvmeld_create(&o, &e.keys, &e.values, 1, &e.cache), KVMELD_INTERNAL,
          "kvmeld_create: memory of the allocator is not aligned; it must be at a multiple of the alignment "
          "that it "
          "was asked for");
  CHECK(memory.calls == 1);
  CHECK(memory.held == 0);
}

TEST_CASE("options of a program that is older than the library") {
  // Its structure ends behind the element; the library must neither read nor write what follows.
  std::size_t const bytes = 48;
  kvmeld_options o;
  std::memset(&o, 0x5a, sizeof o);
  REQUIRE(kvmeld_options_init(&o, bytes) == KVMELD_OK);
  CHECK(o.bytes == bytes);
  CHECK(o.policy == nullptr);
  CHECK(o.capacity == 0);
  auto const* const raw = reinterpret_cast<unsigned char const*>(&o);
  for (std::size_t i = bytes; i < sizeof o; ++i) CHECK(raw[i] == 0x5a);
  kvmeld_options const full = options();
  std::memcpy(&o.policy, &full.policy, bytes - offsetof(kvmeld_options, policy));
  engine e;
  REQUIRE(kvmeld_create(&o, &e.keys, &e.values, 1, &e.cache) ==
          KVMELD_OK);  // a scope of 0x5a5a5a5a is not read
  CHECK(kvmeld_open(e.cache, 0, 5, 0) == KVMELD_OK);
  // One that ends inside the allocator has none.
  counting memory;
  kvmeld_options cut = options();
  cut.allocator = memory.functions();
  cut.bytes = offsetof(kvmeld_options, allocator) + 16;
  engine other;
  REQUIRE(kvmeld_create(&cut, &other.keys, &other.values, 1, &other.cache) == KVMELD_OK);
  CHECK(memory.calls == 0);
}

TEST_CASE("options of a program that is newer than the library: set to zeros, and refused") {
  struct {
    kvmeld_options known;
    std::uint64_t more[2];
  } o;
  std::memset(&o, 0x5a, sizeof o);
  CHECK(kvmeld_options_init(&o.known, sizeof o) == KVMELD_OK);
  CHECK(o.more[1] == 0);
  CHECK(o.known.device == -1);
  std::size_t n = 0;
  CHECK(kvmeld_bytes(&o.known, &n) == KVMELD_INVALID_ARGUMENT);
}

TEST_CASE("the defaults, the version and the list of policies") {
  kvmeld_options o;
  std::memset(&o, 0x5a, sizeof o);
  REQUIRE(kvmeld_options_init(&o, sizeof o) == KVMELD_OK);
  kvmeld_options wanted{};
  wanted.bytes = sizeof o;
  wanted.device = -1;
  CHECK(std::memcmp(&o, &wanted, sizeof o) == 0);
  CHECK(std::string(kvmeld_version()).find('.') != std::string::npos);
  // Every name of the list makes a cache.
  std::string const list = kvmeld_policies();
  std::size_t count = 0;
  for (std::size_t at = 0; at < list.size(); ++count) {
    std::size_t const tab = list.find('\t', at), end = list.find('\n', at);
    REQUIRE(tab < end);
    REQUIRE(end != std::string::npos);
    std::string const name = list.substr(at, tab - at);
    CAPTURE(name);
    CHECK(end - tab > 10);
    kvmeld_rope const rope{KVMELD_ROPE_HALF_SPLIT, 0, 0.0, 0.0, nullptr};
    kvmeld_options named = options(name.c_str());
    named.rope = &rope;
    std::vector<float> const weights(std::size_t{named.layers} * named.kv_heads * (2 * named.key_dim + 2),
                                     0.5f);
    kvmeld_learned const learned{named.layers, named.kv_heads, named.key_dim, weights.data()};
    named.learned = &learned;
    engine e(named);
    CHECK(kvmeld_open(e.cache, 0, 1, 0) == KVMELD_OK);
    at = end + 1;
  }
  CHECK(count >= 30);
}

TEST_CASE("budgets that tracks share, padded tracks and cleared rows are the options of C++") {
  kvmeld_options o = options("score=key_norm select=top recents=1");
  o.budgets_over = KVMELD_ALL_LAYERS;
  o.zero_emptied = 1;
  engine e(o);
  std::uint32_t const zero = 0;
  REQUIRE(kvmeld_open(e.cache, 0, 40, 0) == KVMELD_OK);
  REQUIRE(kvmeld_compress(e.cache, &zero, 1, {10, 0.0, KVMELD_ALL_LAYERS, 0.1, 0}) == KVMELD_OK);
  std::uint32_t lengths[4];
  REQUIRE(kvmeld_lengths(e.cache, 0, lengths) == KVMELD_OK);
  CHECK(lengths[0] + lengths[1] + lengths[2] + lengths[3] == 40);
  CHECK((lengths[0] != 10 || lengths[1] != 10 || lengths[2] != 10));
  for (std::int64_t i = lengths[0] * 8; i < 40 * 8; ++i) CHECK(e.v[static_cast<std::size_t>(i)] == 0.0f);

  o = options("score=key_norm select=top recents=1");
  o.scope = KVMELD_ALL_LAYERS;
  engine one_plan(o);
  REQUIRE(kvmeld_open(one_plan.cache, 0, 40, 0) == KVMELD_OK);
  REQUIRE(kvmeld_compress(one_plan.cache, &zero, 1, entries(10)) == KVMELD_OK);
  std::int32_t first[10], other[10];
  REQUIRE(kvmeld_positions(one_plan.cache, 0, 0, 0, first, 10) == KVMELD_OK);
  REQUIRE(kvmeld_positions(one_plan.cache, 1, 0, 1, other, 10) == KVMELD_OK);
  CHECK(std::memcmp(first, other, sizeof first) == 0);
}
