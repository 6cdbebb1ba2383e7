// Texts that go on: what is read, what is held and what is asked, and the report of it.
#include <demo/stream.hpp>

#include "files.hpp"
#include "model_files.hpp"
#include "stream_report.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <sstream>

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

stream_row read(tiny_llama::model& model, demo::stream const& s, demo::stream_plan plan) {
  stream_row figures;
  std::size_t parts = 0;
  demo::read_stream(model, policy(kvmeld::preset::streaming_llm::with_sinks(2)), {}, s, plan, figures,
                    [&] { ++parts; });
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
      s.tokens, logits, [](auto&&...) {}, false);
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
        demo::recall_result const wanted =
            demo::ask(whole, tiny_llama::byte_tokens(s.facts[told].question), s.facts[told].answer);
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
    demo::read_stream(model, policy(kvmeld::preset::streaming_llm::with_sinks(2)), {}, s,
                      {one_by_one, 32, 60, true, room}, got, [] {});
    CHECK(got.parts.back().asked == std::vector<std::uint64_t>(5, 10));
    CHECK(got.parts.front().tokens == 2 * s.ends.front());
  }
  // Positions that are kept run out.
  stream_row figures;
  CHECK(test::has(test::refusal<std::invalid_argument>([&] {
                    demo::read_stream(model, policy(kvmeld::preset::streaming_llm::with_sinks(2)), {}, s,
                                      {false, 32, 60, false, room}, figures, [] {});
                  }),
                  "position"));
}

TEST_CASE("streams: figures, table and JSON") {
  tiny_llama::stream_report report{"m", "turns", 1000, 2, 0, false, 7, 2048, {}};
  stream_row full{"full", "full", 1.0, 0, {}};
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
  tiny_llama::stream_report generated{"m", "generate", 600, 1, 64, true, 1, 2048, {}};
  std::ostringstream other;
  tiny_llama::print_table(generated, other);
  CHECK(other.str().rfind(
            "m: 1 text of 600 tokens, read one at a time, 0 numbers told on the way; compressed after "
            "every 64 tokens, positions renumbered; seed 1\n",
            0) == 0);

  test::temporary_folder const folder;
  tiny_llama::write_json(report, folder / "s.json");
  auto const read = nlohmann::json::parse(tiny_llama::read_file(folder / "s.json", 1 << 20));
  CHECK(read["mode"] == "turns");
  CHECK(read["length"] == 1000);
  CHECK(read["contexts"] == 2);
  CHECK(read["chunk"] == 0);
  CHECK(read["renumbered"] == false);
  CHECK(read["seed"] == 7);
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
