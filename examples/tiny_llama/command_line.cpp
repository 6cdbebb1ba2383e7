#include "command_line.hpp"

#include "error.hpp"
#include "files.hpp"

#include <CLI/CLI.hpp>

#include <algorithm>
#include <limits>
#include <locale>
#include <sstream>

namespace tiny_llama {
namespace {

// The whole text as a number; false where it is none.
bool read_number(std::string const& text, double& number) {
  std::istringstream in(text);
  in.imbue(std::locale::classic());  // a decimal comma would be read as a list
  return in >> std::noskipws >> number && in.peek() == std::istringstream::traits_type::eof();
}

}  // namespace

void command_line::add(char const* name, char const* type, char const* help,
                       std::function<void(std::string const&)> take) {
  options_.push_back({name, type, help, std::move(take)});
}

std::string command_line::parse(int argc, char const* const* argv) const {
  CLI::App app{about_};
  app.allow_extras();  // refused below, in our words
  for (option const& o : options_) {
    auto const given = [&o](CLI::results_t const& values) {
      if (values.size() > 1) {
        throw option_error(std::string(o.name) + " is given " + std::to_string(values.size()) +
                           " times; it must be given at most once.");
      }
      o.take(values.front());
      return true;
    };
    app.add_option(o.name, given, o.help)->type_name(o.type)->take_all();
  }
  try {
    app.parse(argc, argv);
  } catch (CLI::CallForHelp const&) {
    return app.help();
  } catch (CLI::ArgumentMismatch const& problem) {  // "--name: 1 required TYPE missing"
    std::string const text = problem.what();
    throw option_error(text.substr(0, text.find(':')) + " has no value; it must have one.");
  } catch (CLI::ParseError const& problem) {
    std::string sentence = problem.what();
    std::replace(sentence.begin(), sentence.end(), '\n', ' ');
    throw option_error(sentence + "; --help lists the options.");
  }
  if (app.remaining_size() != 0) {
    throw option_error(in_quotes(app.remaining().front()) +
                       " is unknown; it must be an option that --help lists.");
  }
  return {};
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
  if (!can_write_file(path)) {
    refuse_option(name, path, "a file in a folder that exists and that can be written");
  }
}

}  // namespace tiny_llama
