// Texts that go on: what is read, what is held and what is asked, and the report of it.
#include <demo/stream.hpp>

#include "files.hpp"
#include "model_files.hpp"
#include "stream_report.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

namespace stream_cases {

namespace {

using policy = kvmeld::preset::streaming_llm::type;
using tiny_llama::stream_row;

std::string some_text(std::size_t size) {
  tiny_llama::splitmix64 random(4);
  std::string out;
  while (out.size() < size) out += random.below(50) == 0 ? '\n' : static_cast<char>('a' + random.below(26));
  return out;
}

tiny_llama::model byte_model(int positions) {
  nlohmann::json config = test::config_json(true);
  config["vocab_size"] = 256;
  config["max_position_embeddings"] = positions;
  return {tiny_llama::parse_config("config.json", config.dump()), test::random_weights(true, 3, 256)};
}

void read_into(
    stream_row& row, tiny_llama::model& model, std::vector<demo::stream> const& conversations,
    std::size_t shared, demo::stream_plan plan, std::function<void()> done = [] {}) {
  demo::stream_reader<policy> beginning(model, kvmeld::preset::streaming_llm::with_sinks(2), {}, plan, row,
                                        std::move(done));
  demo::read_conversations(beginning, conversations, shared);
}

stream_row read(tiny_llama::model& model, demo::stream const& s, demo::stream_plan plan) {
  stream_row figures;
  std::size_t parts = 0;
  read_into(figures, model, {s}, 0, plan, [&] { ++parts; });
  CHECK(parts == s.ends.size());
  CHECK(figures.parts.size() == parts);
  return figures;
}

std::uint64_t sum(std::vector<std::uint64_t> const& of) {
  std::uint64_t out = 0;
  for (std::uint64_t x : of) out += x;
  return out;
}

}  // namespace

TEST_CASE("each part of a stream tells one number whole") {
  std::string const text = some_text(9000);
  for (int const parts : {2, 3, 10, 32}) {
    for (int const length : {tiny_llama::min_context(parts), 2500, 4096}) {
      for (std::uint64_t index = 0; index < 20; ++index) {
        tiny_llama::needle_request const request{length, parts, 0, 5, index};
        demo::stream const s = demo::make_stream(text, request);
        REQUIRE(s.tokens.size() == static_cast<std::size_t>(length));
        REQUIRE(s.facts.size() == static_cast<std::size_t>(parts));
        REQUIRE(s.ends.size() == s.facts.size());
        CHECK(s.ends.back() == s.tokens.size());
        std::size_t begin = 0;
        for (std::size_t i = 0; i < s.ends.size(); ++i) {
          CHECK(begin <= static_cast<std::size_t>(s.facts[i].begin));
          CHECK(static_cast<std::size_t>(s.facts[i].end) <= s.ends[i]);
          CHECK((s.ends[i] - begin) * s.ends.size() <= 2 * s.tokens.size() + s.ends.size());
          begin = s.ends[i];
        }
      }
    }
  }
}

TEST_CASE("a stream read in whatever steps has the bits of one reading, if nothing is compressed") {
  tiny_llama::model model = byte_model(2048);
  demo::stream const s = demo::make_stream(some_text(3000), {700, 4, 0, 1, 0});
  // By hand: one reading of the text, and -log2 of the softmax of each next byte outside of planted
  // sentences.
  std::vector<double> bits(4);
  std::vector<std::uint64_t> bytes(4);
  std::vector<float> logits;
  tiny_llama::engine<policy> whole(model, kvmeld::preset::streaming_llm::with_sinks(2), 800);
  whole.read(
      s.tokens, logits, [](auto&&...) {}, tiny_llama::every_token);
  for (std::size_t t = 0; t + 1 < s.tokens.size(); ++t) {
    bool planted = false;
    for (tiny_llama::needle const& fact : s.facts)
      planted = planted || (static_cast<int>(t) + 1 >= fact.begin && static_cast<int>(t) + 1 < fact.end);
    if (planted) continue;
    double all = 0;
    for (std::size_t v = 0; v < 256; ++v) all += std::exp(static_cast<double>(logits[t * 256 + v]));
    std::size_t part = 0;
    while (t >= s.ends[part]) ++part;
    bits[part] +=
        std::log2(all) -
        static_cast<double>(logits[t * 256 + static_cast<std::size_t>(s.tokens[t + 1])]) / std::log(2.0);
    ++bytes[part];
  }
  for (std::size_t const chunk : {1u, 64u, 1000u}) {
    CAPTURE(chunk);
    bool const one_by_one = chunk == 1;
    // A budget above the length compresses nothing.
    for (std::uint32_t const entries : {0u, 700u}) {
      stream_row const got = read(model, s, {one_by_one, one_by_one ? 64 : chunk, entries, false, 800});
      std::size_t begin = 0;
      for (std::size_t i = 0; i < 4; ++i) {
        tiny_llama::stream_part const& part = got.parts[i];
        CHECK(part.tokens == s.ends[i] - begin);
        begin = s.ends[i];
        CHECK(part.bytes == bytes[i]);
        CHECK(part.bits == doctest::Approx(bits[i]).epsilon(1e-3));
        CHECK(part.longest_entries == s.ends[i]);
        CHECK(part.asked == std::vector<std::uint64_t>(i + 1, 5));
        CHECK(sum(part.right) <= sum(part.asked));
        CHECK(part.seconds > 0);
        CHECK((part.compress_seconds > 0) == (entries != 0));
      }
      for (std::size_t told = 0; told < 4; ++told) {
        demo::recall_result const wanted = demo::ask(whole, tiny_llama::byte_tokens(s.facts[told].question),
                                                     tiny_llama::byte_tokens(s.facts[told].answer));
        CHECK(got.parts.back().right[told] == static_cast<std::uint64_t>(wanted.right));
      }
    }
  }
}

TEST_CASE("a stream longer than the model has positions for stays within its budget and a chunk") {
  tiny_llama::model model = byte_model(256);
  demo::stream const s = demo::make_stream(some_text(3000), {1500, 5, 0, 2, 0});
  std::uint32_t const room = 60 + 32 + 64;  // all that there ever is
  for (bool const one_by_one : {true, false}) {
    stream_row got = read(model, s, {one_by_one, 32, 60, true, room});
    for (tiny_llama::stream_part const& part : got.parts) CHECK(part.longest_entries == 60 + 32);
    CHECK(got.peak_entries() == 92);
    // A second text adds to the same row.
    read_into(got, model, {s}, 0, {one_by_one, 32, 60, true, room});
    CHECK(got.parts.back().asked == std::vector<std::uint64_t>(5, 10));
    CHECK(got.parts.front().tokens == 2 * s.ends.front());
  }
  // Positions that are kept run out.
  stream_row figures;
  CHECK(test::has(test::refusal<std::invalid_argument>([&] {
                    read_into(figures, model, {s}, 0, {false, 32, 60, false, room});
                  }),
                  "position"));
}

TEST_CASE("two conversations begin alike and go on with texts of their own") {
  demo::stream const whole = demo::make_stream(some_text(3000), {1200, 8, 0, 3, 0});
  auto const text_of = [](demo::stream const& s, std::size_t i) {
    auto const at = [&](int token) { return s.tokens.begin() + token; };
    return std::vector<int>(at(s.facts[i].begin), at(s.facts[i].end));
  };
  demo::stream const alone = demo::conversation(whole, 0, 8, 0);
  CHECK(alone.tokens == whole.tokens);
  CHECK(alone.ends == whole.ends);
  std::vector<demo::stream> const both{demo::conversation(whole, 2, 3, 0),
                                       demo::conversation(whole, 2, 3, 1)};
  auto const part_of = [](demo::stream const& s, std::size_t i) {
    auto const at = [&](std::size_t token) { return s.tokens.begin() + static_cast<std::ptrdiff_t>(token); };
    return std::vector<int>(at(i == 0 ? 0 : s.ends[i - 1]), at(s.ends[i]));
  };
  for (std::size_t which : {0u, 1u}) {
    demo::stream const& s = both[which];
    REQUIRE(s.ends.size() == 5);
    REQUIRE(s.facts.size() == 5);
    CHECK(s.ends.back() == s.tokens.size());
    for (std::size_t i = 0; i < 5; ++i) {
      std::size_t const from = i < 2 ? i : i + 3 * which;
      CHECK(part_of(s, i) == part_of(whole, from));
      CHECK(s.facts[i].answer == whole.facts[from].answer);
      CHECK(text_of(s, i) == text_of(whole, from));
    }
  }

  // Without compression: what is shared counts once, everything else as if each had been read alone.
  tiny_llama::model model = byte_model(2048);
  stream_row together;
  read_into(together, model, both, 2, {false, 64, 0, false, 1300});
  CHECK(together.shared_entries == 0);
  stream_row const first = read(model, both[0], {false, 64, 0, false, 1300}),
                   second = read(model, both[1], {false, 64, 0, false, 1300});
  REQUIRE(together.parts.size() == 5);
  for (std::size_t i = 0; i < 5; ++i) {
    tiny_llama::stream_part const &t = together.parts[i], &a = first.parts[i], &b = second.parts[i];
    bool const own = i >= 2;
    CHECK(t.tokens == a.tokens + (own ? b.tokens : 0));
    // The last byte of what is shared foretells the first conversation's next byte alone.
    CHECK(t.bits == doctest::Approx(a.bits + (own ? b.bits : 0)).epsilon(1e-6));
    CHECK(sum(t.asked) == sum(a.asked) * (own ? 2 : 1));
    CHECK(sum(t.right) == sum(a.right) + (own ? sum(b.right) : 0));
    CHECK(t.longest_entries == std::max(a.longest_entries, own ? b.longest_entries : 0));
  }
  // With it, the frozen entries are their share of the budget, and both keep to the whole one.
  stream_row small;
  read_into(small, model, both, 2, {false, 64, 120, false, 300});
  CHECK(small.shared_entries ==
        kvmeld::floor_share(static_cast<double>(both[0].ends[1]) / static_cast<double>(both[0].tokens.size()),
                            120));
  CHECK(small.peak_entries() <= 120 + 64);
}

TEST_CASE("what a conversation shares stays as it is") {
  tiny_llama::model model = byte_model(2048);
  demo::stream const s = demo::make_stream(some_text(3000), {600, 3, 0, 3, 0});
  std::vector<float> logits;
  tiny_llama::engine<policy> engine(model, kvmeld::preset::streaming_llm::with_sinks(2), 700);
  engine.read({s.tokens.begin(), s.tokens.begin() + 200}, logits, [](auto&&...) {});
  engine.compress_to(50);
  engine.freeze();
  tiny_llama::engine<policy> own(engine);
  own.read({s.tokens.begin() + 200, s.tokens.end()}, logits, [](auto&&...) {});
  own.compress_to(80);
  CHECK(own.cache().longest(0) == 80);
  auto const layers = static_cast<std::size_t>(model.shape().layers);
  std::size_t const row = own.keys().size() / layers / 700;  // of a slot in each layer
  for (std::size_t layer = 0; layer < layers; ++layer) {
    std::size_t const begin = layer * 700 * row;
    for (std::size_t i = begin; i < begin + 50 * row; ++i) {
      CHECK(kvmeld::element_traits<kvmeld::float16>::to_float(own.keys()[i]) ==
            kvmeld::element_traits<kvmeld::float16>::to_float(engine.keys()[i]));
    }
  }
}

TEST_CASE("streams: figures, table and JSON") {
  tiny_llama::stream_report report{"m", "turns", 1000, 2, 0, false, 0, 7, 2048, {}};
  stream_row full{"full", "full", 1.0, 0, 0, {}};
  full.parts.push_back({500, 0.5, 0, 400, 800, 250, {10}, {9}});
  full.parts.push_back({300, 0.6, 0, 100, 300, 400, {10, 10}, {5, 10}});
  full.parts.push_back({200, 0.2, 0, 100, 150, 500, {10, 10, 10}, {2, 8, 4}});
  CHECK(full.bits_per_byte(0, 1) == doctest::Approx(2));
  CHECK(full.bits_per_byte(0, 3) == doctest::Approx(1250.0 / 600));
  CHECK(full.bits_per_byte(1, 1) < 0);
  CHECK(full.ms_per_token(1, 3) == doctest::Approx(1.6));
  CHECK(full.compression_share() < 0);
  CHECK(full.recall(2, 1) == doctest::Approx(0.8));
  CHECK(full.recall(1, 2) < 0);
  CHECK(full.recall_at_once() == doctest::Approx(23.0 / 30));
  CHECK(full.recall_at_the_end() == doctest::Approx(14.0 / 30));
  CHECK(full.peak_entries() == 500);
  stream_row merging = full;
  merging.method = "a method with a long name";
  merging.kind = "merge";
  merging.budget = 0.2;
  merging.entries = 100;
  merging.parts[1].compress_seconds = 0.13;
  CHECK(merging.compression_share() == doctest::Approx(0.1));
  report.rows = {full, merging};

  std::ostringstream out;
  tiny_llama::print_table(report, out);
  std::vector<std::string> lines;
  std::istringstream in(out.str());
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  REQUIRE(lines.size() > 8);
  CHECK(lines[0] == "m: 2 texts of 1000 tokens, 3 turns; compressed after each turn; seed 7");
  CHECK(test::has(lines[5], "2.000  1.500"));
  CHECK(test::has(lines[5], "76.7%   46.7%    20.0%"));
  CHECK(test::has(lines[5], "500  1000"));
  CHECK(test::has(lines[7], "10.0%"));
  for (std::size_t i : {3u, 4u, 5u, 6u, 7u}) CHECK(lines[i].size() == lines[4].size());
  CHECK(lines[2].find("bits per byte:") == lines[3].find("first") - 2);
  CHECK(lines[2].find("peak:") == lines[3].find("entries"));
  CHECK(test::has(out.str(), "first, last: 1 of 3 parts."));
  tiny_llama::stream_report generated{"m", "generate", 600, 1, 64, true, 0, 1, 2048, {}};
  std::ostringstream other;
  tiny_llama::print_table(generated, other);
  CHECK(other.str().rfind(
            "m: 1 text of 600 tokens, read one at a time, 0 numbers told on the way; compressed after "
            "every 64 tokens, positions renumbered; seed 1\n",
            0) == 0);

  report.shared = 2;
  report.rows[1].shared_entries = 40;
  std::ostringstream shared;
  tiny_llama::print_table(report, shared);
  CHECK(test::has(shared.str(), "3 turns, the first 2 of them shared by two conversations; compressed"));
  CHECK(test::has(shared.str(), "20%   320 KiB, 400 KiB\n"));

  test::temporary_folder const folder;
  tiny_llama::write_json(report, folder / "s.json");
  auto const read = nlohmann::json::parse(tiny_llama::read_file(folder / "s.json", 1 << 20));
  CHECK(read["mode"] == "turns");
  CHECK(read["length"] == 1000);
  CHECK(read["contexts"] == 2);
  CHECK(read["chunk"] == 0);
  CHECK(read["renumbered"] == false);
  CHECK(read["seed"] == 7);
  CHECK(read["shared"] == 2);
  CHECK(read["streams"][1]["shared_entries"] == 40);
  CHECK(read["bytes_per_entry"] == 2048);
  REQUIRE(read["streams"].size() == 2);
  CHECK(read["streams"][0]["compression_share"].is_null());
  CHECK(read["streams"][1]["entries"] == 100);
  auto const& parts = read["streams"][1]["parts"];
  CHECK(parts[1]["tokens"] == 300);
  CHECK(parts[1]["bits_per_byte"] == 3.0);
  CHECK(parts[1]["ms_per_token"] == 2.0);
  CHECK(parts[1]["compress_seconds"] == 0.13);
  CHECK(parts[1]["longest_entries"] == 400);
  CHECK(parts[2]["recall"] == nlohmann::json::array({0.2, 0.8, 0.4}));
}

}  // namespace stream_cases
