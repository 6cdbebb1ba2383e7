#include "json_text.hpp"

#include <set>

namespace tiny_llama {
namespace {

// Counts brackets outside strings. The text may still be malformed: the parser decides that.
int nesting_depth(std::string_view text) {
  int depth = 0, deepest = 0;
  bool in_string = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    char const c = text[i];
    if (in_string) {
      if (c == '\\') {
        ++i;
      } else if (c == '"') {
        in_string = false;
      }
    } else if (c == '"') {
      in_string = true;
    } else if (c == '[' || c == '{') {
      deepest = ++depth > deepest ? depth : deepest;
      if (deepest > max_json_depth) {
        break;
      }
    } else if (c == ']' || c == '}') {
      --depth;
    }
  }
  return deepest;
}

}  // namespace

json parse_json(std::string const& file, std::string_view part, std::string_view text) {
  if (nesting_depth(text) > max_json_depth) {
    throw model_error(file, "its " + std::string(part) + " nests brackets too deeply; at most " +
                                std::to_string(max_json_depth) + " levels are allowed");
  }
  std::set<std::string> seen;
  std::string duplicate;
  bool has_duplicate = false;
  auto const watch = [&](int depth, json::parse_event_t event, json& value) {
    // The parser would silently keep the last one, and two readers could disagree on what a file says.
    if (event == json::parse_event_t::key && depth == 1 && value.is_string() && !has_duplicate) {
      auto const& name = value.get_ref<std::string const&>();
      if (!seen.insert(name).second) {
        duplicate = name;
        has_duplicate = true;
      }
    }
    return true;
  };
  json result;
  try {
    result = json::parse(text.begin(), text.end(), watch);
  } catch (json::exception const& problem) {
    throw model_error(file,
                      "its " + std::string(part) + " is not valid JSON: " + in_quotes(problem.what(), 200));
  }
  if (has_duplicate) {
    throw model_error(file, "its " + std::string(part) + " names " + in_quotes(duplicate) +
                                " twice; every name may occur once");
  }
  if (!result.is_object() && !result.is_array()) {
    throw model_error(file, "its " + std::string(part) + " is a JSON " + result.type_name() +
                                "; an object or array is needed");
  }
  return result;
}

std::string shown(json const& value) {
  switch (value.type()) {
  case json::value_t::string: return in_quotes(value.get_ref<std::string const&>());
  case json::value_t::object:
  case json::value_t::array:
    return std::string("a JSON ") + value.type_name() + " of " + std::to_string(value.size());
  default: return value.dump();
  }
}

}  // namespace tiny_llama
