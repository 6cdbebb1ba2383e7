// Bytes that are no saved ledger, not this cache's, or make no sense: refused, with the cache as it was.
#include "life.hpp"
#include "saved_edits.hpp"

namespace refused_bytes_cases {

using namespace sequences_test;
using cache_test::check_text;
using cache_test::refusal_of;
using cache_test::refused;
using saved_edits::sealed;
using saved_edits::with;

namespace {

constexpr kvmeld::shape extent{1, 2, 1, 1, 4, 4, 16};

auto make(support::engine_memory<float>& memory) {
  return support::make_cache(memory, kvmeld::preset::snapkv::with_window(3, {1, kvmeld::pooling_mode::mean}));
}
using cache_type = decltype(make(std::declval<support::engine_memory<float>&>()));

// Sequence 0 with 5 entries of 9 tokens and one pending; 1 is closed.
struct world {
  support::engine_memory<float> memory{extent};
  cache_type cache = make(memory);
  support::byte_list bytes;
  world() {
    support::dice d(1);
    open(cache, d, 0, 8, 1, 3);
    cache.compress({0}, budget::entries(4));
    feed(cache, d, 0, 1);
    cache.append({0}, {1});
    bytes = cache.save(0);
  }
  kvmeld::saved::terms terms() const {
    return {
        kvmeld::name_of_policy(cache.policy()), "window 3", "float32 keys, float32 values", 1, false, false};
  }
  void refuses(support::byte_list const& from, std::initializer_list<char const*> parts) {
    refused(
        cache, memory, [&](auto& c) { c.resume(1, from); }, parts);
  }
};

// Bytes up to the first number of the sequence itself.
std::size_t head_bytes(kvmeld::ledger_ref const& l, kvmeld::saved::terms const& own) {
  std::size_t numbers = 3;
  kvmeld::saved::for_each_identity(l, own, [&](char const*, std::uint32_t) { ++numbers; });
  return sizeof(kvmeld::saved::header) + 4 * numbers + own.policy.size() + own.facts.size() + own.rows.size();
}

}  // namespace

TEST_CASE("every change of a byte and every missing end is refused") {
  world w;
  support::byte_list const ledger = support::ledger_bytes(w.cache);
  std::size_t refusals = 0, tried = 0;
  for (std::size_t i = 0; i < w.bytes.size(); ++i) {
    for (unsigned flip = 1; flip < 256; flip += i < sizeof(kvmeld::saved::header) ? 1 : 23) {
      auto bytes = w.bytes;
      bytes[i] ^= static_cast<std::byte>(flip);
      refusals += refusal_of([&] { w.cache.resume(1, bytes); }).empty() ? 0 : 1;
      ++tried;
    }
    auto const shorter =
        support::byte_list(w.bytes.begin(), w.bytes.begin() + static_cast<std::ptrdiff_t>(i));
    refusals += refusal_of([&] { w.cache.resume(1, shorter); }).empty() ? 0 : 1;
    ++tried;
  }
  CHECK(refusals == tried);
  auto longer = w.bytes;
  longer.push_back(std::byte{0});
  CHECK_FALSE(refusal_of([&] { w.cache.resume(1, longer); }).empty());
  CHECK(support::ledger_bytes(w.cache) == ledger);
  w.cache.resume(1, w.bytes);
  CHECK(w.cache.save(1) == w.bytes);
}

TEST_CASE("any contents under a matching checksum are refused or usable") {
  world w;
  support::dice d(9);
  std::size_t accepted = 0, refusals = 0;
  constexpr std::uint32_t words[] = {0u,          1u,          2u,          17u,        0x7fffffffu,
                                     0x80000000u, 0xfffffffeu, 0xffffffffu, 0x7fc00000u};
  auto const take = [&](support::byte_list const& bytes) {
    if (!refusal_of([&] { w.cache.resume(1, bytes); }).empty()) {
      ++refusals;
      return;
    }
    ++accepted;
    // What was accepted can be lived with; a next token may be one too many for its numbers.
    refusal_of([&] {
      w.cache.commit({1}, {0});
      w.cache.append({1}, {1});
      w.cache.commit({1}, {1});
      score(w.cache, d, 1);
      w.cache.compress({1}, budget::entries(4));
    });
    w.cache.close(1);
  };
  for (std::size_t i = sizeof(kvmeld::saved::header); i < w.bytes.size(); ++i) {
    auto bytes = w.bytes;
    bytes[i] ^= static_cast<std::byte>(1 + d.below(255));
    take(sealed(bytes));
    if (i + 4 > w.bytes.size()) continue;
    for (std::uint32_t x : words) take(sealed(with(w.bytes, i, x)));
    bytes = support::byte_list(w.bytes.begin(), w.bytes.begin() + static_cast<std::ptrdiff_t>(i));
    take(sealed(with(bytes, offsetof(kvmeld::saved::header, bytes), std::uint64_t{i})));
  }
  CHECK(refusals > accepted);
  CHECK(accepted > 50);
}

TEST_CASE("resume refuses by name") {
  using kvmeld::saved::header;
  world w;
  auto const& b = w.bytes;
  refused(w.cache, w.memory, [&](auto& c) { c.resume(2, b); }, {"resume", "sequence is 2", "0 to 1"});
  refused(w.cache, w.memory, [&](auto& c) { c.resume(0, b); },
          {"resume", "resume: sequence is 0", "it must be closed (call close first)", "close"});
  w.refuses({},
            {"resume", "resume: number of bytes is 0", "it must be at least 32, the head of a saved ledger"});
  w.refuses(with(b, 0, 'K'), {"resume", "resume: beginning of the bytes is something else",
                              "it must be that of a ledger saved by kvmeld"});
  w.refuses(with(b, offsetof(header, byte_order), 0x04030201u), {"resume", "byte order"});
  w.refuses(with(b, offsetof(header, version), 1u),
            {"resume", "resume: version of the format is 1", "it must be 3"});
  w.refuses(sealed(with(b, offsetof(header, reserved), 3u)),
            {"resume: reserved word of the saved ledger is 3", "it must be 0"});
  w.refuses(sealed(with(b, offsetof(header, version), 0u)),
            {"resume", "resume: version of the format is 0", "it must be 3"});
  auto longer = b;
  longer.push_back(std::byte{1});
  w.refuses(longer, {"resume", "resume: number of bytes is 362", "it must be 361, as the ledger was saved",
                     "it must be 361, as the ledger was saved"});
  w.refuses(with(b, b.size() - 1, char{99}), {"resume", "checksum"});
  longer = sealed(with(longer, offsetof(header, bytes), std::uint64_t{longer.size()}));
  w.refuses(longer, {"resume", "resume: size of the saved ledger is another"});
  auto shorter = support::byte_list(b.begin(), b.begin() + 40);
  w.refuses(sealed(with(shorter, offsetof(header, bytes), std::uint64_t{40})),
            {"resume", "resume: saved ledger is cut off in its head"});
  std::size_t const length = head_bytes(w.cache.ledger(), w.terms()) + 4 * (4 + kvmeld::sequence_word::count);
  w.refuses(sealed(with(b, length, 17u)),
            {"resume", "resume: number of entries of a track of the saved ledger is 17",
             "it must be at most 16, the capacity of this cache"});
  w.refuses(sealed(with(b, length, 5u)), {"resume", "resume: size of the saved ledger is another"});
}

TEST_CASE("resume refuses another cache's ledger") {
  world w;
  auto const elsewhere = [&](kvmeld::shape const& s, auto const& policy, kvmeld::cache_options options,
                             std::initializer_list<char const*> parts) {
    support::engine_memory<float> memory(s);
    auto cache = support::make_cache(memory, policy, options);
    refused(
        cache, memory, [&](auto& c) { c.resume(0, w.bytes); }, parts);
  };
  auto const policy = w.cache.policy();
  auto const shaped = [&](kvmeld::shape s, std::initializer_list<char const*> parts) {
    elsewhere(s, policy, {}, parts);
  };
  shaped({2, 2, 1, 1, 4, 4, 16},
         {"resume: shape.layers of the saved ledger is 1", "it must be 2, as in this cache"});
  shaped({1, 2, 2, 1, 4, 4, 16}, {"resume: shape.kv_heads of the saved ledger is 1", "2"});
  shaped({1, 2, 1, 3, 4, 4, 16}, {"resume: shape.queries_per_kv_head of the saved ledger is 1", "3"});
  shaped({1, 2, 1, 1, 5, 4, 16}, {"resume: shape.key_dim of the saved ledger is 4", "5"});
  shaped({1, 2, 1, 1, 4, 6, 16}, {"resume: shape.value_dim of the saved ledger is 4", "6"});
  shaped({1, 2, 1, 1, 4, 4, 5}, {"resume: number of entries of a track of the saved ledger is 6",
                                 "it must be at most 5, the capacity of this cache"});
  kvmeld::cache_options options{};
  options.first_layer = 3;
  elsewhere(extent, policy, options, {"resume: options.first_layer of the saved ledger is 0", "3"});
  options = {};
  options.first_kv_head = 4;
  elsewhere(extent, policy, options, {"resume: options.first_kv_head of the saved ledger is 0", "4"});
  elsewhere(extent, policy, support::with_plan(4),
            {"resume: options.members of the saved ledger is 0", "it must be 4, as in this cache"});
  elsewhere(extent, kvmeld::preset::streaming_llm::with_sinks(1), {},
            {"resume: number of score channels of the saved ledger is 2", "0"});
  elsewhere(extent, kvmeld::preset::h2o::defaults(), {},
            {"resume: number of score channels of the saved ledger is 2", "1"});
  // The same channels in another policy.
  kvmeld::policy const mixed{policy.score, policy.select, kvmeld::identify::none{}, kvmeld::merge::drop{}};
  elsewhere(extent, mixed, {},
            {"resume: policy of the saved ledger is \"local x top x evict_rest x drop\"",
             "local x top x none x drop"});
}

TEST_CASE("resume refuses ledgers that contradict themselves") {
  auto const broken = [](auto breaks, char const* what) {
    world w, other;
    kvmeld::ledger_ref const& l = other.cache.ledger();
    breaks(l);
    w.refuses(other.cache.save(0),
              {"resume", "resume: saved track (layer 0, head 0) is one with", "layer 0, head 0", what});
  };
  using kvmeld::ledger_ref;
  broken([](ledger_ref const& l) { l.pending[0] = 7; }, "more pending entries than entries");
  broken([](ledger_ref const& l) { l.sequence_state(0, kvmeld::sequence_word::compressed_at) = 10; },
         "a compression of more tokens");
  broken([](ledger_ref const& l) { l.sequence_state(0, kvmeld::sequence_word::gap_end) = 10; },
         "a gap behind the tokens seen");
  broken([](ledger_ref const& l) { l.frozen[0] = 6; }, "a frozen beginning longer");
  broken(
      [](ledger_ref const& l) {
        l.seen[0] = 4;
        l.sequence_state(0, kvmeld::sequence_word::compressed_at) = 4;
      },
      "more entries than tokens seen");
  broken([](ledger_ref const& l) { l.seen[0] = 14; }, "fewer entries than tokens seen since");
  broken([](ledger_ref const& l) { l.track_words[kvmeld::track_word::changed] = 2; },
         "a flag that is neither");
  for (float bad : {0.0f, -1.0f, kvmeld::bits_float(0x7fc00000u), kvmeld::bits_float(0x7f800000u)})
    broken([&](ledger_ref const& l) { l.degree[5] = bad; }, "an entry that stands for no tokens");
  for (float bad : {0x1.000002p90f, 3e38f})
    broken([&](ledger_ref const& l) { l.degree[4] = bad; },
           "an entry that stands for more tokens than any plan");
  broken([](ledger_ref const& l) { l.flags[2] = 8; }, "unknown flags");
  // Sequence 0 holds 5 entries and a pending one, which is token 9.
  broken([](ledger_ref const& l) { l.position[2] = l.position[1]; }, "do not ascend");
  broken([](ledger_ref const& l) { l.position[0] = -1; }, "do not ascend");
  broken([](ledger_ref const& l) { l.position[5] = 10; }, "beyond the tokens");
  broken([](ledger_ref const& l) { l.position[5] = 0x7fffffff; }, "beyond the tokens");
  broken([](ledger_ref const& l) { l.degree[5] = 2.0f; }, "pending entry");
  broken([](ledger_ref const& l) { l.seen[0] = 10; }, "pending entry");
  // Members: an owner beyond the track, another order, a norm that is no number.
  support::engine_memory<float> memory(extent);
  auto cache =
      support::make_cache(memory, kvmeld::preset::streaming_llm::with_sinks(1), support::with_plan(4));
  cache.open(0, 3);
  cache.ledger().members.count[0] = 1;
  cache.ledger().members.owner[0] = 3;
  std::uint32_t& compressed_at = cache.ledger().sequence_state(0, kvmeld::sequence_word::compressed_at);
  compressed_at = 3;
  auto const refuses = [&](char const* what) {
    check_text(refusal_of([&] { cache.resume(1, cache.save(0)); }),
               {"resume: saved track (layer 0, head 0) is one with", what});
  };
  refuses("a member of an entry it does not hold");
  kvmeld::member_ref const& m = cache.ledger().members;
  m.count[0] = 2;
  m.owner[0] = 2;
  m.owner[1] = 1;
  refuses("ordered by owner");
  m.owner[1] = 2;
  for (float bad : {-1.0f, kvmeld::bits_float(0x7fc00000u)}) {
    m.norm[1] = bad;
    refuses("norm");
  }
  m.norm[1] = 1.0f;
  for (kvmeld::position_t bad : {-1, 3, 0x7fffffff}) {  // three tokens were seen
    m.position[1] = bad;
    refuses("a member whose position is not that of a token seen");
  }
  m.position[1] = 2;
  compressed_at = 2;  // token 2 came later: it is entry 2
  refuses("a member of an entry that came after its last compression");
  m.owner[0] = m.owner[1] = 1;
  refuses("a member whose position is not that of a token seen before its last compression");
  m.position[1] = 1;
  cache.resume(1, cache.save(0));
}

TEST_CASE("save refuses") {
  world w;
  support::byte_list out(w.bytes.size() - 1);
  auto const refuses = [&](auto call, std::initializer_list<char const*> parts) {
    refused(w.cache, w.memory, call, parts);
  };
  refuses([&](auto& c) { c.save(0, out); }, {"save", "save: number of bytes of out is 360", "saved_bytes"});
  refuses([](auto& c) { c.save(1); }, {"save", "save: sequence is 1", "it must be open (call open first)"});
  refuses([](auto& c) { c.saved_bytes(2); }, {"save", "sequence is 2", "0 to 1"});
  refuses([&](auto& c) { c.save(2, out); }, {"save", "sequence is 2", "0 to 1"});
}

TEST_CASE("the checksum is CRC-32") {
  char const digits[] = "123456789";
  CHECK(kvmeld::detail::crc32(reinterpret_cast<std::byte const*>(digits), 9) == 0xcbf43926u);
  std::uint32_t const first = kvmeld::detail::crc32(reinterpret_cast<std::byte const*>(digits), 4);
  CHECK(kvmeld::detail::crc32(reinterpret_cast<std::byte const*>(digits) + 4, 5, first) == 0xcbf43926u);
}

}  // namespace refused_bytes_cases
