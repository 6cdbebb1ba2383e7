#include "command_line.hpp"

#include "error.hpp"
#include "output_file.hpp"

#include <algorithm>
#include <cstddef>
#include <iomanip>
#include <limits>
#include <locale>
#include <map>
#include <sstream>
#include <string_view>
#include <utility>

namespace tiny_llama {
namespace {

// The whole text as a number; false where it is none.
bool read_number(std::string const& text, double& number) {
  std::istringstream in(text);
  in.imbue(std::locale::classic());  // a decimal comma would be read as a list
  return in >> std::noskipws >> number && in.peek() == std::istringstream::traits_type::eof();
}

}  // namespace

void command_line::add(char const* name, char const* type, std::string help,
                       std::function<void(std::string const&)> take) {
  options_.push_back({name, type, std::move(help), std::move(take)});
}

std::string command_line::parse(int argc, char const* const* argv) const {
  std::map<std::string_view, std::vector<std::string>> given;
  std::string unknown;
  for (int i = 1; i < argc; ++i) {
    std::string_view const word = argv[i];
    if (word == "--help" || word == "-h") return help();
    std::string_view const name = word.substr(0, word.find('='));
    bool const known =
        std::any_of(options_.begin(), options_.end(), [&](auto const& o) { return o.name == name; });
    if (!known) {
      if (unknown.empty()) unknown = in_quotes(word);
    } else if (name.size() < word.size()) {
      given[name].emplace_back(word.substr(name.size() + 1));
    } else if (i + 1 < argc && std::string_view(argv[i + 1]).substr(0, 2) != "--") {
      given[name].emplace_back(argv[++i]);
    } else {
      throw option_error(std::string(name) + " has no value; it must have one.");
    }
  }
  for (option const& o : options_) {
    auto const values = given.find(o.name);
    if (values == given.end()) continue;
    if (values->second.size() > 1) {
      throw option_error(std::string(o.name) + " is given " + std::to_string(values->second.size()) +
                         " times; it must be given at most once.");
    }
    o.take(values->second.front());
  }
  if (!unknown.empty()) throw option_error(unknown + " is unknown; it must be an option that --help lists.");
  return {};
}

std::string command_line::help() const {
  constexpr std::size_t left = 26, width = 100;
  std::ostringstream out;
  auto const put = [&](std::size_t column, std::size_t indent, std::string const& text) {
    std::istringstream words(text);
    for (std::string word; words >> word; column += 1 + word.size()) {
      if (column + 1 + word.size() > width) {
        out << '\n' << std::string(indent, ' ');
        column = indent;
      }
      out << (column == 0 ? "" : " ") << word;
    }
    out << '\n';
  };
  put(0, 0, about_);
  out << '\n';
  auto const line = [&](std::string const& what, std::string const& text) {
    out << "  " << std::left << std::setw(left - 2) << what;
    put(std::max(left, what.size() + 2), left, text);
  };
  line("-h, --help", "print this and end");
  for (option const& o : options_) line(std::string(o.name) + ' ' + o.type, o.help);
  return out.str();
}

void refuse_option(std::string const& name, std::string const& value, std::string const& condition) {
  throw option_error(name + " is " + in_quotes(value) + "; it must be " + condition + ".");
}

std::vector<std::string> split_at_commas(std::string const& list) {
  std::vector<std::string> out(1);
  for (char const c : list) {
    if (c == ',') {
      out.emplace_back();
    } else {
      out.back() += c;
    }
  }
  return out;
}

std::uint64_t whole_number(std::string const& name, std::string const& value, std::uint64_t least,
                           std::uint64_t most) {
  std::uint64_t number = 0;
  bool good = !value.empty();
  for (char const c : value) {
    auto const digit = static_cast<std::uint64_t>(c - '0');
    good = good && c >= '0' && c <= '9' && number <= (std::numeric_limits<std::uint64_t>::max() - digit) / 10;
    number = number * 10 + digit;
  }
  if (!good || number < least || number > most) {
    refuse_option(name, value,
                  "a whole number from " + std::to_string(least) + " to " + std::to_string(most));
  }
  return number;
}

std::uint64_t seed_number(std::string const& name, std::string const& value) {
  return whole_number(name, value, 0, std::numeric_limits<std::uint64_t>::max());
}

int small_number(std::string const& name, std::string const& value, int least, int most) {
  return static_cast<int>(
      whole_number(name, value, static_cast<std::uint64_t>(least), static_cast<std::uint64_t>(most)));
}

double positive_number(std::string const& name, std::string const& value) {
  double number = 0;
  if (!read_number(value, number) || !(number > 0) || !(number < 1e30)) {
    refuse_option(name, value, "a number above 0 and below 1e30");
  }
  return number;
}

std::vector<double> shares_above_zero(std::string const& name, std::string const& value) {
  std::vector<double> out;
  for (std::string const& part : split_at_commas(value)) {
    double number = 0;
    if (!read_number(part, number) || !(number > 0) || !(number <= 1)) {
      refuse_option(name, value, "shares above 0 and up to 1, separated by commas");
    }
    out.push_back(number);
  }
  std::sort(out.begin(), out.end());
  out.erase(std::unique(out.begin(), out.end()), out.end());
  return out;
}

std::string some_path(std::string const& name, std::string const& value) {
  if (value.empty()) {
    refuse_option(name, value, "a path");
  }
  return value;
}

void expect_writable(std::string const& name, std::string const& path) {
  if (std::string const problem = output_problem(path); !problem.empty()) {
    refuse_option(name, path, "a file in a folder that exists and that can be written (" + problem + ")");
  }
}

}  // namespace tiny_llama
