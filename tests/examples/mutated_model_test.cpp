// Thousands of spoiled model folders: each loads, or is refused by a model_error that names the file. Nothing
// else.
#include "spoiled_files.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <string>

using test::flip;
using test::spoil;
using tiny_llama::splitmix64;

namespace {

struct breaker : test::spoiled_model {
  void try_file(std::string const& bytes) { expect_none(spoiled_model::try_file(bytes)); }
  void try_config(std::string const& text) { expect_none(spoiled_model::try_config(text)); }

private:
  static void expect_none(std::string const& problem) {
    if (!problem.empty()) FAIL_CHECK(problem);
  }
};

}  // namespace

TEST_CASE("a spoiled model either loads or is refused by name") {
  breaker files;
  splitmix64 random(20240607);
  auto const& good = files.good_file();
  auto const header_end = good.size() - files.packed().data.size();

  files.try_file(good);
  REQUIRE(files.loaded == 1);

  SUBCASE("cut short") {
    for (std::size_t length = 0; length < good.size(); length += length < 64 ? 1 : 7) {
      files.try_file(good.substr(0, length));
    }
    CHECK(files.loaded == 1);
    CHECK(files.refused > 700);
  }
  SUBCASE("bits flipped in length and header") {
    for (std::size_t bit = 0; bit < 64; ++bit) {
      files.try_file(flip(good, bit));
    }
    for (int i = 0; i < 1500; ++i) {
      files.try_file(flip(good, 64 + static_cast<std::size_t>(random.below((header_end - 8) * 8))));
    }
    CHECK(files.tried() == 1565);
  }
  SUBCASE("bits flipped in the data") {
    for (int i = 0; i < 300; ++i) {
      files.try_file(
          flip(good, (header_end + static_cast<std::size_t>(random.below(good.size() - header_end))) * 8 +
                         static_cast<std::size_t>(random.below(8))));
    }
    CHECK(files.loaded > 200);  // most flips make another number
  }
  SUBCASE("lying header lengths") {
    auto const size = static_cast<std::uint64_t>(good.size());
    for (std::uint64_t const length :
         {std::uint64_t{0}, std::uint64_t{1}, std::uint64_t{2}, size - 9, size - 8, size - 7, size,
          std::uint64_t{99999999}, std::uint64_t{100000000}, std::uint64_t{100000001}, std::uint64_t{1} << 32,
          std::uint64_t{1} << 63, ~std::uint64_t{0}, ~std::uint64_t{0} - 7}) {
      std::string bytes = good;
      for (std::size_t i = 0; i < 8; ++i) {
        bytes[i] = static_cast<char>(static_cast<unsigned char>(length >> (8 * i)));
      }
      files.try_file(bytes);
    }
    CHECK(files.loaded == 1);
  }
  SUBCASE("header edited") {
    for (int i = 0; i < 1500; ++i) {
      auto header = files.packed().header;
      for (auto edits = 1 + random.below(3); edits > 0; --edits) {
        spoil(header, random);
      }
      files.try_file(test::with_header(header.dump(), files.packed().data));
    }
    CHECK(files.refused > 1000);
  }
  SUBCASE("bytes inserted, removed and moved") {
    for (int i = 0; i < 500; ++i) {
      std::string bytes = good;
      auto const at = static_cast<std::size_t>(random.below(bytes.size()));
      auto const count = static_cast<std::size_t>(1 + random.below(40));
      switch (random.below(3)) {
      case 0:
        bytes.insert(at, count, static_cast<char>(static_cast<unsigned char>(random.below(256))));
        break;
      case 1: bytes.erase(at, count); break;
      default:
        std::rotate(bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(at), bytes.end());
        break;
      }
      files.try_file(bytes);
    }
    CHECK(files.tried() == 501);
  }
  SUBCASE("foreign files") {
    std::string const magic[] = {"",
                                 "\x89PNG\r\n\x1a\n",
                                 "\x7f"
                                 "ELF\x02\x01\x01",
                                 "PK\x03\x04",
                                 "GGUF\x03",
                                 "{\"a\":1}",
                                 "\x80\x02}q",
                                 "version https://git-lfs"};
    for (int i = 0; i < 400; ++i) {
      std::string bytes = magic[static_cast<std::size_t>(i) % 8];
      for (auto count = random.below(300); count > 0; --count) {
        bytes += static_cast<char>(static_cast<unsigned char>(random.below(256)));
      }
      files.try_file(i % 2 ? bytes : test::with_header(bytes, bytes));
    }
    CHECK(files.refused == 400);
  }
  SUBCASE("brackets without end") {
    for (std::size_t const depth : {33u, 1000u, 1000000u}) {
      files.try_file(test::with_header("{\"a\":" + std::string(depth, '['), ""));
      files.try_file(test::with_header(std::string(depth, '{'), ""));
      std::string nested;
      for (std::size_t i = 0; i < depth; ++i) {
        nested += "{\"a\":";
      }
      files.try_file(test::with_header(nested, ""));
      files.try_config(std::string(depth / 10, '['));  // below the size limit of config.json
      files.restore();
    }
    CHECK(files.refused == 12);
  }
  SUBCASE("config.json") {
    auto const& config = files.good_config();
    for (std::size_t length = 0; length < config.size(); ++length) {
      files.try_config(config.substr(0, length));
    }
    for (int i = 0; i < 800; ++i) {
      files.try_config(flip(config, static_cast<std::size_t>(random.below(config.size() * 8))));
    }
    for (int i = 0; i < 800; ++i) {
      auto edited = test::config_json(true);
      spoil(edited, random);
      files.try_config(edited.dump());
    }
    CHECK(files.tried() > 1900);
  }
}
