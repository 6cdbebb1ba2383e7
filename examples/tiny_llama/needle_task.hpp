// The test of memory: facts planted in held-out text, to be recalled by the words that introduced them.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace tiny_llama {

/// The names that tiny-kjv was trained to connect with numbers.
inline constexpr std::array<std::string_view, 32> needle_names{
    "Abner",   "Baruch", "Caleb",   "Dinah",    "Esther", "Festus", "Gideon",  "Hannah",
    "Ishmael", "Jethro", "Keturah", "Lazarus",  "Miriam", "Nathan", "Obadiah", "Philemon",
    "Rachel",  "Samson", "Thomas",  "Uriah",    "Vashti", "Zadok",  "Boaz",    "Cyrus",
    "Elijah",  "Joab",   "Leah",    "Mordecai", "Naomi",  "Silas",  "Titus",   "Zilpah"};

struct needle {
  std::string name;
  std::string question;  ///< "\nThe secret number of NAME is "
  std::string answer;    ///< five digits
  int begin = 0;         ///< first byte of the planted sentence (its line end) in the context
  int end = 0;           ///< one past its last byte (its line end)
};

struct needle_task {
  std::string context;       ///< exactly as long as asked
  std::string continuation;  ///< what follows it in the held-out text
  std::vector<needle>
      needles;  ///< in order of depth; none overlap, none lie in the last `needle_free_end` bytes
};

struct needle_request {
  int context = 1024;      ///< bytes
  int needles = 4;         ///< 0 to 32
  int continuation = 256;  ///< bytes
  std::uint64_t seed = 1;
  std::uint64_t index = 0;  ///< which of the contexts of this seed
};

inline constexpr int needle_free_end = 48;  ///< so that no needle is merely the most recent text

/// The shortest context that can hold so many needles.
int min_context(int needles);

/// Equal requests on equal text give equal tasks, on every machine.
/// Throws std::invalid_argument if the request does not fit itself or the text.
needle_task make_needle_task(std::string_view held_out, needle_request const& request);

/// "\nThe secret number of NAME is "
std::string needle_question(std::string_view name);

}  // namespace tiny_llama
