// JSON from files that nobody vouches for: nesting is bounded before the parser sees it, duplicates are
// refused.
#pragma once

#include "error.hpp"

#include <nlohmann/json.hpp>

#include <string>
#include <string_view>

namespace tiny_llama {

using json = nlohmann::json;

inline constexpr int max_json_depth = 32;

/// Parses `text` of `file`. `part` says which part of the file it is ("header"). Throws model_error.
json parse_json(std::string const& file, std::string_view part, std::string_view text);

/// Short, printable form of a value for messages; never recurses into a large one.
std::string shown(json const& value);

}  // namespace tiny_llama
